"""Layers and noise for tests of the denoising theory."""

from math import sqrt

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer

Array = NDArray[np.float64]

COUNTER = [[20.0, 3.0], [20.0, 0.0]], [0.0, 1.0], 0
"""M, X and label of the counter-example to Theorem 3.4; σ² = .0075."""

entry = st.floats(-3, 3)
noises = st.builds(CutNoise, law=st.sampled_from(["gaussian", "laplace"]), scale=st.floats(0.01, 5))
shares = st.floats(0, 1)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
    """M [m, n] and X [n], small; one entry of M is not tiny, so that its norm is not an underflow."""
    m, n = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    weights = [[draw(entry) for _ in range(n)] for _ in range(m)]
    weights[0][0] = draw(st.floats(0.1, 3))
    return weights, [draw(entry) for _ in range(n)]


def layer_at(weights: ArrayLike, features: ArrayLike) -> LinearLayer:
    """The layer M = `weights` [m, n] at X = `features` [n]."""
    m, x = np.asarray(weights, float), np.asarray(features, float)
    out = m @ x
    return LinearLayer(signal=float(out @ out), diagonal=float(np.sum((m * x) ** 2)), weight=float(np.sum(m * m)))


layers = matrices().map(lambda made: layer_at(*made))


def layer_of(seed: int, rows: int, columns: int) -> tuple[Array, Array]:
    """The reference tables' layer: M first, then X."""
    generator = np.random.default_rng(seed)
    return generator.uniform(-1, 1, (rows, columns)), generator.uniform(-1, 1, columns)


def drawn(generator: np.random.Generator, law: str, scale: float, shape: tuple[int, ...]) -> Array:
    """Noise, by the definition of its law: Laplace as a difference of exponentials."""
    if law == "gaussian":
        return scale * generator.standard_normal(shape)
    return scale * (generator.exponential(size=shape) - generator.exponential(size=shape))


def z_score(sample: Array, expected: float) -> float:
    """Standard errors between a sample's mean and what it should be."""
    return float((sample.mean() - expected) / (sample.std(ddof=1) / sqrt(len(sample))))
