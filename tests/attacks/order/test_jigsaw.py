"""The jigsaw attack solves what can be solved, guesses where nothing is left, and says what it lacks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
import torch
from PIL import Image, ImageOps
from torch import Generator, Tensor

from privkit.attacks.base import AttackDiverged, NotApplicable, QueryResult, View, lacking
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.assembly import Frame, Puzzles, best_arrangement, starts
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.piece_network import SHARPNESS
from privkit.attacks.order.piece_solver import Solver, edge_ratios, log_odds
from privkit.attacks.patches import patchify
from privkit.attacks.scores.order import direct_accuracy, membership_accuracy, neighbor_accuracy
from tests.attacks.order.puzzles import (
    AUXILIARY,
    BATCH,
    MORE_VICTIMS,
    VICTIMS,
    Pixels,
    Projected,
    T,
    as_released,
    guess,
    pixels,
    projected,
    run,
    scene,
    score,
    score_over_seeds,
    several_messages,
    shuffled,
)
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import crops


def few_own(keep: float) -> tuple[list[View], Tensor, ImageObservation]:
    """A scene with own images enough for what is the same bit for bit, however well it guesses."""
    views, truth, knowledge = scene(keep=keep)
    return views, truth, replace(knowledge, auxiliary=AUXILIARY[:30])


def test_natural_pictures_in_pieces_of_28_pixels() -> None:
    folder = Path(skimage.__file__).parent / "data"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg", "ihc.png")
    shown = [np.asarray(ImageOps.fit(Image.open(folder / name).convert("RGB"), (224, 224))) for name in names]
    pieces = patchify(torch.from_numpy(np.stack(shown)).permute(0, 3, 1, 2).float() / 255, 28)
    order = torch.rand(len(names), 64, generator=Generator().manual_seed(1)).argsort(1)
    released = pieces.gather(1, order.unsqueeze(2).expand_as(pieces)).unflatten(2, (28, 28, 3))
    pairs = log_odds(SHARPNESS * edge_ratios(released)).double().numpy()
    puzzles = Puzzles(unary=np.zeros((len(names), 64, 64)), pairs=pairs, frame=Frame(rows=8, columns=8))
    at = best_arrangement(puzzles, starts(puzzles), 30, np.random.default_rng(0))
    accuracy = neighbor_accuracy(torch.from_numpy(at.argsort(1)), order, batch=1)
    assert accuracy.mean() >= 0.95, dict(zip(names, accuracy.tolist(), strict=True))


@pytest.mark.parametrize("pairs", ["learned", "edges"])
def test_wins_on_raw_tokens_behind_patch_shuffling(pairs: Any) -> None:
    views, truth, knowledge = scene()
    found = run(Jigsaw(pairs=pairs, epochs=8, kicks=40), views, knowledge)
    assert score(neighbor_accuracy, found, truth) > 0.9
    assert score(membership_accuracy, found, truth) == 1.0


@pytest.mark.slow
def test_a_public_factor_hides_no_order() -> None:
    """Unscaled, the share of tokens in the right image fell from .71 to .60 behind 1e-9."""
    views, _, knowledge = scene(keep=0.4)

    def behind(factor: float) -> Tensor:
        seen = replace(knowledge, views=views).seen_through(lambda one: replace(one, smashed=one.smashed * factor))
        return guess(Jigsaw(epochs=2, kicks=2).run(seen, Generator().manual_seed(0)))

    assert behind(2.0**-30).equal(behind(2.0**20))


def test_the_images_are_the_patches_at_their_guessed_places() -> None:
    views, _, knowledge = few_own(keep=0.4)
    found = run(Jigsaw(epochs=1, kicks=2), views, knowledge)
    tokens, source = views[1].smashed.flatten(0, 1), guess(found)[BATCH:].flatten()
    placed = torch.empty_like(tokens).index_copy(0, source, tokens).view(BATCH, T, -1)
    assert (pixels(found.images[BATCH:]) - placed).abs().max() < 1e-3


@pytest.mark.slow
def test_tokens_of_a_batch_go_home() -> None:
    views, truth, knowledge = scene(keep=0.4)
    attack = Jigsaw(epochs=8, kicks=40)
    assert score_over_seeds(membership_accuracy, attack, views, knowledge, truth) > as_released(truth) + 0.25
    assert score(neighbor_accuracy, run(attack, views, knowledge), truth) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("white", [False, True])
def test_tokens_go_home_when_several_passes_crossed(white: bool) -> None:
    """A quarter is kept, so that one pass shows little; sixteen show whose most tokens are, whatever the seed."""
    (views, truth, knowledge), draws = scene(projected, keep=0.25), Generator().manual_seed(10)
    for part in 15 * list(VICTIMS.split(BATCH)):
        views.append(View(round=len(views), smashed=shuffled(part, draws, projected, 0.25)[0]))
    knowledge = replace(knowledge, lower=Projected()) if white else knowledge
    attack = Jigsaw(epochs=2, kicks=2)
    sixteen = score_over_seeds(membership_accuracy, replace(attack, passes=16), views, knowledge, truth, seeds=2)
    one = score_over_seeds(membership_accuracy, attack, views[:2], knowledge, truth, seeds=2)
    assert sixteen > one + 0.1
    assert len(run(Jigsaw(epochs=0, kicks=0, passes=16), views, knowledge).images) == len(VICTIMS)


def test_is_at_chance_on_noise_and_refuses_noise_that_is_mixed() -> None:
    def noise(images: Tensor) -> Tensor:
        return torch.randn(len(images), T, 192, generator=Generator().manual_seed(int(images.sum())))

    views, truth, knowledge = scene(noise)
    found = run(Jigsaw(epochs=2, kicks=5), views, knowledge)
    assert score(direct_accuracy, found, truth) < 0.2
    assert score(neighbor_accuracy, found, truth) < 0.2
    views, _, knowledge = scene(noise, 0.4)
    with pytest.raises(NotApplicable, match="copies of an image gave different tokens"):
        run(Jigsaw(epochs=2, kicks=5), views, knowledge)


@pytest.mark.slow
def test_search_is_better_than_no_search() -> None:
    views, truth, knowledge = scene(projected, victims=MORE_VICTIMS)
    start, found = (run(Jigsaw(epochs=epochs, kicks=kicks), views, knowledge) for epochs, kicks in ((0, 0), (8, 20)))
    assert score(neighbor_accuracy, found, truth) > 0.02 + score(neighbor_accuracy, start, truth)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("keep", [0.4, 1.0])
def test_same_seed_same_bits_and_the_global_generator_is_left_alone(keep: float) -> None:
    views, _, knowledge = few_own(keep=keep)
    state = torch.random.get_rng_state()
    first, again = (run(Jigsaw(epochs=1, kicks=3), views, knowledge) for _ in range(2))
    assert torch.equal(guess(first), guess(again))
    assert torch.equal(first.images, again.images)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_every_place_of_a_message_is_filled_once(keep: float) -> None:
    views, _, knowledge = few_own(keep=keep)
    source = guess(run(Jigsaw(epochs=1, kicks=2), views, knowledge))
    places = source.view(2, -1).sort(1).values
    assert torch.equal(places, torch.arange(BATCH * T).expand(2, -1))


@pytest.mark.slow
def test_the_lower_segment_serves_as_well_as_a_query() -> None:
    views, truth, knowledge = scene(keep=0.6, victims=MORE_VICTIMS)
    white, most = replace(knowledge, query=None, lower=Pixels()), as_released(truth) + 0.13
    told = Jigsaw(keep=0.6, epochs=6, kicks=3)
    assert score_over_seeds(membership_accuracy, told, views, white, truth) > most
    both = replace(knowledge, lower=Pixels())  # the query then tells the share that is kept
    assert score_over_seeds(membership_accuracy, Jigsaw(epochs=6, kicks=3), views, both, truth, seeds=2) > most


@pytest.mark.slow
def test_messages_of_one_round_are_solved_apart() -> None:
    """Two clients' messages in one view, and in answers, are what two rounds of one message each are.

    The first message of a view gets the view's stream of random numbers from its start. It is solved bit for bit as in
    a round of its own, with networks that learned from answers of two messages, where the share that is kept is told
    (answers estimate it, and differ); each of the two comes first once.
    """
    views, _, knowledge = few_own(keep=0.4)
    attack, round_of_two = Jigsaw(keep=0.4, epochs=1, kicks=2), several_messages(knowledge, 2)
    for first, second in (views, views[::-1]):
        both = View(round=0, smashed=torch.cat([first.smashed, second.smashed]), messages=2)
        found, apart = run(attack, [both], round_of_two), run(attack, [first, second], knowledge)
        assert torch.equal(guess(found)[:BATCH], guess(apart)[:BATCH])
        assert torch.equal(found.images[:BATCH], apart.images[:BATCH])
        places = guess(found).view(2, -1).sort(1).values
        assert torch.equal(places, torch.arange(BATCH * T).expand(2, -1))
    with pytest.raises(NotApplicable, match="10 rows are not 3 messages"):
        run(attack, [replace(both, messages=3)], round_of_two)
    with pytest.raises(NotApplicable, match="needs at least 10 auxiliary images, got 9"):
        run(attack, [both], replace(round_of_two, auxiliary=AUXILIARY[:9]))


@pytest.mark.slow
def test_wins_on_several_messages_of_one_round() -> None:
    """The release itself shows whose four in five of the tokens are; the attack finds most of the others, and places.

    Six messages and two seeds: either figure then lies seven standard deviations above what is asked (20 seeds).
    """
    views, truth, knowledge = scene(keep=0.8, victims=MORE_VICTIMS)
    view = View(round=0, smashed=torch.cat([one.smashed for one in views]), messages=6)
    attack, observed = Jigsaw(epochs=8, kicks=5), several_messages(knowledge, 6)
    found = [attack.run(replace(observed, views=[view]), Generator().manual_seed(seed)) for seed in range(2)]
    assert sum(score(membership_accuracy, one, truth) for one in found) / 2 > as_released(truth) + 0.08
    assert sum(score(direct_accuracy, one, truth) for one in found) / 2 > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [5, 1, 2, 3, 4])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of each network, and one view solved: nothing is done again."""
    views, _, knowledge = few_own(keep=0.4)
    attack, killed = Jigsaw(epochs=2, kicks=3), Session(dies_after, at="save")
    with pytest.raises(Killed):
        attack.run(replace(knowledge, views=views), Generator().manual_seed(0), killed)
    straight = run(attack, views, knowledge)
    if dies_after >= 2:
        monkeypatch.setattr("privkit.attacks.order.jigsaw.piece_losses", lambda *_: pytest.fail("trained again"))
    if dies_after >= 4:
        monkeypatch.setattr("privkit.attacks.order.jigsaw.shuffled_losses", lambda *_: pytest.fail("trained again"))
    went_on = Session(state=killed.state)
    resumed = attack.run(replace(knowledge, views=views), Generator().manual_seed(0), went_on)
    assert torch.equal(resumed.images, straight.images)
    assert torch.equal(guess(resumed), guess(straight))
    assert [report[:2] for report in went_on.reports] == [(done, 6) for done in range(1 + dies_after, 7)]


@pytest.mark.slow
def test_the_kept_share_is_the_one_that_is_given_or_else_the_one_that_answers_show() -> None:
    """Before a network has learned anything, that share alone says whose a token is."""
    views, _, knowledge = scene(keep=0.4, victims=crops(100, seed=1))
    told, rows = Jigsaw(epochs=0, kicks=0, keep=0.95), torch.arange(BATCH).unsqueeze(1)

    def solver(attack: Jigsaw, seed: int = 0) -> Solver:
        return attack.learn(replace(knowledge, views=views), Generator().manual_seed(seed), Session())[0]

    assert solver(told).keep == 0.95
    shown = [solver(replace(told, keep=None), seed).keep for seed in range(3)]
    assert sum(shown) / 3 == pytest.approx(0.4, abs=0.1)
    solvers = [solver(replace(told, keep=keep)) for keep in (0.95, 0.0)]
    stay = [torch.stack([one.solve(view, 0) // T == rows for view in views]).float().mean() for one in solvers]
    assert stay[0] > 0.9
    assert stay[1] < 0.7  # the right answer is 0.4 and the share that chance brings back


def test_the_start_has_learned_nothing_and_searched_nothing() -> None:
    attack = Jigsaw(pairs="edges", keep=0.4, width=8)
    assert attack.mounting.start == replace(attack, epochs=0, kicks=0, read=100)


def test_says_what_it_lacks() -> None:
    views, _, knowledge = scene()
    assert lacking(Jigsaw(), replace(knowledge, auxiliary=None)) == ["auxiliary"]
    cases: list[tuple[Any, list[View], str]] = [
        ({"auxiliary": None}, views, "needs auxiliary"),
        ({"query": None}, views, "lower segment or a query"),
        ({"auxiliary": torch.rand(40, 1, 32, 32)}, views, "same shape"),
        ({"auxiliary": AUXILIARY[:9]}, views, "at least 10 auxiliary images, got 9"),
        ({"image_shape": (3, 30, 32)}, views, "same shape"),
        ({"lower": projected}, views, "but the release is"),
        ({}, [replace(views[0], mixed=2)], "mixture of several images"),
        ({}, [View(round=0, smashed=torch.rand(5, 32))], "tokens"),
        ({}, [View(round=0, smashed=torch.rand(5, 1, 9))], "at least 4 tokens"),
        ({}, [View(round=0, smashed=torch.rand(5, 1024, 9))], "at least 2 pixels"),
    ]
    for change, seen, sentence in cases:
        with pytest.raises(NotApplicable, match=sentence):
            run(Jigsaw(epochs=0, kicks=0), seen, replace(knowledge, **change))


def test_a_release_of_nan_is_refused() -> None:
    views, _, knowledge = scene(lambda images: pixels(images) * torch.nan)
    with pytest.raises(NotApplicable, match="NaN or infinity"):
        run(Jigsaw(epochs=1, kicks=0), views, knowledge)


def test_a_training_that_diverges_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "privkit.attacks.order.piece_network.piece_loss", lambda places, pairs, targets: places.sum() * torch.nan
    )
    views, _, knowledge = scene()
    with pytest.raises(AttackDiverged, match="the training loss is nan after epoch 1"):
        run(Jigsaw(epochs=1, kicks=0), views, knowledge)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pairs": "magic"}, "one of learned, joint, auto, edges"),
        ({"keep": 1.5}, "keep must be a finite number >= 0 and <= 1"),
        ({"epochs": -1}, "epochs"),
        ({"kicks": -1}, "kicks"),
        ({"width": 10}, "multiple of 4"),
    ],
)
def test_settings_are_checked(settings: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Jigsaw(**settings)


@pytest.mark.parametrize("with_lower", [False, True])
def test_what_comes_back_in_order_is_not_rearranged(with_lower: bool) -> None:
    """Own tokens tell that there is no shuffle; nothing is trained, and every patch is left where it is."""

    def query(images: Tensor, draws: Generator) -> QueryResult:
        members = torch.arange(len(images)).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=pixels(images)), members=members)

    knowledge = ImageObservation(
        image_shape=(AUXILIARY.shape[1], AUXILIARY.shape[2], AUXILIARY.shape[3]),
        batch_size=BATCH,
        auxiliary=AUXILIARY,
        query=query,
        lower=pixels if with_lower else None,  # type: ignore[arg-type]
    )
    view = View(round=0, smashed=pixels(AUXILIARY[:BATCH]))
    found = Jigsaw(epochs=3).run(replace(knowledge, views=[view]), Generator().manual_seed(0))
    assert found.permutation is not None
    assert torch.equal(found.permutation.source.flatten(), torch.arange(found.permutation.source.numel()))
    assert found.curve == ()
    torch.testing.assert_close(found.images, AUXILIARY[:BATCH], atol=1e-3, rtol=0)
