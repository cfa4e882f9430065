"""The Laplace mechanism: pure ε, Rényi divergence, and its privacy profile in one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.bounds import laplace_vector
from privkit.accountants.bounds.bound import ClosedForm
from privkit.accountants.bounds.round_profiles import laplace_profile as profile
from privkit.accountants.bounds.sampled import SampledStep
from privkit.accountants.bounds.step import Pairs
from privkit.accountants.bounds.subsampled_rdp import without_replacement_grid_rdp, without_replacement_rdp
from privkit.accountants.bounds.subsampling import amplify, without_replacement_delta
from privkit.accountants.bounds.truncated_losses import Piece
from privkit.shared.array import Array


@dataclass(frozen=True, kw_only=True)
class LaplaceRelease(SampledStep):
    """Releases with independent Laplace noise on every coordinate."""

    parts: tuple[tuple[float, int], ...]  # pairs (shift divided by the scale, number of coordinates with this shift)
    single: bool = False  # whether the release is one coordinate
    worst: bool = True  # whether a pair of neighbors is known that moves every coordinate by its shift

    @property
    def reached(self) -> bool:
        return self.worst and self.rate == 1

    def rdp(self, orders: Array, count: int) -> Array:
        if self.rate == 1:
            return np.asarray(count * _vector_rdp(orders, self.parts), float)
        curve = without_replacement_rdp(orders, self.rate, lambda order: _vector_rdp(order, self.parts))
        if (base := laplace_vector.losses(self.parts)) is not None:
            curve = np.minimum(curve, without_replacement_grid_rdp(orders, self.rate, base))
        return np.asarray(count * curve, float)

    def pure(self, count: int) -> float:
        return count * float(amplify(self._once, self.rate))

    def most(self, count: int) -> list[tuple[float, int]]:
        told = [(shift, many * count) for shift, many in self.parts]
        sampled = [(self.pure(1), count)]
        return min(told, sampled, key=lambda losses: sum(number * loss**2 for loss, number in losses))

    def exact(self, count: int) -> ClosedForm | None:
        if not self.single or count > 1 or self.rate < 1:
            return None
        once = self._once
        return ClosedForm.of_profile(
            "exact Laplace profile", "derived", lambda at: epsilon(at, once), lambda at: delta(at, once)
        )

    def pairs(self, count: int) -> Pairs | None:
        if self.rate == 1:
            return [(profile(shift), many * count) for shift, many in self.parts]
        alone = sum(many for _, many in self.parts) == 1
        base = profile(self.parts[0][0]) if alone else laplace_vector.profile(self.parts)
        if base is None:
            return None
        return [(lambda epsilon: without_replacement_delta(epsilon, self.rate, base), count)]

    @property
    def gains(self) -> bool:
        return 0 < self.rate < 1 and self._once > 0

    def pieces(self, count: int) -> list[Piece] | None:
        if self.rate == 0 or self._once == 0:
            return []
        together = [(self.parts, 1)] if self.rate < 1 else [(((shift, 1),), many) for shift, many in self.parts]
        found = list[Piece]()
        for parts, many in together:
            if (loss := laplace_vector.losses(parts)) is None:
                return None
            error = laplace_vector.error(parts)
            found.append(Piece(np.ones(1), np.ones(1), self.rate, many * count, False, loss, error))
        return found

    @property
    def _once(self) -> float:
        return sum(shift * many for shift, many in self.parts)


def rdp(orders: ArrayLike, shift: ArrayLike) -> Array:
    """The Rényi divergence, at orders α > 1, of two Laplace distributions of scale 1 whose means differ by `shift` ≥ 0.

    Source: Mironov 2017, Proposition 6.
    """
    a, t = np.asarray(orders, float), np.asarray(shift, float)
    up, down = (a - 1) * t, -a * t
    with np.errstate(over="ignore", invalid="ignore"):
        # p·up + (1 − p)·down = 0 with p = α/(2α − 1): without the linear terms nothing cancels.
        small = np.log1p((a * _beyond_linear(up) + (a - 1) * _beyond_linear(down)) / (2 * a - 1))
        large = np.logaddexp(np.log(a / (2 * a - 1)) + up, np.log((a - 1) / (2 * a - 1)) + down)
    return np.asarray(np.where(up < 1, small, large) / (a - 1))


def _vector_rdp(orders: ArrayLike, parts: Sequence[tuple[float, int]]) -> Array:
    """The Rényi divergence of independent Laplace coordinates: the sum of their divergences. `parts` is as in
    `LaplaceRelease`. Source: Mironov 2017, Proposition 1."""
    return np.asarray(sum((count * rdp(orders, shift) for shift, count in parts), np.zeros(np.shape(orders))))


def _beyond_linear(x: Array) -> Array:
    """e^x − 1 − x ≥ 0, without cancellation."""
    series = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7)))))
    return np.where(np.abs(x) < 0.01, series, np.expm1(x) - x)


def delta(epsilon: float, shift: float) -> float:
    """The smallest δ at ε ≥ 0 of one Laplace variable. Between neighbors its mean differs by t = `shift` ≥ 0 times the
    scale.

    It is 1 − exp((ε − t)/2) for ε ≤ t, and 0 for larger ε.

    Source: derived from the hockey-stick integral; equals Balle et al. 2018's profile.
    """
    e, t = validate.real("epsilon", epsilon, least=0), validate.real("shift", shift, least=0)
    return -expm1((e - t) / 2) if e < t else 0.0


def epsilon(delta_: float, shift: float) -> float:
    """The smallest ε at δ in (0, 1) of one Laplace variable whose mean differs by t = `shift` ≥ 0 times the scale
    between neighbors: t + 2·ln(1 − δ), at least 0.
    """
    d, t = validate.delta(delta_), validate.real("shift", shift, least=0)
    return max(0.0, t + 2 * log(1 - d))
