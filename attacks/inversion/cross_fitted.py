"""Ridge regression whose penalty is chosen, and whose own guesses are made, on records that it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FOLDS = 3
PENALTIES = tuple(10.0**power for power in range(-8, 3))
"""Of a squared coefficient, in units of the rows' total variance."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Guesses at what stands behind rows.

    Attributes:
        own: float64 [N, P], at the rows it learned from, each by a fit that never saw the row's record.
        other: float64 [M, P], at other rows, the mean over the fits.
        error: mean squared error of `own`.
    """

    own: Tensor
    other: Tensor
    error: float


def ridge(rows: Tensor, targets: Tensor, folds: Tensor, other: Tensor) -> Fitted:
    """Fit targets linearly on rows, once without each fold, with the penalty that guesses the left-out folds best.

    Args:
        rows: float [N, F], on the scale that they have; F may exceed N.
        targets: float [N, P].
        folds: int64 [N], each row's fold in 0..FOLDS-1; rows of one record share a fold.
        other: float [M, F], rows whose targets are wanted.

    Source: Hoerl and Kennard 1970; the penalty by cross-validation (Stone 1974).

    >>> x = torch.arange(9.0).unsqueeze(1)
    >>> ridge(x, 2 * x + 1, torch.arange(9) % 3, torch.tensor([[20.0]])).other.round(decimals=3).item()
    41.0
    """
    rows, targets, other = rows.double(), targets.double(), other.double()
    fits = [_Fit.of(rows[folds != fold], targets[folds != fold]) for fold in range(FOLDS)]
    left_out = [folds == fold for fold in range(FOLDS)]

    def guessed(penalty: float) -> Tensor:
        own = torch.empty_like(targets)
        for fit, out in zip(fits, left_out, strict=True):
            own[out] = fit.guess(rows[out], penalty)
        return own

    errors = [float((guessed(penalty) - targets).square().mean()) for penalty in PENALTIES]
    best = PENALTIES[errors.index(min(errors))]
    mean = torch.stack([fit.guess(other, best) for fit in fits]).mean(0)
    return Fitted(own=guessed(best), other=mean, error=min(errors))


@dataclass(frozen=True)
class _Fit:
    """One fit, factored so that every penalty costs one product."""

    middle: Tensor
    mean: Tensor
    basis: Tensor
    values: Tensor
    along: Tensor

    @classmethod
    def of(cls, rows: Tensor, targets: Tensor) -> _Fit:
        middle, mean = rows.mean(0), targets.mean(0)
        values, basis = torch.linalg.eigh((rows - middle).T @ (rows - middle))
        return cls(middle, mean, basis, values.clamp_min(0), basis.T @ ((rows - middle).T @ (targets - mean)))

    def guess(self, rows: Tensor, penalty: float) -> Tensor:
        shrunk = self.along / (self.values + penalty * self.values.sum().clamp_min(1e-300)).unsqueeze(1)
        return (rows - self.middle) @ self.basis @ shrunk + self.mean
