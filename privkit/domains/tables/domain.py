"""The domain of table rows: checks, constant guesses, and scores of guesses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from privkit.attacks.scores.tables import commonest_values, right_cells
from privkit.domains.domain import Domain, RecordValues, repeated_prints
from privkit.errors import DataError, UsageError
from privkit.shared.measures import TABLES, Records

_ROUNDING = 3e-7  # float32 in [0, 1] is off by at most a tenth of this


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Implements `Domain` for table rows: N rows are float32 [N, D + K], with D dense (numeric) columns scaled to
    [0, 1], then the category ids of K categorical columns.

    Ids are whole numbers from 0, which float32 holds exactly; models use them only to look up an embedding.

    Attributes:
        dense: names of the dense columns.
        ranges: the original values of each dense column that become 0 and 1, as public pairs (low, high).
        categorical: names of the categorical columns.
        values: the public categories of each categorical column; a category's index is the id.
        parties: number (from 0) of the party that holds each column, dense columns first; empty if one party holds all
            columns.

    >>> cars = Tables(dense=("mpg",), ranges=((10.0, 50.0),), categorical=("cylinders",), values=(("4", "8"),))
    >>> cars.shown(torch.tensor([[0.5, 1.0]]))
    ['mpg=30, cylinders=8']
    """

    kind: ClassVar[Records] = TABLES
    name: ClassVar[str] = TABLES.name
    records: ClassVar[str] = TABLES.noun

    dense: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...] = field(repr=False)
    categorical: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    parties: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.dense and not self.categorical:
            raise ValueError("a table has at least one column; name it in dense or categorical")
        for names, kept, beside in ((self.dense, self.ranges, "ranges"), (self.categorical, self.values, "values")):
            if len(names) != len(kept):
                raise ValueError(f"{beside} has {len(kept)} entries for {len(names)} columns; give one each")
        if not all(isfinite(low) and isfinite(high) and low <= high for low, high in self.ranges):
            raise ValueError("each range of a dense column is two finite numbers, the lower one first")
        if not all(self.values):
            raise ValueError("each categorical column has at least one category; leave a column without one out")
        if self.parties and (len(self.parties),) != self.shape:
            raise ValueError(f"parties has {len(self.parties)} entries for {self.shape[0]} columns; give one each")
        if set(self.parties) != set(range(len(set(self.parties)))):
            raise ValueError(f"parties are numbered 0, 1, 2, … without a gap, got {sorted(set(self.parties))}")

    @property
    def shape(self) -> tuple[int]:
        return (len(self.dense) + len(self.categorical),)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Count the categories of each of the K categorical columns."""
        return tuple(len(values) for values in self.values)

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """Count the categories of each of the D + K columns; 0 for a dense column."""
        return (*(0 for _ in self.dense), *self.sizes)

    def check(self, x: Tensor) -> None:
        d, (columns,) = len(self.dense), self.shape
        if x.ndim != 2 or x.dtype != torch.float32 or x.shape[1] != columns:
            raise DataError(f"table rows must be float32 [N, {columns}], got {x.dtype} {list(x.shape)}")
        if not len(x):
            return
        if not bool(((x[:, :d] >= 0) & (x[:, :d] <= 1)).all()):
            raise DataError("dense columns must lie in [0, 1]; scale each by its range, and fill what is missing")
        ids, sizes = x[:, d:], torch.tensor(self.sizes, device=x.device)
        if not bool(((ids >= 0) & (ids < sizes) & (ids == ids.floor())).all()):
            raise DataError("categorical columns must hold whole numbers from 0 to the column's categories less one")

    def zeros(self, count: int) -> Tensor:
        return torch.zeros(count, *self.shape)

    def random(self, count: int, generator: Generator) -> Tensor:
        x = torch.rand(count, *self.shape, generator=generator)
        d = len(self.dense)
        x[:, d:] = (x[:, d:] * torch.tensor(self.sizes)).floor()
        return x

    def extremes(self, generator: Generator) -> Tensor:
        corners = torch.randint(2, (10, *self.shape), generator=generator).float()
        corners[0], corners[1] = 0, 1
        most = torch.tensor([1.0] * len(self.dense) + [size - 1.0 for size in self.sizes])
        return corners * most

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        if not isinstance(given, Tables) or (given.dense, given.categorical) != (self.dense, self.categorical):
            raise UsageError(f"auxiliary rows must have the columns {', '.join((*self.dense, *self.categorical))}")
        if given.values != self.values:
            raise UsageError("auxiliary rows must have the same categories in their categorical columns")
        d, fitted = len(self.dense), x.clone()
        theirs, ours = (np.array(table.ranges, dtype=np.float64).reshape(-1, 2) for table in (given, self))
        other = (theirs != ours).any(1)  # a column with the same range stays exactly as it is
        cells = x[:, :d].cpu().double().numpy()
        scaled = (theirs[:, 0] - ours[:, 0] + cells * given._spans()) / self._spans()
        moved = torch.from_numpy(scaled.clip(0, 1)[:, other].astype(np.float32))
        fitted[:, :d][:, torch.from_numpy(other)] = moved.to(x.device)
        return fitted

    def fingerprints(self, x: Tensor) -> list[bytes]:
        return [hashlib.sha256(row.tobytes()).digest() for row in x.cpu().contiguous().numpy()]

    def repeats(self, x: Tensor, known: Tensor, given: Domain) -> NDArray[np.bool_]:
        """Rows of a table with other ranges count as the same if they differ by rounding only: by a few times the
        precision of float32 in each dense column, which is a share of the larger range.
        """
        if not isinstance(given, Tables) or given.ranges == self.ranges or not len(known):
            return repeated_prints(self.fingerprints(x), self.fingerprints(known))
        from scipy.spatial import KDTree

        rounding = _ROUNDING * (1 + given._spans() / self._spans())
        units = np.concatenate([rounding, np.full(len(self.categorical), 0.5)])
        rows, others = (records.cpu().double().numpy() / units for records in (x, known))
        found, _ = KDTree(others, balanced_tree=False).query(rows, p=np.inf, distance_upper_bound=1.0)
        return np.asarray(np.isfinite(found), dtype=np.bool_)

    def warning(self, x: Tensor) -> str:
        constant = (x == x[:1]).all(0).tolist()
        names = [name for name, same in zip((*self.dense, *self.categorical), constant, strict=True) if same]
        if not names:
            return ""
        return f"constant columns make every attack look good ({', '.join(names)}); leave them out"

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        d = len(self.dense)
        guess = auxiliary.mean(0)
        guess[d:] = auxiliary[:, d:].mode(0).values
        commonest = commonest_values(auxiliary.cpu().numpy(), self.column_sizes)
        return {"column_mean": guess, "commonest_values": torch.from_numpy(commonest).to(guess.device)}

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, RecordValues]:
        """Score guessed row i against true row i, both [N, D + K]: a dictionary of values [N].

        "cells" is the share in [0, 1] of right cells, and "categories" this share in categorical columns only. A dense
        cell is right if the guess is off by at most 0.05. "dense_error" is the mean absolute error of dense cells, and
        "dense_mse" is their mean squared error. Values for missing kinds of columns are left out.
        """
        d = len(self.dense)
        off = (truth - guess.to(truth.device)).abs().double().cpu().numpy()
        right = right_cells(truth.cpu().numpy(), guess.cpu().numpy(), self.column_sizes)
        values = {"cells": right.mean(1)}
        if self.dense:
            values["dense_error"] = off[:, :d].mean(1)
            values["dense_mse"] = np.square(off[:, :d]).mean(1)
        if self.categorical:
            values["categories"] = right[:, d:].mean(1)
        return values

    def distances(self, guess: Tensor, truth: Tensor) -> RecordValues:
        """Compute the share in [0, 1] of wrong cells of each of G guesses, [G, D + K], compared with each of N true
        rows, [N, D + K]: float [G, N].
        """
        rows, guesses = (records.cpu().double().numpy() for records in (truth, guess))
        return np.stack([1 - right_cells(rows, one[None], self.column_sizes).mean(1) for one in guesses])

    def _spans(self) -> RecordValues:
        """The width of each dense column's range, [D]; 1 for a constant column."""
        return np.array([high - low or 1.0 for low, high in self.ranges], dtype=np.float64)

    def shown(self, x: Tensor) -> list[str]:
        return [", ".join(f"{name}={cell}" for name, cell in self._cells(row)) for row in x.cpu().tolist()]

    def columns(self, truth: Tensor, guess: Tensor) -> dict[str, float]:
        """Compute the error of N guessed rows in each column: column's name -> error in [0, 1].

        The error of a dense column is the mean absolute error as a share of the column's range. The error of a
        categorical column is the share of wrong categories. Both arguments are [N, D + K].
        """
        d = len(self.dense)
        off = (truth - guess.to(truth.device)).abs()
        errors = torch.cat([off[:, :d].mean(0), (off[:, d:] >= 0.5).float().mean(0)]).tolist()
        return dict(zip((*self.dense, *self.categorical), errors, strict=True))

    def _cells(self, row: list[float]) -> list[tuple[str, str]]:
        d = len(self.dense)
        numbers = [f"{low + cell * (high - low):.4g}" for cell, (low, high) in zip(row[:d], self.ranges, strict=True)]
        words = [values[round(cell)] for cell, values in zip(row[d:], self.values, strict=True)]
        return list(zip((*self.dense, *self.categorical), (*numbers, *words), strict=True))
