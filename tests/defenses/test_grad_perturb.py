"""Gradient perturbation: clipping that no input escapes, noise of its law, a claim that no server's memory breaks."""

import re
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm
from torch import Tensor

from privkit.accountants.bounds import gaussian
from privkit.defenses.base import Receipt, ReleaseCount
from privkit.defenses.grad_perturb import GradPerturb
from tests.small import generator


def clipped(defense: GradPerturb, gradient: Tensor) -> Tensor:
    """What is sent less the noise, which is the same for a zero gradient."""
    return defense.on_gradient(gradient, generator()) - defense.on_gradient(torch.zeros_like(gradient), generator())


@pytest.mark.parametrize(("law", "order"), [("gaussian", 2), ("laplace", 1)])
def test_no_gradient_of_an_image_is_longer_than_clip(law: str, order: int) -> None:
    defense = GradPerturb(law=law, noise=1e-6, clip=0.5)  # type: ignore[arg-type]
    rows = torch.randn(6, 50, 4, 3, dtype=torch.float64, generator=generator(1))
    rows = rows * torch.logspace(-4, 30, 50, dtype=torch.float64).view(50, 1, 1)
    rows[0] = 0
    rows[1, :, 1:] = 0
    sent = clipped(defense, rows)
    lengths = torch.linalg.vector_norm(sent.flatten(2), ord=order, dim=2)
    given = torch.linalg.vector_norm(rows.flatten(2), ord=order, dim=2)
    torch.testing.assert_close(lengths, given.clamp_max(0.5), rtol=1e-9, atol=1e-15)
    direction = rows / given.clamp_min(1e-300).view(6, 50, 1, 1)
    torch.testing.assert_close(sent, direction * lengths.view(6, 50, 1, 1), rtol=1e-9, atol=1e-15)  # shortened only


def receipt_of(**options: Any) -> Receipt:
    return GradPerturb(**options).apply(torch.zeros(1, 2, 3), torch.zeros(1, 2), generator())[1]


def test_two_gradients_are_never_further_apart_than_the_charged_sensitivity() -> None:
    """An adversary ascends the distance of two clipped gradients; it comes close to 2·clip and not beyond."""
    defense = GradPerturb(noise=1e-9, clip=0.25)
    pair = torch.randn(2, 8, 5, dtype=torch.float64, generator=generator(3)).requires_grad_()
    for _ in range(200):
        first, second = clipped(defense, pair)
        distance = (first - second).norm(dim=1)
        (step,) = torch.autograd.grad(distance.sum(), pair)
        pair = (pair + step).detach().requires_grad_()
    charged = receipt_of(law="gaussian", noise=1.0, clip=0.25).certificate().quantities["sensitivity"]
    assert charged == 0.5
    assert distance.max().item() <= charged * (1 + 1e-9)
    assert distance.min().item() > 0.99 * charged


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_noise_has_the_declared_law(law: str, clip: float | None) -> None:
    defense = GradPerturb(law=law, noise=0.3, clip=clip)  # type: ignore[arg-type]
    gradient = torch.full((2, 100, 100), 0.002)
    noise = (defense.on_gradient(gradient, generator(4)) - clipped(defense, gradient)).flatten().numpy() / 0.3
    reference = norm if law == "gaussian" else laplace
    assert kstest(noise, reference.cdf).pvalue > 1e-3
    assert noise.std() == pytest.approx(1 if law == "gaussian" else sqrt(2), rel=0.03)


def test_noise_is_fresh_and_the_gradient_kept_without_clip() -> None:
    gradient = 1e3 * torch.randn(1, 2, 3, generator=generator(1))
    draws = generator()
    first, second = (GradPerturb(noise=0.5).on_gradient(gradient, draws) for _ in range(2))
    assert not torch.equal(first, second)
    assert (first - gradient).abs().max() < 5


def test_without_clip_nothing_is_claimed() -> None:
    certificate = GradPerturb().apply(torch.zeros(1, 2, 3), torch.zeros(1, 2), generator())[1].certificate()
    assert (certificate.kind, certificate.epsilon) == ("nothing", inf)
    assert "smashed data, which are released as they are" in certificate.statement


def test_every_gradient_of_the_run_is_charged() -> None:
    receipt = receipt_of(law="gaussian", noise=2.0, clip=0.01)
    release_count = ReleaseCount(rounds=30, epochs=3, batch_size=8, clients=4, delta=1e-6)
    certificate = receipt.certificate(release_count)
    assert certificate.epsilon == pytest.approx(gaussian.epsilon(1e-6, 0.02 / 2 * sqrt(30 * 8 * 4)), rel=1e-12)
    assert (certificate.kind, certificate.delta, certificate.relation) == ("differential_privacy", 1e-6, "replace_one")
    assert "says nothing about images or smashed data" in certificate.statement
    pure = receipt_of(law="laplace", noise=2.0, clip=0.01).certificate()
    assert pure.epsilon == pytest.approx(0.01)
    assert receipt.certificate().epsilon < certificate.epsilon


def test_the_claim_holds_for_a_server_that_remembers_and_a_charge_per_record_would_not() -> None:
    """A server that puts label 1 into its weights sends it in every later gradient, of whatever image.

    The sum of the transcript, which is sufficient, then tells the label as a Gaussian shift of √R·2·clip/σ does.
    That is what the certificate charges; the two releases of the record's own image would claim less than seen.
    """
    rounds, batch, delta, trials = 25, 4, 1e-3, 10_000
    defense = GradPerturb(noise=1.0, clip=0.1)
    evidence = []
    for label in (-1.0, 1.0):
        gradient = torch.full((trials, rounds * batch, 1), 50.0 * label, dtype=torch.float64)
        evidence.append(defense.on_gradient(gradient, generator(int(label) + 1)).sum((1, 2)).numpy())
    release_count = ReleaseCount(rounds=rounds, batch_size=batch, epochs=2, delta=delta)
    claimed = receipt_of(law="gaussian", noise=1.0, clip=0.1).certificate(release_count).epsilon
    per_record = gaussian.epsilon(delta, 0.2 * sqrt(2))
    alarm, hit = ((side > 0).mean() for side in evidence)
    assert hit - np.exp(per_record) * alarm > 100 * delta  # the δ that (per_record, δ) would have to allow
    shift = (evidence[1].mean() - evidence[0].mean()) / np.concatenate([e - e.mean() for e in evidence]).std()
    assert shift == pytest.approx(2, abs=0.1)
    assert gaussian.epsilon(delta, 2.0) == pytest.approx(claimed, rel=1e-12)  # attained: no smaller claim is true


def test_bad_specifications_are_refused() -> None:
    for options, match in [
        ({"noise": 0.0}, "noise must be a finite number >= 1e-30"),
        ({"clip": -1.0}, "clip must be a finite number >= 1e-30"),
        ({"law": "cauchy"}, "law must be one of gaussian, laplace"),
    ]:
        with pytest.raises(ValueError, match=match):
            GradPerturb(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.71, 1.3, 2.9])
def test_the_sentence_about_labels_never_says_less_than_the_certificate(noise: float) -> None:
    """ε rounded to the nearest may be a stronger claim than what is proven."""
    certificate = receipt_of(law="gaussian", noise=noise, clip=0.25).certificate()
    said = re.search(r"\(([\d.e+-]+), ([\d.e+-]+)\)-DP in the labels", certificate.statement)
    assert said is not None
    assert certificate.epsilon <= float(said[1]) <= certificate.epsilon * 1.001
