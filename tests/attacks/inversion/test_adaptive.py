"""Several passes tell more than one where they must, nothing where there is nothing, and go on after a kill."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, View, lacking
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.adaptive import Adaptive, Combine
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.inversion.intersection import intersected
from privkit.attacks.inversion.recurrence import copy_distance, keeps_places, keeps_rows, pooled, tracked
from privkit.attacks.inversion.rounds import by_round
from privkit.attacks.inversion.simulated_passes import SimulatedPasses
from privkit.attacks.order.own_tokens import OwnTokens
from privkit.attacks.patches import Geometry, patchify
from privkit.attacks.query_rules import QueryRules
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.spectral_shuffle import SpectralShuffle
from privkit.wire.queries import CountingSession, Queries
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering
from tests.small import digits

BATCH = 20
Release = Callable[[Tensor, Generator], Tensor]


IMAGES = digits(460).x
VICTIMS, AUXILIARY = IMAGES[:60], IMAGES[60:]
PLACES, CHANNELS = 4, 32
EMBEDDING = torch.randn(16, CHANNELS, generator=Generator().manual_seed(5)) / 2


def tokens(images: Tensor) -> Tensor:
    """A linear embedding without positions."""
    return patchify(images, 4) @ EMBEDDING


def identity(images: Tensor, draws: Generator) -> Tensor:
    return tokens(images)


def noisy(images: Tensor, draws: Generator) -> Tensor:
    return tokens(images) + 2.5 * torch.randn((len(images), PLACES, CHANNELS), generator=draws)


def shuffled(images: Tensor, draws: Generator) -> Tensor:
    order = torch.rand(len(images), PLACES, generator=draws).argsort(1)
    return tokens(images).gather(1, order.unsqueeze(2).expand(-1, -1, CHANNELS))


def noisy_shuffled(images: Tensor, draws: Generator) -> Tensor:
    return shuffled(images, draws) + 1.5 * torch.randn((len(images), PLACES, CHANNELS), generator=draws)


def batch_shuffled(images: Tensor, draws: Generator) -> Tensor:
    release, _ = BatchShuffle(keep=0.5).apply(tokens(images).unsqueeze(0), torch.zeros(1, len(images)), draws)
    return release.smashed[0]


def noise(images: Tensor, draws: Generator) -> Tensor:
    return torch.randn((len(images), PLACES, CHANNELS), generator=draws)


def knowledge(release: Release, auxiliary: Tensor | None = AUXILIARY) -> ImageObservation:
    return ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=auxiliary, query=answering(release))


def views(release: Release, passes: int) -> list[View]:
    draws = Generator().manual_seed(9)
    return [View(round=i, smashed=release(part, draws)) for i in range(passes) for part in VICTIMS.split(BATCH)]


def run(attack: Adaptive | BlackBox, release: Release, session: Any = None) -> Reconstruction:
    passes = getattr(attack, "passes", 1)
    return attack.run(replace(knowledge(release), views=views(release, passes)), Generator().manual_seed(0), session)


def error(result: Reconstruction) -> float:
    assert result.images.shape == VICTIMS.shape
    return (result.images - VICTIMS).square().mean().item()


@cache
def reached(attack: Adaptive | BlackBox, release: Release) -> float:
    """The error of an attack on a release; several tests compare themselves with the same one."""
    return error(run(attack, release))


FLOOR = error(MeanImage().run(replace(knowledge(noise), views=views(noise, 1)), Generator()))


def test_averaging_beats_one_pass_the_more_passes_the_more() -> None:
    one = reached(BlackBox(epochs=8), noisy)
    two, eight = (reached(Adaptive(passes=r, combine="average", epochs=8), noisy) for r in (2, 8))
    assert two < 0.9 * one
    assert eight < 0.6 * two


def test_concatenation_beats_one_pass() -> None:
    concatenated = reached(Adaptive(passes=8, combine="concatenate", epochs=8), noisy)
    assert concatenated < 0.7 * reached(BlackBox(epochs=8), noisy)


@pytest.mark.parametrize("combine", ["pool", "average"])
def test_noisy_tokens_in_any_order_are_matched_before_they_are_averaged(combine: Any) -> None:
    one = reached(BlackBox(decoder="set", epochs=8), noisy_shuffled)
    assert reached(Adaptive(passes=8, combine=combine, epochs=8), noisy_shuffled) < 0.75 * one


@pytest.mark.parametrize("combine", ["pool", "intersect"])
def test_tokens_of_strangers_are_sorted_out(combine: Any) -> None:
    one = reached(BlackBox(decoder="set", epochs=8), batch_shuffled)
    assert reached(Adaptive(passes=12, combine=combine, epochs=8), batch_shuffled) < 0.4 * one


@pytest.mark.parametrize("combine", get_args(Combine))
def test_is_at_the_floor_on_noise(combine: Any) -> None:
    assert reached(Adaptive(passes=3, combine=combine, epochs=3), noise) > 0.97 * FLOOR


@pytest.mark.parametrize("combine", get_args(Combine))
def test_wins_on_the_identity(combine: Any) -> None:
    share = 0.75 if combine == "as_released" else 0.3  # its decoder needs places, and it throws them away
    assert reached(Adaptive(passes=3, combine=combine, epochs=8), identity) < share * FLOOR


def test_beats_its_own_untrained_start() -> None:
    start, trained = (reached(Adaptive(passes=4, combine="average", epochs=e), noisy) for e in (0, 4))
    assert trained < 0.6 * start


@pytest.mark.parametrize(
    ("release", "chosen"),
    [
        (identity, "average"),
        (noisy, "average"),
        (shuffled, "pool"),
        (noisy_shuffled, "pool"),
        (batch_shuffled, "intersect"),
    ],
)
def test_auto_finds_out_on_own_images(release: Release, chosen: Any) -> None:
    auto, named = (run(Adaptive(passes=3, combine=c, epochs=1), release) for c in ("auto", chosen))
    assert torch.equal(auto.images, named.images)


def asking(attack: Adaptive, release: Release, session: Any = None, **rules: Any) -> tuple[Reconstruction, int]:
    """The attack under a threat model, and the rounds that it asked."""
    allowed = QueryRules(**rules)
    queries = Queries(answering(release), allowed)
    held = replace(knowledge(release), views=views(release, attack.passes), query=queries, rules=allowed)
    found = attack.run(held, Generator().manual_seed(0), CountingSession(session or Session(), queries))
    return found, queries.rounds


@pytest.mark.parametrize(
    ("release", "passes", "rounds"), [(shuffled, 3, 16 + 20 + 2), (batch_shuffled, 6, 16 + 2 + 400 + 50)]
)
def test_tokens_that_can_be_read_are_shuffled_without_a_query(release: Release, passes: int, rounds: int) -> None:
    """The decoder starts with the patches behind tokens, and learns more from fewer rounds."""
    read, anew = (asking(Adaptive(passes=passes, epochs=4, read=images), release) for images in (None, 0))
    assert error(read[0]) < 0.95 * error(anew[0])
    assert read[1] == rounds < anew[1]
    assert "tokens of 400 own images were read" in read[0].note
    assert not anew[0].note


def spectral(images: Tensor, draws: Generator) -> Tensor:
    """Frequencies in any order: tokens are no patches."""
    release, _ = SpectralShuffle(patch=4).apply(tokens(images).unsqueeze(0), torch.zeros(1, len(images)), draws)
    return release.smashed[0]


def moved(images: Tensor, draws: Generator) -> Tensor:
    """Patches whose tokens show their places."""
    places = torch.randn(PLACES, CHANNELS, generator=Generator().manual_seed(3))
    order = torch.rand(len(images), PLACES, generator=draws).argsort(1)
    return (tokens(images) + places).gather(1, order.unsqueeze(2).expand(-1, -1, CHANNELS))


def test_tokens_that_show_their_places_are_read() -> None:
    assert "tokens of 400 own images were read" in asking(Adaptive(passes=2, epochs=1), moved)[0].note


@pytest.mark.parametrize(
    ("release", "rounds", "why"),
    [
        (noisy_shuffled, 2, "sent twice came back with other tokens"),
        (noise, 2, "sent twice came back with other tokens"),
        (spectral, 22, "so that tokens may be beside wrong patches"),
    ],
)
def test_tokens_that_cannot_be_read_are_sent_anew(release: Release, rounds: int, why: str) -> None:
    found, anew = (asking(Adaptive(passes=3, epochs=1, read=images), release) for images in (None, 0))
    assert torch.equal(found[0].images, anew[0].images)
    assert found[1] == anew[1] + rounds
    assert "sent anew in each epoch" in found[0].note
    assert why in found[0].note


@pytest.mark.parametrize("combine", ["pool", "intersect"])
def test_noise_on_tokens_in_place_is_averaged_and_not_simulated(combine: Any) -> None:
    found, anew = (run(Adaptive(passes=3, epochs=1, combine=combine, read=images), noisy) for images in (None, 0))
    assert torch.equal(found.images, anew.images)


def test_reading_keeps_the_rules_of_the_threat_model() -> None:
    """It takes what rounds there are, and sends no copy of an image where that is forbidden."""
    few, rounds = asking(Adaptive(passes=3, epochs=1), batch_shuffled, rounds=150)
    assert rounds == 150
    assert "tokens of 99 own images were read" in few.note
    no_copies, _ = asking(Adaptive(passes=3, epochs=1), shuffled, copies=False)
    assert "tokens of 400 own images were read" in no_copies.note
    for read, rounds in ((0, 60), (None, 60)):
        with pytest.raises(NotApplicable, match="allows 60 rounds of own images, and the attack asks for more"):
            asking(Adaptive(passes=3, epochs=1, read=read), batch_shuffled, rounds=rounds)


def test_rounds_that_read_tokens_count_once_after_a_kill() -> None:
    attack, killed = Adaptive(passes=3, epochs=2, read=60), Session(dies_after=1)
    straight, rounds = asking(attack, batch_shuffled)
    with pytest.raises(Killed):
        asking(attack, batch_shuffled, killed)
    resumed, again = asking(attack, batch_shuffled, Session(state=killed.state))
    assert again == rounds == 16 + 2 + 60 + 50
    assert torch.equal(resumed.images, straight.images)


def test_simulated_passes_are_like_those_that_crossed() -> None:
    draws, images = Generator().manual_seed(1), AUXILIARY[:200]
    own = OwnTokens(tokens=tokens(images), patches=patchify(images, 4), keep=0.52, in_order=False)
    sent = [torch.cat([batch_shuffled(part, draws) for part in images.split(BATCH)]) for _ in range(4)]
    passes = torch.stack([x.reshape(-1, BATCH * PLACES, CHANNELS) for x in sent])
    copies = copy_distance(passes[0], passes[1])
    crossed = intersected(passes, BATCH, copies)
    simulated = SimulatedPasses(
        own=own, geometry=Geometry.of(own.tokens, (1, 8, 8)), passes=4, size=BATCH, copies=copies, pool=False
    )
    dealt, patches = simulated.known(draws)
    torch.testing.assert_close(patches @ EMBEDDING, dealt[..., :-1])

    def pure(found: Tensor) -> float:
        return (torch.cdist(found, own.tokens).amin(2) < 0.02).double().mean().item()

    assert pure(dealt[..., :-1]) == pytest.approx(pure(crossed.tokens), abs=0.03)
    assert 0.6 < pure(dealt[..., :-1]) < 0.98
    assert dealt[..., -1].mean() == pytest.approx(crossed.support.mean().item(), abs=0.01)
    assert dealt[..., -1].std() == pytest.approx(crossed.support.std().item(), abs=0.02)


def cutout(images: Tensor, draws: Generator, keep: float = 0.5) -> View:
    """A round under a random mask for each image, whose coins are public."""
    share = (torch.rand(len(images), 1, PLACES, generator=draws) < keep).float()
    return View(round=0, smashed=tokens(images) * share.transpose(1, 2), weights=share)


def through_cutout(attack: Adaptive) -> Reconstruction:
    def query(images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult(view=cutout(images, draws), members=torch.arange(len(images)).unsqueeze(1))

    draws = Generator().manual_seed(9)
    seen = [cutout(part, draws) for _ in range(attack.passes) for part in VICTIMS.split(BATCH)]
    return attack.run(replace(knowledge(identity), query=query, views=seen), Generator().manual_seed(0))


def test_masks_with_public_coins_are_lifted_by_several_passes() -> None:
    """Of 240 tokens under 8 masks that keep half, one is missing; nothing else tells the passes from no defense."""
    open_ = reached(BlackBox(epochs=8), identity)
    assert error(through_cutout(Adaptive(passes=8, epochs=8))) < 1.2 * open_ + 0.02 * FLOOR
    auto, named = (through_cutout(Adaptive(passes=2, combine=c, epochs=1)) for c in ("auto", "average"))
    assert torch.equal(auto.images, named.images)
    assert error(through_cutout(Adaptive(passes=8, combine="concatenate", epochs=4))) < 0.8 * FLOOR


@pytest.mark.parametrize("settings", [{"combine": c} for c in ("pool", "intersect", "as_released")] + [{"align": True}])
def test_masked_rows_are_matched_by_no_way_that_needs_all_of_them(settings: Any) -> None:
    with pytest.raises(NotApplicable, match="take average"):
        through_cutout(Adaptive(passes=2, epochs=1, **settings))


def test_messages_too_large_to_intersect_are_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.attacks.inversion.adaptive.INTERSECTED_TOKENS", BATCH * PLACES - 1)
    auto, pooled_ = (run(Adaptive(passes=2, combine=c, epochs=1), batch_shuffled) for c in ("auto", "pool"))
    assert torch.equal(auto.images, pooled_.images)
    with pytest.raises(NotApplicable, match="may be 79, but a message has 80"):
        run(Adaptive(passes=2, combine="intersect", epochs=1), batch_shuffled)


def test_intersection_does_not_depend_on_how_many_messages_are_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, _ = planted(4, 0.6, sigma=0.2)
    whole, visits = tracked(seen, 1.0)
    monkeypatch.setattr("privkit.attacks.inversion.recurrence.TABLE_NUMBERS", 1)
    part, rows = tracked(seen, 1.0, 10)
    torch.testing.assert_close(part, whole)
    torch.testing.assert_close(rows, visits.unflatten(2, (10, -1)).sum(3))


def test_as_released_sees_one_pass_only() -> None:
    attack, seen = Adaptive(passes=3, combine="as_released", epochs=1), views(shuffled, 3)
    others = seen[:3] + [replace(view, smashed=torch.zeros_like(view.smashed)) for view in seen[3:]]
    found = [
        attack.run(replace(knowledge(shuffled), views=x), Generator().manual_seed(0)).images for x in (seen, others)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("release", ["maps", "vectors"])
@pytest.mark.parametrize("combine", ["auto", "average", "concatenate"])
def test_maps_and_vectors(release: str, combine: Any) -> None:
    def seen(images: Tensor, draws: Generator) -> Tensor:
        found = noisy(images, draws)
        return found.transpose(1, 2).unflatten(2, (2, 2)) if release == "maps" else found.flatten(1)

    start, trained = (
        error(run(Adaptive(passes=4, combine=combine, decoder="convolutions", epochs=e), seen)) for e in (0, 3)
    )
    assert trained < 0.95 * start


def test_answers_in_another_order_are_put_in_order() -> None:
    def turned(images: Tensor, draws: Generator) -> QueryResult:
        order = torch.randperm(len(images), generator=Generator().manual_seed(int(images.sum()) % 7))
        answer = answering(identity)(images, draws)
        return QueryResult(view=View(round=0, smashed=answer.view.smashed[order]), members=order.unsqueeze(1))

    attack = Adaptive(passes=2, epochs=2)
    found = attack.run(replace(knowledge(identity), query=turned, views=views(identity, 2)), Generator().manual_seed(0))
    assert torch.equal(found.images, run(attack, identity).images)


# Tracking, pooling and intersection by themselves.


def planted(passes: int, keep: float, sigma: float = 0.0, images: int = 10) -> tuple[Tensor, Tensor]:
    """R + 1 passes [R + 1, 2, B·T, 32] of random tokens, batch-shuffled; each first-pass token's image [2·B, T]."""
    draws = Generator().manual_seed(1)
    own = torch.randn(2, images, 20, 32, generator=draws)
    sent = [BatchShuffle(keep=keep).apply(own, torch.zeros(2, images), draws) for _ in range(passes + 1)]
    seen = torch.stack([release.smashed.flatten(1, 2) for release, _ in sent])
    return seen + sigma * torch.randn(seen.shape, generator=draws), (sent[0][1].source // 20 % images).flatten(0, 1)


def accuracy(seen: Tensor, truth: Tensor) -> float:
    images = len(truth) // 2
    taken = intersected(seen[:-1], images, copy_distance(seen[0], seen[-1])).taken  # the last one tells the noise
    assert torch.equal(taken.view(2, -1).sort(1).values, torch.arange(images * 20).expand(2, -1))
    found = truth.view(2, -1).gather(1, taken.view(2, -1))
    return (found == torch.arange(images).repeat_interleave(20)).double().mean().item()


def test_intersection_finds_whose_token_it_is() -> None:
    found = [accuracy(*planted(r, 0.6)) for r in (1, 4, 8)]
    assert found[0] < 0.7
    assert found[0] < found[1] < found[2]
    assert found[2] >= 0.95
    assert accuracy(*planted(16, 0.4)) >= 0.95
    assert accuracy(*planted(8, 0.6, sigma=0.2)) >= 0.95


def test_intersection_knows_nothing_where_there_is_nothing() -> None:
    chance = 0.1
    assert abs(accuracy(*planted(16, 0.0)) - chance) < 0.05
    _, truth = planted(16, 0.4)
    fresh = torch.randn(16, 2, 200, 32, generator=Generator().manual_seed(2))
    hidden = truth.flatten()[torch.randperm(400, generator=Generator().manual_seed(3))].view(20, 20)
    assert abs(accuracy(fresh, hidden) - chance) < 0.06


@pytest.mark.parametrize("sigma", [0.1, 0.4])
def test_matched_tokens_are_averaged_as_if_they_had_stayed(sigma: float) -> None:
    draws = Generator().manual_seed(1)
    own = torch.randn(30, 16, 32, generator=draws)
    orders = [torch.arange(16).expand(30, -1), *(torch.rand(30, 16, generator=draws).argsort(1) for _ in range(7))]
    passes = torch.stack([own.gather(1, order.unsqueeze(2).expand_as(own)) for order in orders])
    passes = passes + sigma * torch.randn(passes.shape, generator=draws)
    copies = copy_distance(passes[0], passes[1])
    assert copies == pytest.approx(2 * sigma**2 * 32, rel=0.15)
    assert (tracked(passes, copies)[0] - own).square().mean().item() == pytest.approx(sigma**2 / 8, rel=0.1)
    found, recurrence = pooled(passes, copies)
    nearest = torch.cdist(own, found).square().amin(2).mean().item() / 32
    assert nearest == pytest.approx(sigma**2 / 8, rel=0.1)
    assert recurrence.min() > 0.95
    assert keeps_rows(passes[0], passes[1], copies)
    assert not keeps_places(passes[0], passes[1])


def test_pooling_keeps_equal_tokens_apart_from_strangers() -> None:
    own = torch.eye(32)[[0, 0, 0, 1, 2]].unsqueeze(0)
    passes = own.repeat(6, 1, 1, 1)
    passes[1:, 0, 4] = torch.eye(32)[10:15]  # strangers, each of them once
    passes[5] = own
    found, recurrence = pooled(passes, 0.01)
    assert found[0].argmax(1).sort().values.tolist() == [0, 0, 0, 1, 2]
    assert recurrence[0].tolist() == pytest.approx([1, 1, 1, 1, 2 / 6], abs=0.01)


# The contract.


def test_same_seed_same_bits_and_the_global_generator_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    attack = Adaptive(passes=2, epochs=1)
    first, again = run(attack, noisy_shuffled), run(attack, noisy_shuffled)
    assert torch.equal(first.images, again.images)
    assert first.curve == again.curve
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("combine", ["average", "intersect", "as_released"])
def test_goes_on_after_a_kill_bit_for_bit(combine: Any) -> None:
    attack, killed = Adaptive(passes=2, combine=combine, epochs=3), Session(dies_after=1)
    with pytest.raises(Killed):
        run(attack, batch_shuffled, killed)
    resumed = run(attack, batch_shuffled, Session(state=killed.state))
    straight = run(attack, batch_shuffled)
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve


def test_says_what_it_lacks() -> None:
    blind = ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH)
    assert lacking(Adaptive(), blind) == ["auxiliary", "query"]
    with pytest.raises(NotApplicable, match="adaptive needs auxiliary and query"):
        Adaptive(epochs=1).run(replace(blind, views=views(identity, 8)), Generator())
    with pytest.raises(NotApplicable, match="at least 40 auxiliary images"):
        Adaptive(passes=2, epochs=1).run(
            replace(knowledge(identity, AUXILIARY[:39]), views=views(identity, 2)), Generator()
        )
    with pytest.raises(NotApplicable, match="same shape"):
        Adaptive(passes=2, epochs=1).run(
            replace(knowledge(identity, torch.rand(90, 3, 8, 8)), views=views(identity, 2)), Generator()
        )
    with pytest.raises(ValueError, match="budget's"):
        run(Adaptive(passes=2), identity)


def test_views_that_are_no_passes() -> None:
    seen = views(identity, 2)
    for count, words in ((0, "no view was recorded"), (5, "5 views are no multiple of 2")):
        with pytest.raises(NotApplicable, match=words):
            Adaptive(passes=2, epochs=1).run(replace(knowledge(identity), views=seen[:count]), Generator())
    for strange, words in (
        (replace(seen[3], smashed=torch.rand(19, 4, 32)), r"one shape and as many messages, got \[20, 4, 32\], \[19"),
        (replace(seen[3], messages=2), "as many messages"),
        (replace(seen[3], mixed=2), "no row is the same sum twice"),
        (replace(seen[3], weights=torch.ones(20, 1, 4)), "public in all passes or in none"),
        (replace(seen[3], smashed=seen[3].smashed / 0), "NaN or infinity"),
    ):
        with pytest.raises(NotApplicable, match=words):
            Adaptive(passes=2, epochs=1).run(
                replace(knowledge(identity), views=[*seen[:3], strange, *seen[4:]]), Generator()
            )
    assert [[view.round for view in same] for same in by_round(seen, 2)] == [[0, 1]] * 3


def test_queries_that_fit_no_row() -> None:
    def halved(images: Tensor, draws: Generator) -> QueryResult:
        answer = answering(identity)(images, draws)
        return QueryResult(view=replace(answer.view, smashed=answer.view.smashed[::2]), members=answer.members[::2])

    with pytest.raises(NotApplicable, match="one row for each image"):
        Adaptive(passes=2, epochs=1).run(
            replace(knowledge(identity), query=halved, views=views(identity, 2)), Generator()
        )


@pytest.mark.parametrize("combine", ["pool", "intersect", "as_released"])
def test_vectors_have_no_tokens_to_match(combine: Any) -> None:
    with pytest.raises(NotApplicable, match="but the release is vectors"):
        run(Adaptive(passes=2, combine=combine, epochs=1), lambda images, draws: images.flatten(1))


def test_bad_specifications() -> None:
    for bad in (
        {"passes": 1},
        {"combine": "sum"},
        {"decoder": "gan"},
        {"epochs": -1},
    ):
        with pytest.raises(ValueError, match="must be"):
            Adaptive(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="align is about combine=average, got combine=pool"):
        Adaptive(combine="pool", align=True)
