"""UnSplit knows an architecture and no weight; it learns what it can from the releases alone."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.known_lower import fresh, mixed_release
from privkit.attacks.inversion.unsplit import UnSplit
from privkit.domains.images.embedded import Digits
from tests.attacks.sessions import Killed, Session
from tests.small import digits

IMAGES = digits(600).x
VICTIMS, OTHERS = IMAGES[:20], IMAGES[20:]
FLOOR = (OTHERS.mean(0) - VICTIMS).square().mean().item()


class Placed(nn.Module):
    """A parameter that no module draws, a normalization with running statistics, and constants of the architecture."""

    centre: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.convolution = nn.Conv2d(1, 6, 3)
            self.place = nn.Parameter(torch.randn(6, 1, 1))
            self.norm = nn.BatchNorm2d(6)
            self.norm.running_mean = torch.rand(6)
        self.register_buffer("centre", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.convolution(x - self.centre)) + self.place)


def known(lower: nn.Module) -> ImageObservation:
    return ImageObservation(image_shape=(1, 8, 8), batch_size=10, lower=lower)


def views(lower: nn.Module) -> list[View]:
    with torch.no_grad():
        return [View(round=i, smashed=lower.eval()(part)) for i, part in enumerate(VICTIMS.split(10))]


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


def run(attack: UnSplit, lower: nn.Module, message: list[View] | None = None, session: Any = None) -> Reconstruction:
    return attack.run(replace(known(lower), views=message or views(lower)), Generator().manual_seed(0), session)


def test_no_weight_of_the_clients_is_used() -> None:
    """The same releases, another client's weights, permuted or not a number: the same bits."""
    lower = Placed(1)
    message, attack = views(lower), UnSplit(epochs=1)
    true = run(attack, lower, message)
    other, permuted, poisoned = Placed(2), Placed(1), Placed(1)
    with torch.no_grad():
        for parameter in permuted.parameters():
            parameter.copy_(parameter.flatten().roll(1).view_as(parameter))
        for parameter in poisoned.parameters():
            parameter.fill_(float("nan"))
        poisoned.norm.running_var.fill_(float("nan"))  # type: ignore[union-attr]
    for wrong in (other, permuted, poisoned):
        assert torch.equal(run(attack, wrong, message).images, true.images)
    assert not torch.equal(run(attack, lower, views(other)).images, true.images)


def test_fresh_weights_leave_the_original_and_the_global_generator_alone() -> None:
    lower, state = Placed(1), torch.random.get_rng_state()
    before = {name: value.clone() for name, value in lower.state_dict().items()}
    clone = fresh(lower, 0).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in lower.state_dict().items())
    assert not any(
        torch.equal(clone[name], before[name]) for name in ("convolution.weight", "place", "norm.running_mean")
    )
    assert torch.equal(clone["centre"], before["centre"])
    assert not torch.equal(fresh(lower, 1).state_dict()["place"], clone["place"])


def test_wins_where_the_architecture_has_no_weights() -> None:
    """The identity release: nothing is left to steal."""
    assert error(run(UnSplit(epochs=8, total_variation=0.0), nn.Flatten())) < 0.02 * FLOOR


def test_knows_nothing_of_pure_noise() -> None:
    noise = [View(round=0, smashed=torch.randn(20, 6, 6, 6, generator=Generator().manual_seed(1)))]
    assert error(run(UnSplit(epochs=4), Placed(1), noise)) > 0.97 * FLOOR


def test_the_clone_learns() -> None:
    curve = run(UnSplit(epochs=6), Placed(1)).curve
    assert all(late < early for early, late in pairwise(curve))
    assert curve[-1] < 0.8 * curve[0]


@pytest.mark.slow
def test_the_stolen_segment_releases_what_the_client_would_of_unseen_images() -> None:
    """Held against a fresh clone, over eight clients: releases alone fix a filter up to its sign, so that some fail."""
    unseen, agrees = OTHERS[:100], list[tuple[float, float]]()
    for seed in range(8):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            lower = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU())
        message, draws = views(lower), lambda seed=seed: Generator().manual_seed(100 + seed)
        guess, stolen = UnSplit(epochs=8).steal(replace(known(lower), views=message), draws())
        _, start = UnSplit(epochs=0).steal(replace(known(lower), views=message), draws())
        with torch.no_grad():
            table = torch.stack([net(unseen).flatten() for net in (lower, stolen, start)]).corrcoef()
        agrees.append((table[0, 1].item(), table[0, 2].item()))
    assert torch.equal(guess.images, UnSplit(epochs=8).run(replace(known(lower), views=message), draws()).images)
    after, before = np.mean(agrees, axis=0)
    assert after > before + 0.08, agrees
    assert sum(a > b for a, b in agrees) >= 6, agrees


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (UnSplit(), "40 alternations of 25 + 25 steps, where the authors take 1,000 of 100 + 100"),
        (UnSplit(epochs=1_000), "1,000 alternations of 25 + 25 steps"),
        (UnSplit(recipe="released", epochs=10), "10 alternations of 100 + 100 steps"),
        (UnSplit(recipe="released"), ""),
    ],
)
def test_it_says_what_falls_short_of_the_authors(attack: UnSplit, says: str) -> None:
    assert attack.mounting.short_of_published.startswith(says)
    assert bool(attack.mounting.short_of_published) == bool(says)


@pytest.mark.slow
def test_on_the_split_it_beats_its_start_and_the_released_recipe_stays_above_the_floor() -> None:
    """MNIST, a frozen random convolution to 8×12×12; a few alternations of the reduced recipe, one of the released."""
    images = digits(5000, Digits()).x[:4]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lower = nn.Sequential(nn.Conv2d(1, 8, 5), nn.MaxPool2d(2))
    with torch.no_grad():
        view = View(round=0, smashed=lower(images))
    knowledge = ImageObservation(image_shape=(1, 28, 28), batch_size=4, lower=lower)
    errors = {}
    for name, attack in {
        "start": UnSplit(epochs=0),
        "reduced": UnSplit(epochs=10),
        "released": UnSplit(recipe="released", epochs=1),
    }.items():
        guess = attack.run(replace(knowledge, views=[view]), Generator().manual_seed(0)).images
        errors[name] = (guess - images).square().mean().item()
    assert errors["reduced"] < 0.5 * errors["start"]
    assert errors["released"] > 0.0681  # the mean image of the 4,000 private ones


def test_mixed_releases_are_matched_through_public_weights() -> None:
    share = torch.rand(10, 1, 1, generator=Generator().manual_seed(1))
    share = torch.cat([share, 1 - share], 1)
    view = View(round=0, smashed=mixed_release(VICTIMS.flatten(1), 2, share), mixed=2, weights=share)
    guess = run(UnSplit(epochs=8, total_variation=0.0), nn.Flatten(), [view])
    assert guess.images.shape == VICTIMS.shape
    torch.testing.assert_close(mixed_release(guess.images.flatten(1), 2, share), view.smashed, atol=0.1, rtol=0)
    with pytest.raises(NotApplicable, match="hidden weights"):
        run(UnSplit(epochs=1), nn.Flatten(), [replace(view, weights=None)])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("lower", [Placed(1), nn.Flatten()], ids=["weights", "no weights"])
def test_goes_on_after_a_kill_bit_for_bit(lower: nn.Module) -> None:
    attack, killed = UnSplit(epochs=3, parallel=7), Session(dies_after=1)
    with pytest.raises(Killed):
        run(attack, lower, session=killed)
    torch.rand(5)
    resumed, straight = run(attack, lower, session=Session(state=killed.state)), run(attack, lower)
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve


def test_not_applicable() -> None:
    lower = Placed(1)
    with pytest.raises(NotApplicable, match="needs lower"):
        UnSplit().run(replace(known(lower), lower=None, views=views(lower)), Generator())
    with pytest.raises(NotApplicable, match="was released"):
        run(UnSplit(), lower, [View(round=0, smashed=torch.rand(2, 6, 5, 5))])


def test_a_release_that_is_no_number_is_refused_and_one_too_large_ends_the_attack() -> None:
    with pytest.raises(NotApplicable, match="the release holds NaN or infinity"):
        run(UnSplit(epochs=2), nn.Flatten(), [View(round=0, smashed=torch.full((2, 64), float("nan")))])
    with pytest.raises(AttackDiverged, match="the objective is nan after epoch 1"):
        run(UnSplit(epochs=2), nn.Flatten(), [View(round=0, smashed=torch.rand(2, 64) * 1e38)])


def test_bad_specifications() -> None:
    for bad in (
        {"recipe": "weak"},
        {"epochs": -1},
        {"learning_rate": 0.0},
        {"total_variation": -1.0},
        {"l2": float("nan")},
        {"parallel": 0},
    ):
        with pytest.raises(ValueError, match="must be"):
            UnSplit(**bad)  # type: ignore[arg-type]
