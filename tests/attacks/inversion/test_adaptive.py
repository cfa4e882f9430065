"""Several passes tell more than one where they must, nothing where there is nothing, and go on after a kill."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, View, lacking
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.adaptive import Adaptive, Combine, _Plan
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.recurrence import copy_distance, intersected, keeps_places, keeps_rows, pooled, tracked
from privkit.attacks.inversion.rounds import by_round
from privkit.defenses.batch_shuffle import BatchShuffle
from tests.attacks.inversion.passes import (
    AUXILIARY,
    BATCH,
    FEW,
    FLOOR,
    PLACES,
    VICTIMS,
    Release,
    batch_shuffled,
    error,
    identity,
    knowledge,
    noise,
    noisy,
    noisy_shuffled,
    reached,
    run,
    shuffled,
    tokens,
    views,
)
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering


@pytest.mark.slow
def test_averaging_beats_one_pass_the_more_passes_the_more() -> None:
    one = reached(BlackBox(epochs=8), noisy)
    two, eight = (reached(Adaptive(passes=r, combine="average", epochs=8), noisy) for r in (2, 8))
    assert two < 0.9 * one
    assert eight < 0.6 * two


@pytest.mark.slow
def test_concatenation_beats_one_pass() -> None:
    concatenated = reached(Adaptive(passes=8, combine="concatenate", epochs=8), noisy)
    assert concatenated < 0.7 * reached(BlackBox(epochs=8), noisy)


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["pool", "average"])
def test_noisy_tokens_in_any_order_are_matched_before_they_are_averaged(combine: Any) -> None:
    one = reached(BlackBox(decoder="set", epochs=8), noisy_shuffled)
    assert reached(Adaptive(passes=16, combine=combine, epochs=8), noisy_shuffled) < 0.75 * one


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["pool", "intersect"])
def test_tokens_of_strangers_are_sorted_out(combine: Any) -> None:
    one = reached(BlackBox(decoder="set", epochs=8), batch_shuffled)
    assert reached(Adaptive(passes=12, combine=combine, epochs=8), batch_shuffled) < 0.4 * one


@pytest.mark.parametrize(
    "combine", [c if c == "intersect" else pytest.param(c, marks=pytest.mark.slow) for c in get_args(Combine)]
)
def test_is_at_the_floor_on_noise(combine: Any) -> None:
    assert reached(Adaptive(passes=3, combine=combine, epochs=3), noise) > 0.97 * FLOOR


@pytest.mark.parametrize(
    "combine",
    [c if c == "average" else pytest.param(c, marks=pytest.mark.slow) for c in get_args(Combine)],
)
def test_wins_on_the_identity(combine: Any) -> None:
    share = 0.75 if combine == "as_released" else 0.3  # its decoder needs places, and it throws them away
    assert reached(Adaptive(passes=3, combine=combine, epochs=12), identity) < share * FLOOR


@pytest.mark.slow
def test_beats_its_own_untrained_start() -> None:
    start, trained = (reached(Adaptive(passes=4, combine="average", epochs=e), noisy) for e in (0, 4))
    assert trained < 0.6 * start


@pytest.mark.slow(but=3)
@pytest.mark.parametrize(
    ("release", "chosen"),
    [
        (identity, "average"),
        (noisy_shuffled, "pool"),
        (batch_shuffled, "intersect"),
        (noisy, "average"),
        (shuffled, "pool"),
    ],
)
def test_auto_finds_out_on_own_images(release: Release, chosen: Any) -> None:
    auto, named = (run(Adaptive(passes=3, combine=c, epochs=1), release, None, FEW) for c in ("auto", chosen))
    assert torch.equal(auto.images, named.images)


@pytest.mark.parametrize(
    ("release", "align", "places"),
    [(identity, None, True), (identity, True, False), (shuffled, None, False), (shuffled, False, True)],
)
def test_tokens_are_averaged_in_their_places_unless_they_move_or_align_says_so(
    release: Release, align: bool | None, places: bool
) -> None:
    def sent() -> list[View]:
        return [View(round=0, smashed=release(AUXILIARY[:BATCH], draws))]

    draws = Generator().manual_seed(0)
    plan = Adaptive(combine="average", align=align)._plan(sent(), sent())
    assert (plan.combine, plan.places) == ("average", places)


def cutout(images: Tensor, draws: Generator, keep: float = 0.5) -> View:
    """A round under a random mask for each image, whose coins are public."""
    share = (torch.rand(len(images), 1, PLACES, generator=draws) < keep).float()
    return View(round=0, smashed=tokens(images) * share.transpose(1, 2), weights=share)


def test_the_decoder_is_told_which_cells_crossed_and_how_certain_a_token_is() -> None:
    draws = Generator().manual_seed(0)
    masked = [cutout(AUXILIARY[:BATCH], draws) for _ in range(2)]
    given = _Plan(combine="average", copies=1.0, places=True).view(masked, draws)
    assert given.weights is not None
    assert torch.equal(given.weights, torch.stack([one.weights for one in masked if one.weights is not None]).amax(0))
    assert 0 < given.weights.mean() < 1
    same = [View(round=0, smashed=noisy_shuffled(AUXILIARY[:BATCH], draws)) for _ in range(3)]
    certain = pooled(torch.stack([view.smashed for view in same]), 4.0)[1]
    assert certain.max() > 0
    assert torch.equal(_Plan(combine="pool", copies=4.0, places=False).view(same, draws).smashed[..., -1], certain)


def through_cutout(attack: Adaptive) -> Reconstruction:
    def query(images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult(view=cutout(images, draws), members=torch.arange(len(images)).unsqueeze(1))

    draws = Generator().manual_seed(9)
    seen = [cutout(part, draws) for _ in range(attack.passes) for part in VICTIMS.split(BATCH)]
    return attack.run(replace(knowledge(identity), query=query, views=seen), Generator().manual_seed(0))


@pytest.mark.slow
def test_masks_with_public_coins_are_lifted_by_several_passes() -> None:
    """Of 240 tokens under 8 masks that keep half, one is missing; nothing else tells the passes from no defense."""
    open_ = reached(BlackBox(epochs=8), identity)
    assert error(through_cutout(Adaptive(passes=8, epochs=8))) < 1.2 * open_ + 0.02 * FLOOR


@pytest.mark.slow
def test_masked_passes_are_averaged_or_concatenated() -> None:
    auto, named = (through_cutout(Adaptive(passes=2, combine=c, epochs=1)) for c in ("auto", "average"))
    assert torch.equal(auto.images, named.images)
    assert error(through_cutout(Adaptive(passes=8, combine="concatenate", epochs=4))) < 0.8 * FLOOR


@pytest.mark.parametrize("settings", [{"combine": c} for c in ("pool", "intersect", "as_released")] + [{"align": True}])
def test_masked_rows_are_matched_by_no_way_that_needs_all_of_them(settings: Any) -> None:
    with pytest.raises(NotApplicable, match="take average"):
        through_cutout(Adaptive(passes=2, epochs=1, **settings))


def test_messages_too_large_to_intersect_are_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.attacks.inversion.adaptive.INTERSECTED_TOKENS", BATCH * PLACES - 1)
    auto, pooled_ = (run(Adaptive(passes=2, combine=c, epochs=1), batch_shuffled, None, FEW) for c in ("auto", "pool"))
    assert torch.equal(auto.images, pooled_.images)
    with pytest.raises(NotApplicable, match="may be 79, but a message has 80"):
        run(Adaptive(passes=2, combine="intersect", epochs=1), batch_shuffled)


def test_intersection_does_not_depend_on_how_many_messages_are_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, _ = planted(4, 0.6, sigma=0.2)
    whole, visits = tracked(seen, 1.0)
    monkeypatch.setattr("privkit.attacks.inversion.recurrence.PAIRS_AT_ONCE", 1)
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


@pytest.mark.slow(but=2)
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
    known = replace(knowledge(identity, FEW), query=turned, views=views(identity, 2))
    found = attack.run(known, Generator().manual_seed(0))
    assert torch.equal(found.images, run(attack, identity, None, FEW).images)


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
    first, again = run(attack, noisy_shuffled, None, FEW), run(attack, noisy_shuffled, None, FEW)
    assert torch.equal(first.images, again.images)
    assert first.curve == again.curve
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["intersect", "average", "as_released"])
def test_goes_on_after_a_kill_bit_for_bit(combine: Any) -> None:
    attack, killed = Adaptive(passes=2, combine=combine, epochs=2), Session(dies_after=1)
    with pytest.raises(Killed):
        run(attack, batch_shuffled, killed, FEW)
    resumed = run(attack, batch_shuffled, Session(state=killed.state), FEW)
    straight = run(attack, batch_shuffled, None, FEW)
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
    for count, words in ((0, "no view was recorded"), (5, "5 views are not a multiple of 2")):
        with pytest.raises(NotApplicable, match=words):
            Adaptive(passes=2, epochs=1).run(replace(knowledge(identity), views=seen[:count]), Generator())
    for strange, words in (
        (
            replace(seen[3], smashed=torch.rand(19, 4, 32)),
            r"one shape and number of messages, got \[20, 4, 32\], \[19",
        ),
        (replace(seen[3], messages=2), "number of messages"),
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
    with pytest.raises(ValueError, match="align belongs to combine=average, got combine=pool"):
        Adaptive(combine="pool", align=True)
