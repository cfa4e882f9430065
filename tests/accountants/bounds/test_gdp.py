"""μ of compositions: worse than the composition where that is claimed, and tight there; published numbers are not."""

from collections.abc import Callable
from functools import cache
from math import exp, inf, log, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, norm

import privkit.accountants
from privkit.accountants.bounds import gaussian, gdp
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.gaussian import poisson_profiles
from privkit.accountants.bounds.gaussian import profile as gaussian_profile
from privkit.accountants.bounds.laplace import profile as laplace_profile
from privkit.accountants.bounds.loss_distribution import Pair, Profile
from tests.accountants.golden import published_gdp

Array = NDArray[np.float64]

SAMPLED = [(0.01, 1.0, 1000), (0.04, 1.5, 2250), (0.2, 0.7, 50), (0.001, 0.8, 2000)]
"""(q, σ, T) of DP-SGD."""


def sampled(rate: float, noise_multiplier: float, rounds: int) -> list[tuple[Profile | Pair, int]]:
    return [(poisson_profiles(rate, 1 / noise_multiplier), rounds)]


@cache
def fitted(rate: float, noise_multiplier: float, rounds: int, **options: Any) -> gdp.GaussianFit:
    """Several tests ask for the same ones."""
    return gdp.mu(sampled(rate, noise_multiplier, rounds), **options)


def laplace_tradeoff(shift: float, alpha: Array) -> Array:
    """Smallest false negative rate of a test between Laplace(0, 1) and Laplace(shift, 1)."""
    steep, middle = 1 - exp(shift) * alpha, exp(-shift) / (4 * np.maximum(alpha, 1e-300))
    flat = exp(-shift) * (1 - alpha)
    return np.where(alpha < exp(-shift) / 2, steep, np.where(alpha <= 0.5, middle, flat))


def gaussian_tradeoff(mu: float, alpha: Array) -> Array:
    return np.asarray(norm.cdf(norm.isf(alpha) - mu))


# What is proven


@settings(deadline=None, max_examples=25)
@given(shift=st.floats(0.01, 6.0), floor=st.sampled_from([1e-10, 1e-6, 1e-3]))
def test_no_test_between_laplace_variables_beats_the_gaussian(shift: float, floor: float) -> None:
    """Exact trade-off curves, at every rate that is claimed; and a smaller μ fails."""
    fit = gdp.mu([(laplace_profile(shift), 1)], floor=floor, interval=shift / 2000)
    alpha = np.concatenate([np.geomspace(floor, 0.5, 4000), np.linspace(0.5, 0.999, 100)])
    exact = laplace_tradeoff(shift, alpha)
    alpha, exact = alpha[exact >= floor], exact[exact >= floor]
    assert np.all(exact >= gaussian_tradeoff(fit.mu, alpha) * (1 - 1e-12))
    assert not np.all(exact >= gaussian_tradeoff(fit.mu * (1 - 2e-3), alpha))


@settings(deadline=None, max_examples=15)
@given(truth=st.floats(0.52, 0.8), rounds=st.integers(1, 30))
def test_randomized_response_by_enumeration(truth: float, rounds: int) -> None:
    """The best tests accuse from a count on; their error rates are binomial."""
    largest = log(truth / (1 - truth))

    def once(epsilon: Any) -> Any:
        return np.where(epsilon < largest, truth - np.exp(np.minimum(epsilon, largest)) * (1 - truth), 0.0)

    fit = gdp.mu([(once, rounds)], interval=largest / 200)
    counts = np.arange(rounds + 1)
    alpha, beta = binom.sf(counts - 1, rounds, 1 - truth), binom.cdf(counts - 1, rounds, truth)
    claimed = (alpha >= 1e-10) & (beta >= 1e-10)  # the default floor
    assert np.all(beta[claimed] >= gaussian_tradeoff(fit.mu, alpha[claimed]) * (1 - 1e-9))
    for epsilon in np.linspace(0, rounds * largest * 0.999, 40):
        gains = np.maximum(0, -np.expm1(epsilon - (2 * counts - rounds) * largest))
        delta = float(np.sum(binom.pmf(counts, rounds, truth) * gains))
        assert delta <= max(gaussian.delta(epsilon, fit.mu), fit.delta_floor) * (1 + 1e-9)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("parameters", SAMPLED)
def test_delta_of_the_composition_is_below_what_is_claimed(parameters: tuple[float, float, int]) -> None:
    """At every ε: a lower bound on δ from dp_accounting, rounded against the mechanism's favor, both directions."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    rate, sigma, rounds = parameters
    once = from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=1e-4,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    composed = once.self_compose(rounds)
    fit = fitted(*parameters)
    epsilon = np.linspace(0, 25, 200)
    lower = np.asarray(composed.get_delta_for_epsilon(epsilon))
    assert np.all(lower <= np.maximum(gaussian.delta(epsilon, fit.mu), fit.delta_floor) + 1e-12)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("parameters", SAMPLED)
def test_mu_by_tangents_of_another_profile(parameters: tuple[float, float, int]) -> None:
    """dp_accounting's δ of the worse direction, tangent by tangent: (α, β) = (−dδ/de^ε, 1 − δ − α·e^ε)."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    rate, sigma, rounds = parameters
    once = from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4)
    epsilon = np.arange(0, 25, 0.005)
    delta = np.asarray(once.self_compose(rounds)._pmf_remove.get_delta_for_epsilon(epsilon))
    alpha = -np.diff(delta) / np.diff(np.exp(epsilon))
    beta_complement = delta[1:] + alpha * np.exp(epsilon[1:])
    for floor in (1e-8, 1e-3):
        fit = gdp.mu(sampled(*parameters), floor=floor)
        kept = alpha >= floor
        reference = float(np.max(norm.ppf(beta_complement[kept]) + norm.isf(alpha[kept])))
        assert fit.mu == pytest.approx(reference, rel=3e-3)


@settings(deadline=None, max_examples=12)
@given(mu=st.floats(1e-3, 11.0), rounds=st.sampled_from([1, 3, 1000]))
def test_gaussians_have_the_mu_that_they_compose_to(mu: float, rounds: int) -> None:
    fit = gdp.mu([(gaussian_profile(mu / sqrt(rounds)), rounds)])
    assert mu * (1 - 1e-9) <= fit.mu <= mu * (1 + 2e-3) + 1e-6


def test_histories_compose() -> None:
    fit = gdp.mu([(gaussian_profile(0.3), 4), (gaussian_profile(0.8), 1)])
    assert fit.mu == pytest.approx(1.0, rel=5e-4)


def test_a_million_rounds() -> None:
    fit = gdp.mu([(gaussian_profile(1e-3), 10**6)])
    assert 1 <= fit.mu <= 1.001


def test_nothing_released_has_mu_zero() -> None:
    assert gdp.mu([(gaussian_profile(0.0), 5)]).mu == 0


@pytest.mark.slow
def test_laws() -> None:
    middle = fitted(0.01, 1.0, 1000).mu
    by_rounds = [fitted(0.01, 1.0, 1).mu, middle]
    assert by_rounds == sorted(by_rounds)
    by_noise = [fitted(0.01, 4.0, 1000).mu, middle]
    assert by_noise == sorted(by_noise)
    by_floor = [fitted(0.01, 1.0, 1000, floor=1e-2).mu, middle, fitted(0.01, 1.0, 1000, floor=1e-12).mu]
    assert by_floor == sorted(by_floor)
    assert middle == pytest.approx(fitted(0.01, 1.0, 1000, interval=2e-3).mu, rel=1e-3)


# What is not


def test_the_published_mu_is_no_bound() -> None:
    """Its ε lies below a proven lower bound; the sound μ's does not."""
    published, fit = published_gdp.published_mu(0.01, 1.0, 1000), fitted(0.01, 1.0, 1000)
    proven, _ = pld.composed_bounds(sampled(0.01, 1.0, 1000), 1e-5)
    assert gaussian.epsilon(1e-5, published.mu) < 1.73 < 1.81 < proven
    assert gaussian.epsilon(1e-5, fit.mu) > proven


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "reference"),
    [((0.04, 1.5, 2250), 1.4342203759292578), ((0.001, 0.8, 10_000), 0.19748260445196641)],
)
def test_published_mu_elsewhere(parameters: tuple[float, float, int], reference: float) -> None:
    """Values of gdpnum 0.1.2."""
    assert published_gdp.published_mu(*parameters).mu == pytest.approx(reference, rel=1e-3)


def test_the_limit_theorem_is_no_bound() -> None:
    claim = published_gdp.limit_theorem(0.01, 1.0, 1000, 1e-5)
    proven, upper = pld.composed_bounds(sampled(0.01, 1.0, 1000), 1e-5)
    assert claim.epsilon < 1.62 < 1.81 < proven <= upper
    assert not claim.sound
    assert claim.objection
    assert "no guarantee" in claim.statement


@pytest.mark.parametrize("parameters", [(0.01, 1.0, 1000), (0.04, 1.5, 2250), (1.0, 5.0, 3)])
def test_the_limit_theorem_is_that_of_opacus(parameters: tuple[float, float, int]) -> None:
    from opacus.accountants.analysis import gdp as opacus_gdp

    rate, sigma, rounds = parameters
    expected = opacus_gdp.compute_eps_poisson(steps=rounds, noise_multiplier=sigma, sample_rate=rate, delta=1e-5)
    assert published_gdp.limit_theorem(rate, sigma, rounds, 1e-5).epsilon == pytest.approx(expected, rel=1e-6)


def test_nothing_else_uses_numbers_that_are_no_bounds() -> None:
    root = Path(privkit.accountants.__file__).resolve().parent
    using = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(name in path.read_text() for name in ("published_mu", "limit_theorem", "GaussianAccountant"))
    }
    assert using == set()


# Bad input


@pytest.mark.parametrize("floor", [0.0, 1e-13, 0.2, nan, True])
def test_refuses_bad_floors(floor: Any) -> None:
    with pytest.raises(ValueError, match="floor"):
        gdp.mu(sampled(0.1, 1.0, 1), floor=floor)
    with pytest.raises(ValueError, match="floor"):
        published_gdp.published_mu(0.1, 1.0, 1, floor=floor)


def test_refuses_bad_histories() -> None:
    with pytest.raises(ValueError, match="at least one mechanism"):
        gdp.mu([])
    for rounds in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="rounds"):
            gdp.mu([(gaussian_profile(1.0), rounds)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="interval"):
        gdp.mu(sampled(0.1, 1.0, 1), interval=0.0)


def test_says_where_one_number_cannot_stand_for_the_profile() -> None:
    for mu in (14.0, 60.0):
        with pytest.raises(ValueError, match="report epsilon at delta"):
            gdp.mu([(gaussian_profile(mu), 1)])
    with pytest.raises(ValueError, match="infinite"):
        gdp.mu([(lambda epsilon: np.maximum(gaussian_profile(0.1)(epsilon), 1e-3), 1)])


NUMBERS: list[tuple[Callable[[Any], object], str, list[Any]]] = [
    (lambda q: published_gdp.limit_theorem(q, 1.0, 10, 1e-5), "rate", [0.0, 1.1, nan, True, -0.1]),
    (lambda s: published_gdp.limit_theorem(0.1, s, 10, 1e-5), "noise_multiplier", [0.0, 0.01, nan, inf, -1.0]),
    (lambda t: published_gdp.limit_theorem(0.1, 1.0, t, 1e-5), "rounds", [0, 1.5, True, -3]),
    (lambda d: published_gdp.limit_theorem(0.1, 1.0, 10, d), "delta", [0.0, 1.0, nan, True]),
    (lambda q: published_gdp.published_mu(q, 1.0, 10), "rate", [0.0, 1.0, nan, True]),
    (lambda s: published_gdp.published_mu(0.1, s, 10), "noise_multiplier", [0.0, nan, inf, -1.0]),
    (lambda t: published_gdp.published_mu(0.1, 1.0, t), "rounds", [0, 1.5, True]),
]


@pytest.mark.parametrize(("call", "name", "bad"), [(f, name, bad) for f, name, values in NUMBERS for bad in values])
def test_refuses_bad_numbers(call: Callable[[Any], object], name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=name):
        call(bad)
