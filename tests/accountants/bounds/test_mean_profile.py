"""The mean of Gaussian profiles on panels: never below the mean of exact ones, and closer to it than rounding matters.

The reference is computed with 40 digits, from the hockey-stick integral's closed form alone.
"""

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from privkit.accountants.bounds import mean_profile as module
from privkit.accountants.bounds.mean_profile import mean_profile

Array = NDArray[np.float64]


def exact(epsilon: float, mu: Array, weight: Array) -> mpmath.mpf:
    """Σ weight·(Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)) of the floats that were given."""
    with mpmath.workdps(40):
        e, total = mpmath.mpf(epsilon), mpmath.mpf(0)
        for one, chance in zip(mu.tolist(), weight.tolist(), strict=True):
            m = mpmath.mpf(one)
            total += chance * (mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))
        return min(total, mpmath.mpf(1))  # weights may sum to more, by rounding


def drawn(seed: int) -> tuple[Array, Array, Array]:
    """ε, shifts and probabilities: one cluster or many scales, from tiny to large shifts."""
    random = np.random.default_rng([seed, 5])
    many = int(random.integers(1, 25))
    largest = 10 ** random.uniform(-3, 2.3)
    mu = largest * (random.random(many) ** (1, 4, 20)[seed % 3] if random.random() < 0.8 else np.ones(many))
    mu = np.maximum(mu, 1e-200)
    weight = random.dirichlet(np.full(many, 0.4)) + 1e-30
    weight /= weight.sum() * random.choice([1.0, 1.0, 3.0])
    reach = largest**2 / 2 + largest * random.uniform(3, 12)
    epsilon = np.unique(np.linspace(0, reach, int(random.integers(2, 5000))))
    return epsilon, mu, weight


def faults(seed: int) -> list[tuple[float, ...]]:
    """ε at which a value is below the exact one, or so far above it that an answer would notice."""
    epsilon, mu, weight = drawn(seed)
    found = mean_profile(epsilon, mu, weight)
    random, wrong = np.random.default_rng(seed), list[tuple[float, ...]]()
    for i in {0, epsilon.size - 1, *random.integers(0, epsilon.size, 12).tolist()}:
        true = exact(float(epsilon[i]), mu, weight)
        if true < mpmath.mpf("1e-300"):
            continue
        above = float((mpmath.mpf(float(found[i])) - true) / true)
        with mpmath.workdps(40):
            body = float(sum(w * mpmath.ncdf(m / 2 - float(epsilon[i]) / m) for m, w in zip(mu, weight, strict=True)))
        if above < 0 or above > 1e-11 * (1 + float(mu.max())) + 3e-13 * body / float(true):
            wrong.append((seed, float(epsilon[i]), above, float(true)))
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("block", range(12))
def test_never_below_the_exact_mean_and_close_to_it(block: int) -> None:
    assert [fault for seed in range(25 * block, 25 * block + 25) for fault in faults(seed)] == []


@pytest.mark.slow
def test_the_margin_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: wide panels without their error are below the truth somewhere."""
    monkeypatch.setattr(module, "_remainder", lambda left, right, mu, weight: np.zeros(left.size))
    monkeypatch.setattr(module, "_STEEPEST", 1e9)
    assert [fault for seed in range(40) for fault in faults(seed)] != []


def test_the_remainder_is_above_the_error_of_every_panel() -> None:
    """Polynomials of few nodes, whose error can be seen beside rounding."""
    random = np.random.default_rng(0)
    for _ in range(300):
        mu = 10 ** random.uniform(-1, 1, 5)
        weight = random.dirichlet(np.ones(5))
        left = np.array([float(10 ** random.uniform(-2, 1.5))])
        right = left + 10 ** random.uniform(-2, 0.5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_NODES", int(random.integers(3, 9)))
            angle = (np.arange(module._NODES) + 0.5) * np.pi / module._NODES
            nodes = (left + right) / 2 + (right - left) / 2 * np.cos(angle)
            at = np.linspace(float(left[0]), float(right[0]), 41)
            through = np.polynomial.Polynomial.fit(nodes, module._mean(nodes, mu, weight), module._NODES - 1)
            gone = np.abs(through(at) - module._mean(at, mu, weight)).max()
            assert gone <= module._remainder(left, right, mu, weight)[0] * (1 + 1e-9) + 1e-13
