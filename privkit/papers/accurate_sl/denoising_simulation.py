"""Simulates masking and scaling of noisy smashed data, for the curves of Figs. 2, 6 and 7 of accurate split learning.

The paper draws the server's first layer M (m×n) and the smashed data X from U[−1, 1], and averages k = 1000 results. It
does not define m, n, f_2 and f_2', and its simulations were not released. We chose the following (`Settings.describe`
prints m and n):

- m = 10 classes, n = 16 smashed features (the smallest split layer in the paper's experiments),
- M, X and the true class y* are drawn anew in each of the k draws,
- f_1(u) = Mu, f_2(u) = the softmax cross-entropy of Mu, f_2'(u) = Mᵀ(softmax(Mu) − y*), its gradient at the cut,
- one mask of the smashed data for all rows of M, and the same random draws for every noise level, p and λ, so that
  differences between curves are not due to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil
from typing import Literal

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from privkit.papers.accurate_sl.denoising import CutNoise
from privkit.shared.array import Array

_QUANTITIES = ("linear", "loss", "gradient")
_OPERATORS = ("scaling", "masking")

_BLOCK = 2_000_000  # largest count of entries of M in memory at a time


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a simulation; the module's docstring explains the letters."""

    law: Literal["gaussian", "laplace"] = "gaussian"  # law of the noise
    scales: tuple[float, ...] = (0.3, 0.5, 0.7)  # σ (Gaussian) or b (Laplace) > 0 of each curve
    rows: int = 10  # number m ≥ 2 of classes
    columns: int = 16  # number n ≥ 1 of smashed features
    draws: int = 1000  # number k ≥ 2 of draws
    points: int = 21  # number ≥ 2 of values of λ and of p, from 0 to 1
    seed: int = 0  # seed of numpy's default generator

    def describe(self) -> str:
        """The settings in one line, which marks the values that the paper does not give as chosen."""
        symbol = "σ" if self.law == "gaussian" else "b"
        return (
            f"{self.law} noise, {symbol} = {', '.join(f'{scale:g}' for scale in self.scales)}; "
            f"k = {self.draws} draws, seed {self.seed}; "
            f"chosen (the paper does not say): m = {self.rows}, n = {self.columns}"
        )


FIGURES: Mapping[str, tuple[Settings, Sequence[str]]] = {
    "figure_2": (Settings(), ("linear", "loss")),  # forward
    "figure_6": (Settings(), ("gradient",)),  # backward; the gradient of a linear layer is M for any noise
    "figure_7": (Settings(law="laplace"), _QUANTITIES),
}
"""Figure of Xu et al. -> its settings, and the quantities that it shows under scaling and masking."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Mean squared errors of one quantity under scaling or masking."""

    quantity: str  # "linear" (f_1), "loss" (f_2) or "gradient" (f_2')
    operator: str  # "scaling" or "masking"
    factor: Array  # λ or p from 0 to 1, [points]; at 1 the data are not denoised
    scale: Array  # σ or b of the noise, [levels]
    mse: Array  # mean squared error, summed over the quantity's entries, [levels, points]
    error: Array  # standard error of `mse`, [levels, points]


def simulate(settings: Settings, quantities: Sequence[str] = _QUANTITIES) -> list[Curves]:
    """Simulate two curves for each quantity ("linear", "loss", "gradient"): first with scaling, then with masking."""
    factor = np.linspace(0.0, 1.0, settings.points)
    cells = list(product(quantities, _OPERATORS))
    shape = (len(cells), len(settings.scales), settings.points)
    total, squares = np.zeros(shape), np.zeros(shape)
    for batch in _batches(settings):
        for level, scale in enumerate(settings.scales):
            noisy = batch.features + scale * batch.noise
            for point, value in enumerate(factor):
                denoised = {"scaling": value * noisy, "masking": (batch.uniform < value) * noisy}
                errors = {operator: batch.squared_errors(seen) for operator, seen in denoised.items()}
                for cell, (quantity, operator) in enumerate(cells):
                    error = errors[operator][quantity]
                    total[cell, level, point] += error.sum()
                    squares[cell, level, point] += (error**2).sum()
    mean = total / settings.draws
    variance = np.maximum(squares / settings.draws - mean**2, 0.0) / (settings.draws - 1)
    return [
        Curves(
            quantity=quantity,
            operator=operator,
            factor=factor,
            scale=np.array(settings.scales),
            mse=mean[cell],
            error=np.sqrt(variance[cell]),
        )
        for cell, (quantity, operator) in enumerate(cells)
    ]


def best_scales(settings: Settings, scale: float) -> Array:
    """The scale λ* with the smallest error for each simulated pair of M and X, float [draws] in [0, 1], for comparison
    with the λ that is best on average. `scale` is σ of Gaussian noise, or b of Laplace noise."""
    noise, best = CutNoise(law=settings.law, scale=scale), []
    for batch in _batches(settings):
        signal = (batch.clean["linear"] ** 2).sum(axis=1)
        weight = (batch.weights**2).sum(axis=(1, 2))
        best.append(signal / (signal + noise.variance * weight))  # `denoising.least_mse_scale` for all layers at once
    return np.concatenate(best)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """The random numbers of k draws, for m classes and n smashed features."""

    weights: Array  # [k, m, n], the server's first layer M
    features: Array  # [k, n], the smashed data X
    noise: Array  # [k, n], noise of scale 1
    uniform: Array  # [k, n], uniform numbers for masks
    label: NDArray[np.int64]  # [k], the true classes

    @cached_property
    def clean(self) -> dict[str, Array]:
        return self.results(self.features)

    def results(self, seen: Array) -> dict[str, Array]:
        """The values f_1 [k, m], f_2 [k, 1] and f_2' [k, n], computed on the smashed data `seen` [k, n]."""
        logits = np.matmul(self.weights, seen[:, :, None])[:, :, 0]
        each = np.arange(len(logits))
        slope = softmax(logits, axis=1)
        slope[each, self.label] -= 1
        return {
            "linear": logits,
            "loss": (logsumexp(logits, axis=1) - logits[each, self.label])[:, None],
            "gradient": np.matmul(slope[:, None, :], self.weights)[:, 0, :],
        }

    def squared_errors(self, seen: Array) -> dict[str, Array]:
        """‖f(X) − f(seen)‖² of each draw, [k], for each quantity f."""
        return {name: ((self.clean[name] - estimate) ** 2).sum(axis=1) for name, estimate in self.results(seen).items()}


def _batches(settings: Settings) -> Iterator[_Batch]:
    generator, left = default_rng(settings.seed), settings.draws
    most = max(1, _BLOCK // (settings.rows * settings.columns))
    for size in (min(most, left - start * most) for start in range(ceil(left / most))):
        shape = (size, settings.columns)
        yield _Batch(
            weights=generator.uniform(-1, 1, (size, settings.rows, settings.columns)),
            features=generator.uniform(-1, 1, shape),
            noise=generator.standard_normal(shape) if settings.law == "gaussian" else generator.laplace(size=shape),
            uniform=generator.random(shape),
            label=generator.integers(settings.rows, size=size),
        )
