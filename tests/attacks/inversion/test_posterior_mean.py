"""The posterior mean reads what noise leaves, and nothing where it leaves nothing."""

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, View, given
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.goals.reconstruct_controls import controls
from privkit.attacks.inversion import posterior_mean
from privkit.attacks.inversion.posterior_mean import PosteriorMean
from privkit.attacks.scores import nearest
from tests.attacks.sessions import Killed, Session
from tests.small import SHAPE, digits

IMAGES = digits(1_300).x
OWN, PRIVATE, BATCH = IMAGES[:1_200], IMAGES[1_200:], 50
QUICK = PosteriorMean(repeats=16, epochs=30, width=128)
FLOOR = float((OWN.mean(0) - PRIVATE).square().mean())


def observation(
    noise: float, seed: int = 0, signal: float = 1.0, own: Tensor = OWN, passes: int = 1, tails: bool = False
) -> ImageObservation:
    """Images behind a drawn linear map to 200 numbers, with noise on each; the private ones cross several times.

    With `tails`, the noise is Laplace's, of the same variance as else.
    """
    weight = signal * torch.randn(64, 200, generator=Generator().manual_seed(seed)) / 8

    def query(images: Tensor, draws: Generator) -> QueryResult:
        clean = images.flatten(1) @ weight
        drawn = torch.randn(clean.shape, generator=draws)
        if tails:
            first, second = torch.empty(2, *clean.shape).exponential_(generator=draws)
            drawn = (first - second) / sqrt(2)
        view = View(round=0, smashed=clean + noise * drawn)
        return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))

    draws = Generator().manual_seed(seed + 100)
    views = [query(part, draws).view for _ in range(passes) for part in PRIVATE.split(BATCH)]
    return ImageObservation(views=views, batch_size=BATCH, image_shape=SHAPE, auxiliary=own, query=query)


def error(attack: PosteriorMean, seen: ImageObservation) -> float:
    """Of the floor, the error of the mean image."""
    guess = attack.run(seen, Generator().manual_seed(0)).images
    return float((guess - PRIVATE).square().mean()) / FLOOR


def identified(guess: Tensor) -> float:
    """The share of guesses that are nearest to their own image among the 100 attacked ones."""
    away = torch.cdist(guess.flatten(1), PRIVATE.flatten(1)).double().numpy()
    return float(nearest.found(away, np.arange(len(PRIVATE))).mean())


def linear_optimum(noise: float, seed: int) -> float:
    """The error, of the floor, of the best linear guess by one who knows the map and the noise."""
    weight = torch.randn(64, 200, generator=Generator().manual_seed(seed)) / 8
    spread = torch.cov(OWN.flatten(1).T)
    seen = torch.cat([view.smashed for view in observation(noise, seed).views]) - OWN.flatten(1).mean(0) @ weight
    along = torch.linalg.solve(weight.T @ spread @ weight + noise**2 * torch.eye(200), weight.T @ spread)
    guess = (seen @ along + OWN.flatten(1).mean(0)).clamp(0, 1)
    return float((guess - PRIVATE.flatten(1)).square().mean()) / FLOOR


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loud_noise_leaves_it_as_much_as_the_best_linear_guess(seed: int) -> None:
    found = error(QUICK, observation(1.0, seed))
    assert found < 0.7
    assert found < 1.03 * linear_optimum(1.0, seed)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_eight_passes_leave_it_as_much_as_noise_of_an_eighth_of_the_variance(seed: int) -> None:
    found = error(replace(QUICK, passes=8, repeats=48), observation(2.0, seed, passes=8))
    assert found < 1.1 * linear_optimum(2.0 / sqrt(8), seed)
    assert linear_optimum(2.0, seed) > 1.5 * found  # one pass would show less


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clamped_numbers_show_more_behind_loud_heavy_tails(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observation(2.0, seed, passes=8, tails=True)
    attack = replace(QUICK, passes=8, repeats=24)
    guess = attack.run(seen, Generator().manual_seed(0))
    found = float((guess.images - PRIVATE).square().mean()) / FLOOR
    monkeypatch.setattr(posterior_mean, "_BOUNDS", (inf,))
    assert "released numbers were clamped" in guess.note
    assert found < 0.9 * error(attack, seen)


@pytest.mark.parametrize(("noise", "tails"), [(2.0, False), (0.1, True), (0.0, False)], ids=["normal", "weak", "none"])
def test_noise_without_heavy_tails_and_weak_noise_are_taken_as_they_are(noise: float, tails: bool) -> None:
    attack = replace(QUICK, epochs=1)
    assert attack.run(observation(noise, tails=tails), Generator().manual_seed(0)).note == ""


def test_more_passes_than_samples_of_the_noise_are_refused() -> None:
    with pytest.raises(ValueError, match=r"passes=13 .*take repeats of at least 17"):
        replace(QUICK, passes=13)
    assert replace(QUICK, passes=13, repeats=17).passes == 13


def test_a_release_without_noise_shows_the_images() -> None:
    assert error(QUICK, observation(0.0)) < 0.2


def test_mirror_images_of_all_but_the_held_out_round_are_sent() -> None:
    seen, sent = observation(0.0), list[Tensor]()

    def query(images: Tensor, draws: Generator) -> QueryResult:
        sent.append(images)
        return given(seen.query)(images, draws)

    replace(QUICK, mirror=True, epochs=1).run(replace(seen, query=query), Generator().manual_seed(0))
    shown = torch.cat(sent)[: 2 * len(OWN) - BATCH]
    wanted = torch.cat([OWN[:-BATCH].flip(-1), OWN])
    assert torch.equal(shown.flatten(1).sort(0).values, wanted.flatten(1).sort(0).values)


def test_changed_copies_are_sent_but_the_held_out_round_is_not_copied() -> None:
    seen, sent = observation(0.0), list[Tensor]()

    def query(images: Tensor, draws: Generator) -> QueryResult:
        sent.append(images)
        return given(seen.query)(images, draws)

    replace(QUICK, copies=2, epochs=1).run(replace(seen, query=query), Generator().manual_seed(0))
    shown = torch.cat(sent)[: 3 * len(OWN) - 2 * BATCH].flatten(1)
    apart = torch.cdist(shown, OWN.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
    assert sorted(apart.argmin(1)[apart.min(1).values == 0].tolist()) == list(range(len(OWN)))
    assert (apart.min(1).values > 0).sum() == 2 * (len(OWN) - BATCH)


def test_the_network_of_the_best_epoch_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = posterior_mean._Denoising.epoch

    def spoiled(training: posterior_mean._Denoising, number: int) -> float:
        held_out = trained(training, number)
        if number < QUICK.epochs - 1:
            return held_out
        for weight in training.guesser.parameters():
            weight.data.normal_()
        return 1.0

    monkeypatch.setattr(posterior_mean._Denoising, "epoch", spoiled)
    assert error(QUICK, observation(0.0)) < 0.2


def test_pure_noise_shows_the_mean_image() -> None:
    assert 0.97 < error(QUICK, observation(1.0, signal=0.0)) < 1.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_contrastive_error_identifies_more_images_that_noise_keeps_from_being_drawn(seed: int) -> None:
    seen, attack = observation(1.0, seed), replace(QUICK, epochs=100, width=256)
    plain, contrastive = (
        replace(attack, contrast=weight).run(seen, Generator().manual_seed(0)).images for weight in (0.0, 3.0)
    )
    assert identified(contrastive) > identified(plain) + 0.03
    drawn, told = (float((guess - PRIVATE).square().mean()) / FLOOR for guess in (plain, contrastive))
    assert drawn < told < 0.8  # it draws them worse


def test_a_contrastive_error_passes_the_controls() -> None:
    found = controls(replace(QUICK, contrast=1.0), observation(1.0), seed=0)
    assert [one.passed for one in found] == [True, True]


def test_pure_noise_identifies_nobody() -> None:
    attack = replace(QUICK, contrast=3.0)
    assert identified(attack.run(observation(1.0, signal=0.0), Generator().manual_seed(0)).images) < 0.06


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="contrast"):
        replace(QUICK, contrast=-1.0)


def test_its_start_is_the_mean_image() -> None:
    assert error(PosteriorMean(repeats=4, epochs=0), observation(1.0)) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("contrast", [0.0, 1.0])
def test_a_killed_training_goes_on_to_the_same_guesses(contrast: float) -> None:
    seen, whole = observation(1.0), Session()
    attack = PosteriorMean(repeats=4, epochs=4, width=32, contrast=contrast)
    straight = attack.run(seen, Generator().manual_seed(0), whole)
    broken = Session(dies_after=2)
    with pytest.raises(Killed):
        attack.run(seen, Generator().manual_seed(0), broken)
    again = attack.run(seen, Generator().manual_seed(0), Session(state=broken.state))
    assert torch.equal(again.images, straight.images)
    assert again.curve == straight.curve


def test_less_than_two_rounds_of_own_images_are_refused() -> None:
    with pytest.raises(NotApplicable, match="it needs at least 100 own images, got 60"):
        QUICK.run(observation(1.0, own=OWN[:60]), Generator().manual_seed(0))
