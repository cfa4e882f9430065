"""The white box wins where it must, fails where it must, and orders, averages, separates and resumes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.domains.images.embedded import Digits
from tests.attacks.inversion.cells import (
    FLOOR,
    QUICK,
    VICTIMS,
    Cells,
    Defend,
    convolution,
    drawn,
    error,
    known,
    noisy,
    plain,
    run,
    shuffled,
    views,
)
from tests.attacks.sessions import Killed, Session
from tests.small import digits


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "lower",
    [Cells(), nn.Flatten(), convolution(), drawn(nn.Flatten, lambda: nn.Linear(64, 80))],
    ids=["tokens", "identity", "maps", "vectors"],
)
def test_wins_on_every_form_of_release(lower: nn.Module) -> None:
    result = run(WhiteBox(), lower)
    assert error(result) < 0.02 * FLOOR


def test_knows_nothing_of_pure_noise() -> None:
    def noise(smashed: Tensor, draws: Generator) -> Tensor:
        return torch.randn(smashed.shape, generator=draws)

    assert error(run(WhiteBox(), nn.Flatten(), noise)) > 0.97 * FLOOR


@pytest.mark.slow
@pytest.mark.parametrize("start", ["learned", "mean", "grey", "zero"])
def test_beats_its_own_start(start: Any) -> None:
    lower = drawn(lambda: nn.Conv2d(1, 8, 3), lambda: nn.MaxPool2d(2))
    attack = WhiteBox(epochs=6, start=start)
    assert error(run(attack, lower)) < 0.8 * error(run(replace(attack, epochs=0), lower))


def test_same_seed_same_bits_whatever_the_global_generator() -> None:
    attack = WhiteBox(epochs=1, restarts=2)
    state = torch.random.get_rng_state()
    first = run(attack, Cells(), shuffled)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    again = run(attack, Cells(), shuffled)
    assert torch.equal(first.images, again.images)
    assert first.curve == again.curve


def test_the_client_is_left_as_it_was() -> None:
    lower = drawn(lambda: nn.Conv2d(1, 4, 3), lambda: nn.BatchNorm2d(4)).train()
    message = [View(round=0, smashed=torch.rand(3, 4, 6, 6))]
    before = [value.clone() for value in lower.state_dict().values()]
    QUICK.run(replace(known(lower, None), views=message), Generator())
    assert lower.training
    assert all(p.requires_grad and p.grad is None for p in lower.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, lower.state_dict().values(), strict=True))


def test_victims_do_not_help_each_other() -> None:
    """Rows are independent: how many are optimized at a time changes nothing but rounding."""
    lower = Cells()
    exact = replace(QUICK, total_variation=0.0)  # the kinks of total variation blow rounding up
    together, apart = run(exact, lower), run(replace(exact, parallel=7), lower)
    torch.testing.assert_close(together.images, apart.images, atol=1e-4, rtol=0)


def test_restarts_keep_the_smallest_objective() -> None:
    """A kinked segment has many minima; of four starts the best explains at least as much as the first alone."""
    lower = drawn(lambda: nn.Conv2d(1, 3, 3), nn.ReLU, lambda: nn.MaxPool2d(2))
    with torch.no_grad():
        smashed = lower(VICTIMS)
    knowledge = known(lower, None, None)
    unexplained = []
    for restarts in (1, 4):
        attack = WhiteBox(epochs=1, restarts=restarts, total_variation=0.0)
        guess = attack.run(
            replace(knowledge, views=[View(round=0, smashed=smashed)]), Generator().manual_seed(0)
        ).images
        with torch.no_grad():
            unexplained.append((lower(guess) - smashed).square().flatten(1).mean(1))
    assert (unexplained[1] <= unexplained[0] + 1e-6).all()
    assert unexplained[1].mean() < 0.9 * unexplained[0].mean()


def drowned(smashed: Tensor, draws: Generator) -> Tensor:
    return smashed + 3 * torch.randn(smashed.shape, generator=draws)


@pytest.mark.parametrize(("defend", "smooth"), [(plain, {0.003, 0.03}), (drowned, {1.0, 3.0})])
def test_priors_are_light_for_exact_releases_and_heavy_for_drowned_ones(defend: Defend, smooth: set[float]) -> None:
    saved = Session()
    run(WhiteBox(epochs=1), nn.Flatten(), defend, saved)
    assert saved.state is not None
    assert saved.state["chosen"][1] in smooth


@pytest.mark.slow
def test_priors_are_chosen_by_attacking_ones_own_images() -> None:
    lower = convolution()
    saved = Session()
    chosen = run(WhiteBox(), lower, noisy, saved)
    assert saved.state is not None
    assert saved.state["chosen"][1:] != [0.1, 0.0]
    assert error(chosen) < 0.9 * error(run(WhiteBox(total_variation=0.1, l2=0.0), lower, noisy))


class Folded(nn.Module):
    """Many images explain its release nearly as well as the right one."""

    def forward(self, numbers: Tensor) -> Tensor:
        return (18 * numbers).cos()


@pytest.mark.slow
def test_stays_near_its_learned_start_where_wrong_images_explain_the_release() -> None:
    lower = drawn(nn.Flatten, lambda: nn.Linear(64, 80), Folded)
    found = error(run(WhiteBox(), lower))
    assert found < 1.1 * error(run(WhiteBox(epochs=0), lower))
    assert found < 0.93 * min(error(run(WhiteBox(l2=weight), lower)) for weight in (0.0, 0.3))


@pytest.mark.parametrize("order", ["known", "shuffled"])
def test_rounds_of_the_same_victims_are_averaged(order: Any) -> None:
    def defend(smashed: Tensor, draws: Generator) -> Tensor:
        sent = noisy(smashed, draws)
        return sent if order == "known" else shuffled(sent, draws)

    lower, attack = Cells(), WhiteBox(epochs=2, order=order, total_variation=0.1, l2=0.3)
    rounds = views(lower, defend, rounds=8)
    one = attack.run(replace(known(lower, defend), views=rounds[:1]), Generator().manual_seed(0))
    eight = replace(attack, passes=8).run(replace(known(lower, defend), views=rounds), Generator().manual_seed(0))
    assert len(eight.images) == len(VICTIMS)
    assert error(eight) < 0.9 * error(one)


@pytest.mark.slow
def test_the_released_recipe_stays_above_the_floor_on_the_split() -> None:
    """MNIST, a frozen random convolution to 8×12×12: known client, 200 steps of each recipe."""
    images = digits(5000, Digits()).x
    victims, auxiliary = images[:8], images[4000:]
    lower = drawn(lambda: nn.Conv2d(1, 8, 5), lambda: nn.MaxPool2d(2))
    with torch.no_grad():
        view = View(round=0, smashed=lower(victims))
    assert view.smashed.shape == (8, 8, 12, 12)
    knowledge = ImageObservation(image_shape=(1, 28, 28), batch_size=8, auxiliary=auxiliary, lower=lower)
    errors = {}
    for recipe in ("strong", "released"):
        attack = WhiteBox(recipe=recipe, epochs=2)  # type: ignore[arg-type]
        guess = attack.run(replace(knowledge, views=[view]), Generator().manual_seed(0)).images
        errors[recipe] = (guess - victims).square().mean().item()
    assert errors["strong"] < 0.002  # the floor, the mean image of the 4,000, is 0.0681
    assert errors["released"] > 0.0681


@pytest.mark.slow
@pytest.mark.parametrize(("dies_after", "order"), [(3, "auto"), (1, "auto"), (2, "shuffled"), (4, "known")])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int, order: Any) -> None:
    attack = WhiteBox(epochs=2, parallel=12, restarts=2, total_variation=0.1, l2=0.0, order=order)
    lower, killed = Cells(), Session(dies_after=dies_after)
    with pytest.raises(Killed):
        run(attack, lower, shuffled, killed)
    went_on = Session(state=killed.state)
    resumed, straight = run(attack, lower, shuffled, went_on), run(attack, lower, shuffled)
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve
    assert [report[:2] for report in went_on.reports] == [(done, 4) for done in range(dies_after + 1, 5)]


def test_not_applicable() -> None:
    lower = Cells()
    cases: list[tuple[str, WhiteBox, list[View], ImageObservation]] = [
        ("needs lower", WhiteBox(), views(lower), replace(known(lower), lower=None)),
        ("was released", WhiteBox(), [View(round=0, smashed=torch.rand(3, 9, 4))], known(lower)),
        ("same shape", WhiteBox(), views(lower), known(lower, None, torch.rand(30, 1, 9, 9))),
        ("cannot read images", WhiteBox(), views(lower), known(nn.Linear(7, 4), None)),
        ("nothing to attack", WhiteBox(), [View(round=0, smashed=torch.zeros(3, 16, 0))], known(lower)),
        ("is for tokens", WhiteBox(order="shuffled"), views(nn.Flatten()), known(nn.Flatten())),
    ]
    for match, attack, message, knowledge in cases:
        with pytest.raises(NotApplicable, match=match):
            attack.run(replace(knowledge, views=message), Generator())


def test_stops_where_the_objective_is_no_number() -> None:
    class Exploding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) * 1e30

    view = View(round=0, smashed=torch.rand(2, 64))
    with pytest.raises(AttackDiverged, match="the objective is nan after epoch 1"):
        WhiteBox(epochs=2).run(replace(known(Exploding(), None), views=[view]), Generator())


@pytest.mark.parametrize("order", ["known", "shuffled", "batch"])
def test_refuses_a_release_that_is_no_number(order: Any) -> None:
    view = View(round=0, smashed=torch.full((2, 16, 4), float("nan")))
    with pytest.raises(NotApplicable, match="NaN or infinity"):
        WhiteBox(epochs=2, order=order).run(replace(known(Cells(), None), views=[view]), Generator())


def test_bad_specifications() -> None:
    for bad in (
        {"recipe": "weak"},
        {"epochs": -1},
        {"start": "noise"},
        {"bounds": "box"},
        {"order": "sorted"},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"total_variation": -1.0},
        {"l2": float("inf")},
        {"temperature": -1.0},
        {"restarts": 0},
        {"parallel": 0},
    ):
        with pytest.raises(ValueError, match="must be"):
            WhiteBox(**bad)  # type: ignore[arg-type]


def test_output_lies_in_the_unit_range() -> None:
    for bounds in ("sigmoid", "project", "none"):
        low, high = run(replace(QUICK, bounds=bounds), Cells(), noisy).images.aminmax()  # type: ignore[arg-type]
        assert low >= 0
        assert high <= 1
