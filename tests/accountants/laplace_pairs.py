"""Sampled vectors with Laplace noise: drawn specifications, and pairs of data sets with losses rounded down.

No bound of the accountants is used here. Losses rounded down make every δ and every moment smaller, so that what
follows is a lower bound on what the pair gives away.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, WithoutReplacement
from privkit.accountants.spec.sensitivity import BoxLabels, Clamp, OneHot

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """One specification: shifts of coordinates over their scales, k of n clients, rounds."""

    smashed: tuple[float, int]
    labels: tuple[float, int] | None
    chosen: int
    clients: int
    rounds: int

    @property
    def mechanism(self) -> SplitMechanism:
        shift, many = self.smashed
        given: dict[str, Any] = {"noise": Noise(law="laplace", smashed=1.0)}
        if self.labels is not None:
            each, classes = self.labels
            given = {
                "labels": OneHot() if classes == 2 else BoxLabels(classes=classes),
                "noise": Noise(law="laplace", smashed=1.0, labels=1 / each),
            }
        return SplitMechanism(
            smashed=Clamp(low=0, high=shift, dimensions=many),
            participation=WithoutReplacement(chosen=self.chosen, clients=self.clients),
            lower_model="frozen",
            rounds=self.rounds,
            **given,
        )

    @property
    def shifts(self) -> Array:
        parts = [self.smashed, *([self.labels] if self.labels else [])]
        return np.concatenate([np.full(many, shift) for shift, many in parts])


def drawn(random: np.random.Generator, most: int) -> Drawn:
    """A specification with at most `most` coordinates of smashed data."""
    many, clients = int(random.integers(1, most + 1)), int(random.integers(2, 60))
    total = 10 ** random.uniform(-1, 0.8)
    labels = (float(10 ** random.uniform(-1.5, 0.3)), int(random.integers(2, 5))) if random.random() < 0.3 else None
    return Drawn(
        smashed=(float(total / many ** random.uniform(0.5, 1)), many),
        labels=labels,
        chosen=int(random.integers(1, clients)) if random.random() < 0.3 else 1,
        clients=clients,
        rounds=int(10 ** random.uniform(0, 2)),
    )


# Pairs at the ends: all other data equal one neighbor's ---------------------------------------------------------------


def base_losses(shifts: Array, d: float) -> tuple[Array, Array, Array]:
    """Sums of coordinates' losses, each rounded down to a grid, under P and under Q; and their values."""
    under_p, under_q, low, most = np.ones(1), np.ones(1), 0, 0
    for shift in shifts[shifts > 0]:
        edge = int(np.ceil(shift / d)) + 1
        ends = np.arange(-edge, edge + 1) * d
        inside = np.clip(ends, -shift, shift)
        p = np.diff(np.exp((inside - shift) / 2)) / 2
        q = -np.diff(np.exp(-(inside + shift) / 2)) / 2
        for masses, top, bottom in ((p, 0.5, exp(-shift) / 2), (q, exp(-shift) / 2, 0.5)):
            masses[int(np.floor(shift / d)) + edge] += top
            masses[int(np.floor(-shift / d)) + edge] += bottom
        under_p, under_q, low, most = np.convolve(under_p, p), np.convolve(under_q, q), low - edge, most + edge
    return (
        np.asarray(under_p, float),
        np.asarray(under_q, float),
        np.asarray((low + np.arange(under_p.size)) * d, float),
    )


def rounds_below(one: Drawn, shifts: Array, first: int) -> tuple[Array, Array]:
    """Composed losses of a pair, rounded down: others equal to Q's neighbor in `first` rounds, to P's in the rest."""
    under_p, under_q, loss = base_losses(shifts, float(shifts.sum()) / 2000)
    g = one.chosen / one.clients
    mixed = np.logaddexp(log(1 - g), log(g) + loss)
    kinds = [((1 - g) * under_q + g * under_p, mixed), (under_p, -np.logaddexp(log(1 - g), log(g) - loss))]
    spread = max(float(np.sqrt(p @ values**2)) for p, values in kinds)
    reach = float(mixed[-1] - mixed[0])
    d = max(spread / (20 * one.rounds**0.5), reach / 20_000)
    places = [np.floor(values / d).astype(int) for _, values in kinds]
    masses = [np.bincount(place - place[0], p) for (p, _), place in zip(kinds, places, strict=True)]
    counts = (first, one.rounds - first)
    size = 1 + sum(count * (part.size - 1) for count, part in zip(counts, masses, strict=True))
    spectrum = np.ones(size // 2 + 1, complex)
    for part, count in zip(masses, counts, strict=True):
        spectrum *= np.fft.rfft(part, size) ** count if count else 1
    low = sum(count * int(place[0]) for count, place in zip(counts, places, strict=True))
    return np.maximum(np.fft.irfft(spectrum, size), 0), (low + np.arange(size)) * d


def delta_of(masses: Array, losses: Array, epsilon: float) -> float:
    return float(masses @ np.maximum(0, -np.expm1(np.minimum(epsilon - losses, 0))))
