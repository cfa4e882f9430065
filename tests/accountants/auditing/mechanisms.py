"""Scores of canaries under mechanisms whose ε is known."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from privkit.accountants import answer
from privkit.accountants.auditing import many_runs, one_run
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio
from privkit.accountants.spec.parts import Mixup, Noise, Poisson
from privkit.accountants.spec.sensitivity import Categories, Clamp
from privkit.accountants.spec.sensitivity import Known as OneNumber
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, NDArray[np.bool_]], Array]
"""Scores of canaries whose coins are given, independent of each other."""


BOUNDS: list[Callable[..., EmpiricalBound]] = [many_runs.epsilon_clopper_pearson, one_run.epsilon_one_run]


def randomized_response(epsilon: float) -> Draw:
    """Reveals the coin with probability e^ε/(1+e^ε), so it is (ε, 0)-DP; many scores are equal."""
    truth = 1 / (1 + np.exp(-epsilon))
    return lambda rng, coins: (coins == (rng.random(coins.size) < truth)).astype(float)


def laplace(epsilon: float) -> Draw:
    """Laplace noise of scale 1/ε on the coin, so it is (ε, 0)-DP; a test at any high threshold reaches this ε."""
    return lambda rng, coins: coins + rng.laplace(scale=1 / epsilon, size=coins.size)


def normal(mu: float) -> Draw:
    """Gaussian noise of scale 1/μ on the coin; (ε, δ) lies on the exact Gaussian profile."""
    return lambda rng, coins: mu * coins + rng.normal(size=coins.size)


def name_and_shame(epsilon: float, delta: float) -> Draw:
    """Reveals the coin with probability δ, and answers by randomized response otherwise, so it is (ε, δ)-DP."""

    def draw(rng: np.random.Generator, coins: NDArray[np.bool_]) -> Array:
        told = rng.random(coins.size) < delta
        return np.where(told, np.where(coins, 9.0, -9.0), randomized_response(epsilon)(rng, coins))

    return draw


@dataclass(frozen=True, kw_only=True)
class Known:
    """One mechanism, its true ε, and its specification for an accountant.

    Attributes:
        draw: function that draws scores: log-likelihood ratios of releases of worst neighbors, or numbers in their
            order.
        delta: the δ at which the mechanism is audited.
        epsilon: its true ε at this δ, by a formula or a sum over a grid; no accountant is used.
        mechanism: its specification; None if the accountants cannot specify it.
    """

    draw: Draw
    delta: float
    epsilon: float
    mechanism: SplitMechanism | None

    @property
    def certificate(self) -> Certificate:
        """The accountant's certificate; without a specification, a certificate of the true ε."""
        if self.mechanism is None:
            return Certificate(
                kind="differential_privacy", statement="", epsilon=self.epsilon, delta=self.delta, lower=self.epsilon
            )
        return answer.epsilon(self.mechanism, self.delta)


GRID = np.linspace(-12, 24, 30_001)
SHARES = np.linspace(0, 1, 101)[1:-1]


def largest_epsilon(profile: Callable[[float], float], delta: float) -> float:
    """The ε at which a decreasing function δ(ε) reaches δ."""
    return float(brentq(lambda epsilon: profile(epsilon) - delta, 0, 60))


def on_grid(first: Array, second: Array, delta: float) -> float:
    """ε at δ of two densities given on `GRID`, the larger of both directions."""
    step = GRID[1] - GRID[0]

    def profile(epsilon: float) -> float:
        sides = (first - np.exp(epsilon) * second, second - np.exp(epsilon) * first)
        return max(float(np.maximum(side, 0).sum()) * step for side in sides)

    return largest_epsilon(profile, delta)


def of_one(norm_: Any, relation: Any = "replace_one", **options: Any) -> SplitMechanism:
    """One release of one number in [0, 1]."""
    one: Any = OneNumber(value=1, relation=relation, norm=norm_)
    if norm_ == "l1":
        one = Clamp(low=0, high=1, dimensions=1)
    return SplitMechanism(smashed=one, relation=relation, lower_model="frozen", **options)


def mixed(shift: float, published: bool, delta: float = 1e-5) -> Known:
    """Mixup of a client with another one that sends 0, by random Beta(2, 2) ratios, which may be `published`."""
    law = DirichletRatio(concentration=2, clients=2, published=published)
    mechanism = of_one("l2", noise=Noise(smashed=1 / shift), mixing=Mixup(ratio=law), unit="client")
    weights = 6 * SHARES * (1 - SHARES)
    weights /= weights.sum()

    def ratio(x: Array) -> Array:
        """Log-likelihood ratio of x: the client's number 1 under hidden ratios, against 0."""
        hidden = [np.log(w) + shift * s * x - (shift * s) ** 2 / 2 for w, s in zip(weights, SHARES, strict=True)]
        return np.asarray(np.logaddexp.reduce(hidden))

    def draw(rng: np.random.Generator, coins: NDArray[np.bool_]) -> Array:
        means = shift * rng.beta(2, 2, coins.size)
        x = coins * means + rng.normal(size=coins.size)
        return means * (x - means / 2) if published else ratio(x)

    if published:
        fine = (np.arange(4_000) + 0.5) / 4_000
        means, density = shift * fine, 6 * fine * (1 - fine) / 4_000

        def profile(epsilon: float) -> float:
            tails = norm.cdf(means / 2 - epsilon / means) - np.exp(epsilon) * norm.cdf(-means / 2 - epsilon / means)
            return float(density @ tails)

        truth = largest_epsilon(profile, delta)
    else:
        alone = norm.pdf(GRID)
        truth = on_grid(alone * np.exp(ratio(GRID)), alone, delta)
    return Known(draw=draw, delta=delta, epsilon=truth, mechanism=mechanism)


def sampled(rate: float, shift: float, delta: float = 1e-5) -> Known:
    """A record that is added by a secret coin to a sum with Gaussian noise."""
    noise, taking = Noise(smashed=1 / shift), Poisson(rate=rate)
    mechanism = of_one("l2", "add_or_remove_one", noise=noise, participation=taking)

    def draw(rng: np.random.Generator, coins: NDArray[np.bool_]) -> Array:
        x = shift * (coins & (rng.random(coins.size) < rate)) + rng.normal(size=coins.size)
        return np.log1p(rate * np.expm1(shift * x - shift**2 / 2))

    without = norm.pdf(GRID)
    added = (1 - rate) * without + rate * norm.pdf(GRID, shift)
    return Known(draw=draw, delta=delta, epsilon=on_grid(added, without, delta), mechanism=mechanism)


def gaussian(delta: float = 1e-5) -> Known:
    """The Gaussian mechanism with shift 1 and σ = 1."""

    def profile(epsilon: float) -> float:
        return float(norm.cdf(0.5 - epsilon) - np.exp(epsilon) * norm.cdf(-0.5 - epsilon))

    return Known(
        draw=lambda rng, coins: coins - 0.5 + rng.normal(size=coins.size),
        delta=delta,
        epsilon=largest_epsilon(profile, delta),
        mechanism=of_one("l2", noise=Noise(smashed=1)),
    )


def laplacian(delta: float = 1e-5) -> Known:
    """The Laplace mechanism with ε = 2 at δ = 0."""
    return Known(
        draw=lambda rng, coins: laplace(2.0)(rng, coins) - 0.5,
        delta=delta,
        epsilon=2 + 2 * float(np.log1p(-delta)),
        mechanism=of_one("l1", noise=Noise(law="laplace", smashed=0.5)),
    )


def answered(delta: float = 1e-5) -> Known:
    """Randomized response with ε = 2 at δ = 0."""
    told = 1 / (1 + np.exp(-2.0))
    noise = Noise(law="randomized_response", smashed=2 * (1 - told))
    return Known(
        draw=lambda rng, coins: randomized_response(2.0)(rng, coins) - 0.5,
        delta=delta,
        epsilon=float(np.log((told - delta) / (1 - told))),
        mechanism=SplitMechanism(smashed=Categories(classes=2), noise=noise, lower_model="frozen"),
    )


def shaming(delta: float = 0.02) -> Known:
    """Reveals everything with probability δ, and is randomized response with ε = 1 otherwise."""
    return Known(
        draw=lambda rng, coins: name_and_shame(1.0, delta)(rng, coins) - 0.5,
        delta=delta,
        epsilon=1.0,
        mechanism=None,
    )


MECHANISMS: dict[str, Callable[[], Known]] = {
    "gaussian": gaussian,
    "laplace": laplacian,
    "randomized response": answered,
    "sampled": lambda: sampled(0.3, 3.0),
    "mixed by public ratios": lambda: mixed(3.0, True),
    "mixed by secret ratios": lambda: mixed(3.0, False),
    "tells all now and then": shaming,
}
"""Mechanisms of different curves; a likelihood ratio of 1 is a score of 0."""


@cache
def known(name: str) -> Known:
    """Compute one of `MECHANISMS` by its name; the result is cached."""
    return MECHANISMS[name]()
