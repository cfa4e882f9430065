"""ρ of zCDP and μ of Gaussian DP: no pair of data sets gives away more, by order and by ε."""

from math import comb, exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from privkit.accountants import answer, compile
from privkit.accountants.bounds import gdp
from privkit.accountants.bounds.laplace import LaplaceRelease
from privkit.accountants.bounds.numerical_composition import composed_bound
from privkit.accountants.bounds.randomized_response import RandomizedAnswer
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio
from privkit.accountants.spec.parts import Mixup, Noise, PrivateUpdates
from privkit.accountants.spec.sensitivity import Categories, Clamp
from tests.accountants.laplace_pairs import Drawn, delta_of, drawn, rounds_below

Array = NDArray[np.float64]
ORDERS = (1.01, 1.5, 2.0, 4.0, 10.0, 40.0)


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - np.exp(min(epsilon, 700)) * ndtr(-mu / 2 - epsilon / mu))


def violations(masses: Array, losses: Array, rho: float, mu: float, name: Any) -> list[tuple[Any, ...]]:
    """Orders and ε where a pair, whose loss under P is given, exceeds ρ or μ."""
    found: list[tuple[Any, ...]] = []
    with np.errstate(divide="ignore"):
        log_masses = np.log(np.maximum(masses - 1e-14, 0))  # less than the transform may have added
    for order in ORDERS:
        moment = float(logsumexp((order - 1) * losses + log_masses)) / (order - 1)
        if moment > rho * order * (1 + 1e-9) + 1e-9:
            found.append((name, "rho", order, moment, rho * order))
    for epsilon in np.linspace(0, float(losses.max()), 12).tolist():
        least = delta_of(masses, losses, epsilon)
        if least > gaussian_delta(epsilon, mu) + 1e-11:
            found.append((name, "mu", epsilon, least, gaussian_delta(epsilon, mu)))
    return found


def violations_of_laplace(seed: int, *, fitted: bool = False) -> list[tuple[Any, ...]]:
    """Sampled vectors with Laplace noise; with `fitted`, the smaller μ above its floor of δ, too."""
    random = np.random.default_rng([5, seed])
    one = drawn(random, 30)
    told = answer.epsilon(one.mechanism, 1e-5, tight=False).quantities
    found = []
    for first in (one.rounds, 0):
        masses, losses = rounds_below(one, one.shifts, first)
        if told:
            found += violations(masses, losses, told["zcdp_rho"], told["gdp_mu"], (seed, one, first))
        composed = composed_bound(compile.steps(one.mechanism)) if fitted else None
        if composed is not None and 1 - delta_of(masses, losses, 0.0) > 1e-3:
            fit = gdp.mu(composed.pairs)
            for epsilon in np.linspace(0, float(losses.max()), 12).tolist():
                least = delta_of(masses, losses, epsilon)
                if least > max(gaussian_delta(epsilon, fit.mu), fit.delta_floor) + 1e-11:
                    found.append((seed, one, "fitted", epsilon, least))
    return found


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("block", range(5))
def test_no_sampled_vector_gives_away_more(block: int) -> None:
    """The first draw of a block with the smaller μ, too."""
    seeds = range(8 * block, 8 * block + 8)
    assert [fault for seed in seeds for fault in violations_of_laplace(seed, fitted=seed % 8 == 0)] == []


def violations_of_everyone(seed: int) -> list[tuple[Any, ...]]:
    """Laplace vectors of everyone, as a sample of nearly everyone gives them away, and randomized responses."""
    random = np.random.default_rng([6, seed])
    one = drawn(random, 12)
    shifts = one.shifts
    rounds = 1 + one.rounds % 8
    almost = Drawn(one.smashed, one.labels, 10**9 - 1, 10**9, rounds)
    run = [(LaplaceRelease(parts=tuple((shift, 1) for shift in shifts.tolist())), rounds)]
    rho, mu = gdp.zcdp(run), gdp.gdp(run)
    found = violations(*rounds_below(almost, shifts, rounds), rho, mu, (seed, "laplace"))
    noise, classes, answers = float(random.uniform(0.02, 0.98)), int(random.integers(2, 9)), int(random.integers(1, 9))
    lie, truth = noise / classes, 1 - noise + noise / classes
    loss = log(truth / lie)
    masses: Array = np.ones(1)
    losses: Array = np.zeros(1)
    for _ in range(answers):
        masses = np.asarray(np.convolve(masses, [lie, 1 - truth - lie, truth]), float)
        losses = np.asarray((np.arange(masses.size) - masses.size // 2) * loss, float)
    response = [(RandomizedAnswer(noise=noise, classes=classes), answers)]
    rho, mu = gdp.zcdp(response), gdp.gdp(response)
    return found + violations(masses, losses, rho, mu, (seed, "response", noise, classes, answers))


def test_nobody_who_always_takes_part_gives_away_more() -> None:
    assert [fault for seed in range(60) for fault in violations_of_everyone(seed)] == []


def test_a_gaussian_is_both_exactly() -> None:
    run = [(GaussianRelease(mu=0.3), 10), (GaussianRelease(mu=1.0, sampling="poisson", rate=0.1), 2)]
    assert gdp.zcdp(run) == pytest.approx((0.9 + 2) / 2, rel=1e-12)
    assert gdp.gdp(run) == pytest.approx(sqrt(2.9), rel=1e-12)


def test_a_coin_is_gaussian_at_the_middle_of_its_curve() -> None:
    """The Gaussian's curve passes through the corner of randomized response, and cannot be closer."""
    for epsilon in (0.01, 1.0, 5.0):
        mu = gdp.pure_gdp(epsilon)
        corner = 1 / (1 + exp(epsilon))
        assert float(ndtr(-mu / 2)) == pytest.approx(corner, rel=1e-9)
        assert gaussian_delta(epsilon, mu) > 0
    assert gdp.pure_gdp(0.0) == 0
    assert gdp.pure_gdp(700.0) < 1e3


def test_certificates_say_both() -> None:
    clip = Clamp(low=0, high=1, dimensions=4)
    plain = SplitMechanism(smashed=clip, noise=Noise(smashed=2), lower_model="frozen", rounds=4)
    told = answer.epsilon(plain, 1e-5).quantities
    assert (told["zcdp_rho"], told["gdp_mu"]) == pytest.approx((2.0, 2.0))
    assert answer.delta(plain, 1.0).quantities == told
    mixed = SplitMechanism(
        smashed=clip,
        noise=Noise(smashed=2),
        lower_model=PrivateUpdates(noise_multiplier=1.0, steps=3),
        mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=2)),
    )
    assert answer.epsilon(mixed, 1e-5).quantities["gdp_mu"] == pytest.approx(2.0, rel=1e-2)  # λ near 1, and the updates
    answers = SplitMechanism(
        smashed=Categories(classes=2, answers=comb(4, 2)),
        noise=Noise(law="randomized_response", smashed=1.0),
        lower_model="frozen",
    )
    assert answer.epsilon(answers, 1e-5).quantities == {"zcdp_rho": 0.0, "gdp_mu": 0.0}
