"""Scores of canaries under mechanisms whose ε is known."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.auditing import many_runs, one_run
from privkit.empirical_bound import EmpiricalBound

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
