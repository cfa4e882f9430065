"""Datasets of tables: two that ship inside installed packages, and a user's own file."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from privkit.domains.base import Pools
from privkit.domains.official import need_root
from privkit.domains.rows import BadRow, good_rows, numbered_lines
from privkit.domains.tables.reading import table_pools
from privkit.errors import DataError

_FOREIGN = re.compile("[\udc80-\udcff]")
"""What stands for a byte that is no UTF-8."""


@dataclass(frozen=True, kw_only=True)
class BreastCancer:
    """569 patients, 30 measurements of cell nuclei each; the label says whether the tumor is malignant.

    Source: scikit-learn `load_breast_cancer`, Street, Wolberg and Mangasarian 1993.

    >>> BreastCancer().open(None, download=False, train_images=10).train.x.shape
    torch.Size([569, 30])
    """

    name: ClassVar[str] = "breast_cancer"
    domain: ClassVar[str] = "tables"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from sklearn.datasets import load_breast_cancer

        loaded = load_breast_cancer()
        dense = {str(name): column for name, column in zip(loaded.feature_names, loaded.data.T, strict=True)}
        return table_pools(dense, {}, [str(loaded.target_names[label]) for label in loaded.target])


@dataclass(frozen=True, kw_only=True)
class AutoMpg:
    """392 cars, five dense columns and two categorical ones; the label says where a car was made.

    Source: mlxtend `autompg_data`, Quinlan 1993, UCI machine learning repository.

    >>> AutoMpg().open(None, download=False, train_images=10).train.domain.categorical
    ('cylinders', 'model year')
    """

    name: ClassVar[str] = "auto_mpg"
    domain: ClassVar[str] = "tables"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from mlxtend.data import autompg_data

        cells, mpg = autompg_data()
        cylinders, *dense, year, origin = cells[:, :7].T
        names = ("displacement", "horsepower", "weight", "acceleration")
        return table_pools(
            {"mpg": mpg, **dict(zip(names, dense, strict=True))},
            {"cylinders": [f"{value:.0f}" for value in cylinders], "model year": [f"{value:.0f}" for value in year]},
            [("USA", "Europe", "Japan")[int(value) - 1] for value in origin],
        )


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A user's table: a CSV file with a header in the data root.

    A column whose cells are all numbers or empty is dense; any other is categorical. Ranges and categories are taken
    from the whole file, as public.

    Attributes:
        file: name of the file inside the data root, as it is or compressed by gzip (.gz); UTF-8.
        label: column of the label.
        skip_bad_rows: whether rows with missing or extra cells are left out. The row of an audit says how many.

    Source: the user's.
    """

    name: ClassVar[str] = "table_file"
    domain: ClassVar[str] = "tables"

    file: str = "table.csv"
    label: str = "label"
    skip_bad_rows: bool = False

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Read the file; see `DatasetSpec.open`."""
        root = need_root(self.name, root, self.file)
        path = root / self.file
        lines = csv.reader(
            line.decode("utf-8", "surrogateescape") for _, line in numbered_lines(self.name, root, self.file)
        )
        header = next(lines, [])
        if self.label not in header:
            raise DataError(
                f"{self.name}: {path} has no column {self.label!r}; name one of {', '.join(header)} with label=…"
            )

        def even(row: list[str]) -> list[str]:
            if any(_FOREIGN.search(cell) for cell in row):
                raise BadRow("is not UTF-8 text", "save the file as UTF-8")
            if len(row) != len(header):
                raise BadRow(f"has {len(row)} cells instead of {len(header)}", "repair it")
            return row

        numbered = ((f"line {lines.line_num}", row) for row in lines if row)
        rows, notes = good_rows(self.name, path, numbered, even, skip_bad=self.skip_bad_rows)
        columns = dict(zip(header, zip(*rows, strict=True), strict=True))
        labels = columns.pop(self.label)
        dense = {name: numbers for name, cells in columns.items() if (numbers := _numbers(cells)) is not None}
        words = {name: cells for name, cells in columns.items() if name not in dense}
        return table_pools(dense, words, labels, notes)


def _numbers(cells: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
    """The cells as finite numbers, NaN for empty ones; None if one is neither."""
    try:
        numbers = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    except ValueError:
        return None
    return None if np.isinf(numbers).any() else numbers
