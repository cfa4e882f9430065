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
    """Tells the coin with probability e^ε/(1+e^ε): (ε, 0), scores tie."""
    truth = 1 / (1 + np.exp(-epsilon))
    return lambda rng, coins: (coins == (rng.random(coins.size) < truth)).astype(float)


def laplace(epsilon: float) -> Draw:
    """Laplace noise of scale 1/ε on the coin: (ε, 0), and every high threshold reaches it."""
    return lambda rng, coins: coins + rng.laplace(scale=1 / epsilon, size=coins.size)


def normal(mu: float) -> Draw:
    """Gaussian noise of scale 1/μ on the coin: (ε, δ) on the exact profile."""
    return lambda rng, coins: mu * coins + rng.normal(size=coins.size)


def name_and_shame(epsilon: float, delta: float) -> Draw:
    """Tells the coin for sure with probability δ, by randomized response otherwise: (ε, δ)."""

    def draw(rng: np.random.Generator, coins: NDArray[np.bool_]) -> Array:
        told = rng.random(coins.size) < delta
        return np.where(told, np.where(coins, 9.0, -9.0), randomized_response(epsilon)(rng, coins))

    return draw


@dataclass(frozen=True, kw_only=True)
class Known:
    """One mechanism, the most that it loses, and what an accountant is told of it.

    Attributes:
        draw: log-likelihood ratios of its releases of worst neighbors, or what orders them.
        delta: at which it is audited.
        epsilon: its own ε there, by a formula or a sum over a grid that no accountant has a part in.
        mechanism: that a certificate may claim; None where no specification says it.
    """

    draw: Draw
    delta: float
    epsilon: float
    mechanism: SplitMechanism | None

    @property
    def certificate(self) -> Certificate:
        """What is claimed: the accountant's, or the very ε."""
        if self.mechanism is None:
            return Certificate(
                kind="differential_privacy", statement="", epsilon=self.epsilon, delta=self.delta, lower=self.epsilon
            )
        return answer.epsilon(self.mechanism, self.delta)


GRID = np.linspace(-12, 24, 30_001)
SHARES = np.linspace(0, 1, 101)[1:-1]


def largest_epsilon(profile: Callable[[float], float], delta: float) -> float:
    """Where a decreasing δ(ε) falls to δ."""
    return float(brentq(lambda epsilon: profile(epsilon) - delta, 0, 60))


def on_grid(first: Array, second: Array, delta: float) -> float:
    """ε of two densities on the grid, in both directions."""
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
    """Two clients mixed by random ratios, Beta(2, 2), beside another client's zero; the server may know the ratios."""
    law = DirichletRatio(concentration=2, clients=2, published=published)
    mechanism = of_one("l2", noise=Noise(smashed=1 / shift), mixing=Mixup(ratio=law), unit="client")
    weights = 6 * SHARES * (1 - SHARES)
    weights /= weights.sum()

    def ratio(x: Array) -> Array:
        """Log-likelihood of hidden ratios over that of zero."""
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
    """Of shift 1."""

    def profile(epsilon: float) -> float:
        return float(norm.cdf(0.5 - epsilon) - np.exp(epsilon) * norm.cdf(-0.5 - epsilon))

    return Known(
        draw=lambda rng, coins: coins - 0.5 + rng.normal(size=coins.size),
        delta=delta,
        epsilon=largest_epsilon(profile, delta),
        mechanism=of_one("l2", noise=Noise(smashed=1)),
    )


def laplacian(delta: float = 1e-5) -> Known:
    """Of ε 2 at δ = 0."""
    return Known(
        draw=lambda rng, coins: laplace(2.0)(rng, coins) - 0.5,
        delta=delta,
        epsilon=2 + 2 * float(np.log1p(-delta)),
        mechanism=of_one("l1", noise=Noise(law="laplace", smashed=0.5)),
    )


def answered(delta: float = 1e-5) -> Known:
    """Randomized response of ε 2 at δ = 0."""
    told = 1 / (1 + np.exp(-2.0))
    noise = Noise(law="randomized_response", smashed=2 * (1 - told))
    return Known(
        draw=lambda rng, coins: randomized_response(2.0)(rng, coins) - 0.5,
        delta=delta,
        epsilon=float(np.log((told - delta) / (1 - told))),
        mechanism=SplitMechanism(smashed=Categories(classes=2), noise=noise, lower_model="frozen"),
    )


def shaming(delta: float = 0.02) -> Known:
    """Tells all with probability δ, and is randomized response of ε 1 otherwise."""
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
    """One of them."""
    return MECHANISMS[name]()
