"""Answers about mechanisms against quadrature and enumeration."""

from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import roots_jacobi
from scipy.stats import beta, betabinom, norm

from privkit.accountants import answer
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio
from privkit.accountants.spec.parts import CutMix, Mixup, WithoutReplacement
from tests.accountants.one_release import one_release

Array = NDArray[np.float64]

NODE, WEIGHT = np.polynomial.legendre.leggauss(300)


def hockey_stick(means: Array, epsilon: float) -> Array:
    """∫ max(0, N(x; m, 1) − e^ε N(x; 0, 1)) dx for each m > 0, by quadrature from where the integrand starts."""
    means = np.maximum(np.atleast_1d(means), 1e-9)
    start = means / 2 + epsilon / means
    half = (np.maximum(start, means) + 13 - start) / 2
    x = start[:, None] + half[:, None] * (NODE + 1)
    log_ratio = means[:, None] * x - means[:, None] ** 2 / 2
    gap = norm.pdf(x) * (np.exp(log_ratio) - exp(epsilon))
    return np.asarray(half * (gap @ WEIGHT))


# reference values


# independent definitions


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.3, 4), a=st.floats(0.3, 6), clients=st.integers(2, 5), epsilon=st.floats(0, 5))
def test_published_ratios_are_the_mean_of_hockey_sticks(mu: float, a: float, clients: int, epsilon: float) -> None:
    node, weight = roots_jacobi(120, (clients - 1) * a - 1, a - 1)
    ratios, weights = (node + 1) / 2, weight / weight.sum()
    expected = float(weights @ hockey_stick(mu * ratios, epsilon))
    mechanism = one_release(mu, mixing=Mixup(ratio=DirichletRatio(concentration=a, clients=clients)))
    found = answer.delta(mechanism, epsilon)
    assert found.delta == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert found.lower == epsilon


@settings(max_examples=40, deadline=None)
@given(
    mu=st.floats(0.3, 4),
    a=st.floats(0.2, 6),
    clients=st.integers(2, 5),
    patches=st.integers(1, 40),
    epsilon=st.floats(0, 4),
    counts=st.booleans(),
)
def test_whole_patches_are_counted(
    mu: float, a: float, clients: int, patches: int, epsilon: float, counts: bool
) -> None:
    j, b = np.arange(patches + 1), (clients - 1) * a
    rounded = np.diff(beta.cdf(j / patches, a, b), prepend=0.0)  # ⌈Nλ⌉ = j
    odds = betabinom.pmf(j, patches, a, b) if counts else rounded
    expected = float(odds[1:] @ hockey_stick(mu * np.sqrt(j[1:] / patches), epsilon))
    ratio: Any = (DirichletCounts if counts else DirichletRatio)(concentration=a, clients=clients)
    found = answer.delta(one_release(mu, mixing=CutMix(ratio=ratio, patches=patches)), epsilon).delta
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.2, 5), clients=st.integers(2, 30), epsilon=st.floats(0, 4), data=st.data())
def test_sampling_k_of_n_is_the_hockey_stick_of_the_mixture(
    mu: float, clients: int, epsilon: float, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(1, clients))
    rate = chosen / clients
    x = np.linspace(-12, mu + 12, 40_001)
    one, other = norm.pdf(x), (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu)
    both = [trapezoid(np.maximum(p - exp(epsilon) * q, 0), x) for p, q in ((other, one), (one, other))]
    mechanism = one_release(mu, participation=WithoutReplacement(chosen=chosen, clients=clients))
    found = answer.delta(mechanism, epsilon).delta
    assert found == pytest.approx(max(both), rel=1e-5, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(
    mu=st.floats(0.2, 3), order=st.floats(1.05, 12), a=st.floats(0.3, 5), clients=st.integers(2, 6), cut=st.booleans()
)
def test_renyi_divergence_of_random_ratios_is_its_integral(
    mu: float, order: float, a: float, clients: int, cut: bool
) -> None:
    node, weight = roots_jacobi(200, (clients - 1) * a - 1, a - 1)
    ratio, weights = (node + 1) / 2, weight / weight.sum()
    if cut:
        j = np.arange(1, 17)
        # the largest ratios count most, and their odds are tiny: differences of the cdf near 1 would lose them
        ratio, weights = np.sqrt(j / 16), -np.diff(beta.sf(np.arange(17) / 16, a, (clients - 1) * a))
    expected = log(float(weights @ np.exp((order - 1) * order * (mu * ratio) ** 2 / 2))) / (order - 1)
    law = DirichletRatio(concentration=a, clients=clients)
    mechanism = one_release(mu, mixing=CutMix(ratio=law, patches=16) if cut else Mixup(ratio=law))
    assert answer.rdp(mechanism, [order]).values[0] == pytest.approx(expected, rel=1e-7, abs=1e-11)


@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("kind", ["sampled", "dirichlet"])
def test_composition_brackets_the_truth(rounds: int, kind: str) -> None:
    """ε of T rounds against a direct convolution of the loss of a discretized output."""
    x = np.linspace(-9, 11, 2001)
    if kind == "sampled":
        mechanism = one_release(1.0, participation=WithoutReplacement(chosen=3, clients=10), rounds=rounds)
        p = [0.7 * norm.pdf(x) + 0.3 * norm.pdf(x - 1)]
        q, weights = [norm.pdf(x)], [1.0]
    else:
        law = DirichletCounts(concentration=2, clients=2)
        mechanism = one_release(1.0, mixing=CutMix(ratio=law, patches=4), rounds=rounds)
        p = [norm.pdf(x - sqrt(j / 4)) for j in range(5)]
        q, weights = [norm.pdf(x)] * 5, betabinom.pmf(np.arange(5), 4, 2, 2).tolist()
    step = 1e-3
    bins = np.zeros(40_001)
    for one, other, weight in zip(p, q, weights, strict=True):
        one = one / one.sum()
        other = other / other.sum()
        at = np.round(np.log(one / other) / step).astype(int) + 20_000
        np.add.at(bins, at.clip(0, 40_000), weight * one)
    total = bins
    for _ in range(rounds - 1):
        total = np.convolve(total, bins) if total.size * bins.size < 1e6 else _fft_convolve(total, bins)
    loss = (np.arange(total.size) - 20_000 * rounds) * step
    delta = 1e-3
    low, high = 0.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        value = float((np.maximum(1 - np.exp(np.minimum(middle - loss, 0)), 0) * total)[loss > middle].sum())
        low, high = (middle, high) if value > delta else (low, middle)
    found = answer.epsilon(mechanism, delta)
    # One pair of neighbors attains the profile of told ratios in both directions, that of sampling in one only.
    assert high * (1 - 2e-3) <= found.epsilon <= high * (1.03 if kind == "sampled" else 1.003)
    assert found.lower is None or found.lower <= high * (1 + 2e-3)


def _fft_convolve(one: Array, other: Array) -> Array:
    size = one.size + other.size - 1
    return np.asarray(np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size).clip(0))
