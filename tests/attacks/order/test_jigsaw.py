"""The jigsaw attack solves what can be solved, guesses where nothing is left, and says what it lacks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Generator, Tensor

from privkit.attacks.assign import by_capacity, sinkhorn
from privkit.attacks.base import AttackDiverged, NotApplicable, QueryResult, View, lacking
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.order.assembly import Frame, Puzzles, assemble, assign
from privkit.attacks.order.compatibility import SHARPNESS, edge_ratios, gradient_distance, log_odds
from privkit.attacks.order.coordinates import coordinates, starts
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.own_tokens import kept_share
from privkit.attacks.order.token_contents import match_own_tokens
from privkit.attacks.patches import patchify
from privkit.attacks.scores.order import direct_accuracy, kinds_of, membership_accuracy, neighbor_accuracy
from tests.attacks.sessions import Killed, Session

BATCH = 5
T = 16


def crops(count: int, seed: int) -> Tensor:
    """Color crops of 32×32 pixels from three bundled pictures."""
    folder = Path(skimage.__file__).parent / "data"
    rng, found = np.random.default_rng(seed), []
    for name in ("chelsea.png", "coffee.png", "astronaut.png"):
        picture = np.asarray(ImageOps.fit(Image.open(folder / name).convert("RGB"), (160, 160)))
        for top, left in rng.integers(0, 128, (-(-count // 3), 2)):
            found.append(picture[top : top + 32, left : left + 32])
    return torch.from_numpy(np.stack(found)[rng.permutation(len(found))[:count]]).permute(0, 3, 1, 2).float() / 255


IMAGES = crops(120, 0)
VICTIMS, AUXILIARY = IMAGES[:10], IMAGES[10:]
WEIGHT = torch.randn(192, 64, generator=Generator().manual_seed(3)) / 8


def pixels(images: Tensor) -> Tensor:
    return patchify(images, 8)


class Pixels(torch.nn.Module):
    """The identity as a lower segment."""

    def forward(self, images: Tensor) -> Tensor:
        return pixels(images)


def projected(images: Tensor) -> Tensor:
    """Fewer numbers than pixels: the patch can only be guessed at."""
    return pixels(images) @ WEIGHT


def shuffled(images: Tensor, draws: Generator, lower: Any = pixels, keep: float = 1.0) -> tuple[Tensor, Tensor]:
    """One message under patch (keep=1) or batch shuffling, and where its tokens came from."""
    b, kept = len(images), int(keep * T)
    own = torch.rand(b, T, generator=draws).argsort(1) + T * torch.arange(b).unsqueeze(1)
    pool = own[:, kept:].flatten()
    dealt = pool[torch.randperm(len(pool), generator=draws)].view(b, -1)
    source = torch.cat([own[:, :kept], dealt], 1)
    source = source.gather(1, torch.rand(b, T, generator=draws).argsort(1))
    return lower(images).flatten(0, 1)[source], source


def scene(lower: Any = pixels, keep: float = 1.0) -> tuple[list[View], Tensor, ImageObservation]:
    draws = Generator().manual_seed(9)
    sent = [shuffled(part, draws, lower, keep) for part in VICTIMS.split(BATCH)]
    views = [View(round=i, smashed=smashed) for i, (smashed, _) in enumerate(sent)]

    def query(images: Tensor, draws: Generator) -> QueryResult:
        view = View(round=0, smashed=shuffled(images, draws, lower, keep)[0])
        return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))

    knowledge = ImageObservation(image_shape=(3, 32, 32), batch_size=BATCH, auxiliary=AUXILIARY, query=query)
    return views, torch.cat([source for _, source in sent]), knowledge


def run(attack: Jigsaw, views: list[View], knowledge: ImageObservation) -> Reconstruction:
    return attack.run(replace(knowledge, views=views), Generator().manual_seed(0))


def guess(found: Reconstruction) -> Tensor:
    assert found.permutation is not None
    return found.permutation.source


def score(measure: Any, found: Reconstruction, truth: Tensor) -> float:
    return float(measure(guess(found), truth, batch=BATCH).mean())


def score_over_seeds(
    measure: Any, attack: Jigsaw, views: list[View], knowledge: ImageObservation, truth: Tensor
) -> float:
    """Ten images are few: networks of other seeds differ by a tenth and more."""
    found = [attack.run(replace(knowledge, views=views), Generator().manual_seed(seed)) for seed in range(3)]
    return sum(score(measure, one, truth) for one in found) / 3


def test_natural_pictures_in_pieces_of_28_pixels() -> None:
    folder = Path(skimage.__file__).parent / "data"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg", "ihc.png")
    shown = [np.asarray(ImageOps.fit(Image.open(folder / name).convert("RGB"), (224, 224))) for name in names]
    pieces = patchify(torch.from_numpy(np.stack(shown)).permute(0, 3, 1, 2).float() / 255, 28)
    order = torch.rand(len(names), 64, generator=Generator().manual_seed(1)).argsort(1)
    released = pieces.gather(1, order.unsqueeze(2).expand_as(pieces)).unflatten(2, (28, 28, 3))
    pairs = log_odds(SHARPNESS * edge_ratios(released)).double().numpy()
    puzzles = Puzzles(unary=np.zeros((len(names), 64, 64)), pairs=pairs, frame=Frame(rows=8, columns=8))
    at = assemble(puzzles, starts(puzzles), 30, np.random.default_rng(0))
    accuracy = neighbor_accuracy(torch.from_numpy(at.argsort(1)), order, batch=1)
    assert accuracy.mean() >= 0.95, dict(zip(names, accuracy.tolist(), strict=True))


@pytest.mark.parametrize("pairs", ["learned", "edges"])
def test_wins_on_raw_tokens_behind_patch_shuffling(pairs: Any) -> None:
    views, truth, knowledge = scene()
    found = run(Jigsaw(pairs=pairs, epochs=8, kicks=40), views, knowledge)
    assert score(neighbor_accuracy, found, truth) > 0.9
    assert score(membership_accuracy, found, truth) == 1.0


def test_the_images_are_the_patches_at_their_guessed_places() -> None:
    views, _, knowledge = scene(keep=0.4)
    found = run(Jigsaw(epochs=1, kicks=2), views, knowledge)
    tokens, source = views[1].smashed.flatten(0, 1), guess(found)[BATCH:].flatten()
    placed = torch.empty_like(tokens).index_copy(0, source, tokens).view(BATCH, T, -1)
    assert (pixels(found.images[BATCH:]) - placed).abs().max() < 1e-3


def test_tokens_of_a_batch_go_home() -> None:
    views, truth, knowledge = scene(keep=0.4)
    released = float((truth // T == (torch.arange(10) % BATCH).unsqueeze(1)).double().mean())
    attack = Jigsaw(epochs=8, kicks=40)
    assert score_over_seeds(membership_accuracy, attack, views, knowledge, truth) > released + 0.25
    assert score(neighbor_accuracy, run(attack, views, knowledge), truth) > 0.5


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_is_at_chance_on_noise(keep: float) -> None:
    def noise(images: Tensor) -> Tensor:
        return torch.randn(len(images), T, 192, generator=Generator().manual_seed(int(images.sum())))

    views, truth, knowledge = scene(noise, keep)
    found = run(Jigsaw(epochs=2, kicks=5), views, knowledge)
    assert score(direct_accuracy, found, truth) < 0.2
    assert score(neighbor_accuracy, found, truth) < 0.2


def test_search_is_better_than_no_search() -> None:
    views, truth, knowledge = scene(projected)
    start = run(Jigsaw(epochs=0, kicks=0), views, knowledge)
    assert score(neighbor_accuracy, run(Jigsaw(epochs=8, kicks=60), views, knowledge), truth) > 0.02 + score(
        neighbor_accuracy, start, truth
    )


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_same_seed_same_bits_and_the_global_generator_is_left_alone(keep: float) -> None:
    views, _, knowledge = scene(keep=keep)
    state = torch.random.get_rng_state()
    first, again = (run(Jigsaw(epochs=1, kicks=3), views, knowledge) for _ in range(2))
    assert torch.equal(guess(first), guess(again))
    assert torch.equal(first.images, again.images)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_every_place_of_a_message_is_filled_once(keep: float) -> None:
    views, _, knowledge = scene(keep=keep)
    source = guess(run(Jigsaw(epochs=1, kicks=2), views, knowledge))
    places = source.view(2, -1).sort(1).values
    assert torch.equal(places, torch.arange(BATCH * T).expand(2, -1))


def test_the_lower_segment_serves_as_well_as_a_query() -> None:
    views, truth, knowledge = scene(keep=0.4)
    white = replace(knowledge, query=None, lower=Pixels())
    told = Jigsaw(keep=0.4, epochs=6, kicks=10)
    assert score_over_seeds(membership_accuracy, told, views, white, truth) > 0.65
    both = replace(knowledge, lower=Pixels())  # the query then tells the share that is kept
    assert score(membership_accuracy, run(Jigsaw(epochs=12, kicks=20), views, both), truth) > 0.65


def test_messages_of_one_round_are_solved_apart() -> None:
    """Two clients' messages in one view, and in answers, are what two rounds of one message each are."""
    views, truth, knowledge = scene(keep=0.4)
    assert knowledge.query is not None
    ask = knowledge.query

    def query(images: Tensor, draws: Generator) -> QueryResult:
        parts = [ask(part, draws).view.smashed for part in images.split(BATCH)]
        view = View(round=0, smashed=torch.cat(parts), messages=2)
        return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))

    both = View(round=0, smashed=torch.cat([view.smashed for view in views]), messages=2)
    attack, round_of_two = Jigsaw(epochs=4, kicks=5), replace(knowledge, batch_size=2 * BATCH, query=query)
    found = run(attack, [both], round_of_two)
    places = guess(found).view(2, -1).sort(1).values
    assert torch.equal(places, torch.arange(BATCH * T).expand(2, -1))
    assert score(membership_accuracy, found, truth) > 0.6
    longer = Jigsaw(epochs=8, kicks=20)
    assert score_over_seeds(direct_accuracy, longer, [both], round_of_two, truth) > 0.2
    with pytest.raises(NotApplicable, match="10 rows are no 3 messages"):
        run(attack, [replace(both, messages=3)], round_of_two)
    with pytest.raises(NotApplicable, match="needs at least 10 auxiliary images, got 9"):
        run(attack, [both], replace(round_of_two, auxiliary=AUXILIARY[:9]))


@pytest.mark.parametrize("dies_after", [1, 2, 3, 4, 5])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of each network, and one view solved: nothing is done again."""
    views, _, knowledge = scene(keep=0.4)
    attack, killed = Jigsaw(epochs=2, kicks=3), Session(dies_after, at="save")
    with pytest.raises(Killed):
        attack.run(replace(knowledge, views=views), Generator().manual_seed(0), killed)
    straight = run(attack, views, knowledge)
    if dies_after >= 2:
        monkeypatch.setattr("privkit.attacks.order.jigsaw.piece_losses", lambda *_: pytest.fail("trained again"))
    if dies_after >= 4:
        monkeypatch.setattr("privkit.attacks.order.jigsaw.member_losses", lambda *_: pytest.fail("trained again"))
    went_on = Session(state=killed.state)
    resumed = attack.run(replace(knowledge, views=views), Generator().manual_seed(0), went_on)
    assert torch.equal(resumed.images, straight.images)
    assert torch.equal(guess(resumed), guess(straight))
    assert went_on.reports == [(done, 6) for done in range(1 + dies_after, 7)]


def test_the_start_has_learned_nothing_and_searched_nothing() -> None:
    attack = Jigsaw(pairs="edges", keep=0.4, width=8)
    assert attack.mounting.start == replace(attack, epochs=0, kicks=0)


def test_what_own_tokens_show_does_not_depend_on_whether_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the ridge regression and the matching of own tokens on how much is looked at at once."""
    views, _, knowledge = scene(projected, keep=0.4)
    attack = Jigsaw(epochs=1, kicks=2)
    whole = run(attack, views, knowledge)
    monkeypatch.setattr("privkit.attacks.order.piece_solver.TABLE_NUMBERS", 0)
    monkeypatch.setattr("privkit.attacks.order.token_contents.NUMBERS_AT_ONCE", 1_000)
    part = run(attack, views, knowledge)
    assert (guess(part) == guess(whole)).double().mean() > 0.9
    same = (guess(part) == guess(whole)).view(2, -1).all(1).repeat_interleave(BATCH)
    torch.testing.assert_close(part.images[same], whole.images[same], rtol=1e-3, atol=1e-3)


def test_holds_no_more_own_tokens_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    views, _, knowledge = scene()
    monkeypatch.setattr("privkit.attacks.order.own_tokens.OWN_NUMBERS", 50 * T * (192 + 192))
    few, all_ = (
        run(Jigsaw(epochs=1, kicks=1), views, replace(knowledge, auxiliary=x)) for x in (AUXILIARY[:50], AUXILIARY)
    )
    assert torch.equal(few.images, all_.images)
    monkeypatch.setattr("privkit.attacks.order.own_tokens.MATCHED_TOKENS", BATCH * T - 1)
    with pytest.raises(NotApplicable, match="may be 79, but a message has 80"):
        run(Jigsaw(epochs=0), views, knowledge)


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_tokens_that_are_all_alike_do_not_look_mixed(keep: float) -> None:
    """Half of each image's patches are black: only the others can tell whether tokens leave their rows."""
    dark = torch.rand(110, 1, 4, 4, generator=Generator().manual_seed(5)) < 0.5
    images, found = AUXILIARY * dark.repeat_interleave(8, 2).repeat_interleave(8, 3), []
    for seed in range(4):
        draws = Generator().manual_seed(seed)
        released = torch.stack([shuffled(part, draws, pixels, keep)[0] for part in images.split(BATCH)])
        _, share, _ = match_own_tokens(released, pixels(images).unflatten(0, (-1, BATCH)))
        found.append(kept_share(share, BATCH))
    assert sum(found) / 4 == pytest.approx(int(keep * T) / T, abs=0.05)


@pytest.mark.parametrize(("keep", "lower"), [(1.0, pixels), (0.4, pixels), (0.4, projected)])
def test_own_tokens_are_found_again(keep: float, lower: Any) -> None:
    draws = Generator().manual_seed(4)
    messages = AUXILIARY.split(BATCH)
    released = torch.stack([shuffled(part, draws, lower, keep)[0] for part in messages])
    own, share, _ = match_own_tokens(released, pixels(AUXILIARY).unflatten(0, (-1, BATCH)))
    same = (own - lower(AUXILIARY).unflatten(0, (-1, BATCH))).abs().amax(3) < 1e-4
    assert same.double().mean() > 0.97
    assert kept_share(share, BATCH) == pytest.approx(int(keep * T) / T, abs=0.05)


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
        "privkit.attacks.order.piece_training.piece_loss", lambda places, pairs: places.sum() * torch.nan
    )
    views, _, knowledge = scene()
    with pytest.raises(AttackDiverged, match="the training loss is nan after epoch 1"):
        run(Jigsaw(epochs=1, kicks=0), views, knowledge)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pairs": "magic"}, "learned or edges"),
        ({"keep": 1.5}, "keep must lie"),
        ({"epochs": -1}, "epochs"),
        ({"kicks": -1}, "kicks"),
        ({"width": 10}, "multiple of 4"),
    ],
)
def test_settings_are_checked(settings: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Jigsaw(**settings)


def brute_neighbors(guessed: list[int], truth: list[int], side: int) -> float:
    """Each true pair of one picture, looked up by hand."""
    hits = 0
    for a, place in enumerate(truth):
        for b, other in enumerate(truth):
            for step in (1, side):
                pair = other - place == step and (step == side or place % side < side - 1)
                kept = guessed[b] - guessed[a] == step and (step == side or guessed[a] % side < side - 1)
                hits += pair and kept
    return hits / (2 * side * (side - 1))


@given(st.permutations(range(9)), st.permutations(range(9)))
@settings(max_examples=50, deadline=None)
def test_accuracies_against_a_count_by_hand(guessed: list[int], truth: list[int]) -> None:
    one, two = torch.tensor([guessed]), torch.tensor([truth])
    assert neighbor_accuracy(one, two, batch=1).item() == pytest.approx(brute_neighbors(guessed, truth, 3))
    assert direct_accuracy(one, two, batch=1).item() == pytest.approx(np.mean(np.equal(guessed, truth)))
    assert membership_accuracy(one, two, batch=1).item() == 1


def test_equal_pieces_are_interchangeable_and_others_are_not() -> None:
    truth = torch.arange(18).view(2, 9)
    swapped = truth.clone()
    swapped[0, 0], swapped[1, 4] = 13, 0  # the first picture's corner against the second one's middle
    tokens = torch.arange(18.0).view(2, 9, 1)
    tokens[1, 4] = tokens[0, 0]
    kinds = kinds_of(tokens, 2)
    for measure in (direct_accuracy, neighbor_accuracy, membership_accuracy):
        assert measure(swapped, truth, batch=2).max() < 1
        assert measure(swapped, truth, batch=2, kinds=kinds).tolist() == [1, 1]
        assert measure(swapped, truth, batch=2, kinds=torch.arange(18).view(2, 9)).max() < 1


def test_accuracies_refuse_what_is_no_arrangement() -> None:
    truth = torch.arange(18).view(2, 9)
    with pytest.raises(ValueError, match="exactly once"):
        direct_accuracy(torch.zeros_like(truth), truth, batch=2)
    with pytest.raises(ValueError, match="one shape"):
        direct_accuracy(truth[:1], truth, batch=2)
    with pytest.raises(ValueError, match="square grid"):
        neighbor_accuracy(truth.view(3, 6), truth.view(3, 6), batch=3)
    with pytest.raises(ValueError, match="tolerance"):
        kinds_of(torch.zeros(1, 1, 1), 1, tolerance=-1.0)


def test_kinds_within_a_tolerance() -> None:
    tokens = torch.tensor([[[1.0], [1.001], [2.0]]])
    assert kinds_of(tokens, 1).unique().numel() == 3
    assert kinds_of(tokens, 1, tolerance=0.1).unique().numel() == 2


def test_gradient_distance_against_the_definition() -> None:
    pieces = torch.rand(1, 3, 4, 4, 3, generator=Generator().manual_seed(0))
    found = gradient_distance(pieces)[0]
    a, b = pieces[0, 0].double(), pieces[0, 2].double()
    total = 0.0
    for left, right in ((a, b), (b.flip(1), a.flip(1))):
        inside = left[:, -1] - left[:, -2]
        covariance = torch.cov(inside.T) + torch.eye(3) / 255**2
        gap = right[:, 0] - left[:, -1] - inside.mean(0)
        total += float(torch.einsum("rc,cd,rd->", gap, torch.linalg.inv(covariance), gap))
    assert found[0, 2].item() == pytest.approx(total, rel=1e-3)


def ideal(side: int, pictures: int = 1) -> tuple[Puzzles, np.ndarray]:
    """A puzzle whose true pairs score 1 and all others −1."""
    frame = Frame(rows=side, columns=side, pictures=pictures)
    truth = np.random.default_rng(2).permutation(frame.places)
    pairs = np.full((1, 2, frame.places, frame.places), -1.0)
    for direction, near in ((0, frame.neighbors[1]), (1, frame.neighbors[3])):
        places = np.flatnonzero(near < frame.places)
        pairs[0, direction, truth[places], truth[near[places]]] = 1.0
    return Puzzles(unary=np.zeros((1, frame.places, frame.places)), pairs=pairs, frame=frame), truth


@pytest.mark.parametrize("side", [2, 5, 14])
def test_a_puzzle_without_doubt_is_solved_from_its_coordinates(side: int) -> None:
    puzzles, truth = ideal(side)
    assert (assemble(puzzles, starts(puzzles), 0, np.random.default_rng(0))[0] == truth).all()
    found = coordinates(puzzles.pairs, power=1, mutual=True)[0][truth]
    assert np.allclose(found[1] - found[0], [1, 0], atol=0.05)


def test_kicks_never_lower_the_score_and_lead_out_of_a_bad_start() -> None:
    puzzles, _ = ideal(5)
    scores = []
    for kicks in (0, 20, 200):
        at = assemble(puzzles, [np.arange(25)[None]], kicks, np.random.default_rng(0))
        scores.append(puzzles.score(at)[0])
    assert scores[0] < scores[1] <= scores[2] == 40


def test_score_counts_each_pair_once() -> None:
    puzzles, truth = ideal(3, pictures=2)
    assert puzzles.score(truth[None]).item() == 24  # 12 pairs a picture, none across pictures


def test_the_best_unary_is_found() -> None:
    unary = np.zeros((1, 3, 3))
    unary[0, [2, 0, 1], [0, 1, 2]] = 1
    assert assign(unary).tolist() == [[2, 0, 1]]


def test_images_take_as_many_tokens_as_they_can_hold() -> None:
    logits = torch.randn(40, 4, generator=Generator().manual_seed(0))
    logits[:, 0] += 5
    taken = by_capacity(logits, 10)
    assert torch.equal(taken.flatten().sort().values, torch.arange(40))
    chances = sinkhorn(logits.T, 20, 10).T.exp()
    assert torch.allclose(chances.sum(1), torch.ones(40), atol=1e-4)
    assert torch.allclose(chances.sum(0), torch.full((4,), 10.0), atol=0.5)


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
