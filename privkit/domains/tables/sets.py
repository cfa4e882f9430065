"""Datasets of tables, with dense (numeric) columns scaled to [0, 1] and numbered categories."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.constraints import Checked, Count
from privkit.domains.base import Pools, RecordPool
from privkit.domains.files import BadRow, good_rows, need_root, numbered_lines, utf8
from privkit.domains.tables.csv_files import csv_columns, dense_and_categorical, nearly_dense, need_classes
from privkit.domains.tables.domain import Tables
from privkit.errors import DataError, shortened

_LARGEST = np.finfo(np.float64).max / 2  # above it, a column's range may overflow to infinity


def table_pools(
    dense: dict[str, NDArray[np.float64]],
    categorical: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    notes: tuple[str, ...] = (),
    parties: Mapping[str, int] | None = None,
) -> Pools:
    """Build a dataset of N labelled table rows; all of them are training records. Raises `DataError` for huge numbers.

    Args:
        dense: numeric columns by name, each with numbers [N]; NaN marks a missing number and becomes the median.
        categorical: columns of categories by name, each with words [N]; a missing word is the category "".
        labels: the class of each row; classes are numbered in alphabetical order.
        notes: sentences for readers of the results.
        parties: number of the party that holds each column, if there are several parties; see `Tables`.
    """
    columns, ranges = [], []
    for name, numbers in dense.items():
        known = numbers[~np.isnan(numbers)]
        if len(known) and (largest := np.abs(known).max()) > _LARGEST:
            raise DataError(f"column {name} holds {largest:g}, and {_LARGEST:.2g} is the most; use another unit")
        middle, low, high = (np.median(known), known.min(), known.max()) if len(known) else (0.0, 0.0, 0.0)
        filled = np.where(np.isnan(numbers), middle, numbers)
        columns.append((filled - low) / (high - low if high > low else 1.0))
        ranges.append((float(low), float(high)))
    values = [tuple(sorted(set(words))) for words in categorical.values()]
    for words, known_words in zip(categorical.values(), values, strict=True):
        number = {word: place for place, word in enumerate(known_words)}
        columns.append(np.array([number[word] for word in words], dtype=np.float64))
    domain = Tables(
        dense=tuple(dense),
        ranges=tuple(ranges),
        categorical=tuple(categorical),
        values=tuple(values),
        parties=tuple(parties[name] for name in (*dense, *categorical)) if parties else (),
    )
    classes = sorted(set(labels))
    return Pools(
        train=RecordPool(
            x=torch.from_numpy(np.stack(columns, 1).astype(np.float32)),
            y=torch.tensor([classes.index(label) for label in labels]),
            domain=domain,
        ),
        test=None,
        classes=len(classes),
        notes=notes,
    )


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
    """392 cars with five dense (numeric) and two categorical columns; the label says where a car was made.

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

    Cells are separated by commas. A column whose cells are all numbers or empty is dense (numeric); all other columns
    are categorical. An empty cell becomes the median of a dense column, or a category of its own. Every column but the
    label is part of a record, unless `ignore` names it (name ids there). Ranges, medians and categories come from the
    whole file and are taken as public.

    Attributes:
        file: name of the file inside the data root, plain or gzip (.gz); UTF-8.
        label: column of the label.
        ignore: columns that are not part of a record.
        skip_bad_rows: whether rows with missing or extra cells, or without a label, are left out. An audit's results
            report their number.

    Source: the user's.
    """

    name: ClassVar[str] = "table_file"
    domain: ClassVar[str] = "tables"

    file: str = "table.csv"
    label: str = "label"
    ignore: Sequence[str] = ()
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ignore", (self.ignore,) if isinstance(self.ignore, str) else tuple(self.ignore))

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, self.file)
        needed = [("label", self.label), *(("ignore", column) for column in self.ignore)]
        columns, notes = csv_columns(self.name, root, self.file, needed, (self.label,), skip_bad=self.skip_bad_rows)
        labels = columns.pop(self.label)
        need_classes(self.name, self.label, labels)
        columns = {column: cells for column, cells in columns.items() if column not in self.ignore}
        if self.label in self.ignore:
            raise DataError(f"{self.name}: {self.label!r} is both the label and ignored; name another column")
        if not columns:
            raise DataError(f"{self.name}: {self.file} has no column that is part of a record; add one or ignore fewer")
        dense, categorical = dense_and_categorical(columns)
        return table_pools(dense, categorical, labels, (*notes, *nearly_dense(categorical)))


_FIELDS = 40
_ROW = re.compile(r"[01](\t(-?\d+)?){13}(\t([0-9a-f]{8})?){26}")
_CURE = "write label 0 or 1, 13 whole numbers and 26 words of 8 hex digits, separated by tabs; a missing one is empty"


@dataclass(frozen=True, kw_only=True)
class Criteo(Checked):
    """Criteo: 45,840,617 ad impressions with 13 counts and 26 categories each; the label is 1 for a clicked ad.

    A missing count becomes its column's median; a missing category is a separate category. The official test file has
    no labels, so test records are drawn from the training file.

    Attributes:
        file: the official training file in the data root, plain or gzip (.gz).
        rows: number of records read from the start of the file; their ranges and categories are taken as public.
        scale: "log" takes log(1 + max(count, 0)) of each count and names the columns "log I1", …; "linear" leaves
            counts unchanged.
        skip_bad_rows: whether rows with missing or extra fields are left out. An audit's results report their number.

    Source: Criteo Labs 2014, display advertising challenge; patch_shuffling, Table III.
    """

    name: ClassVar[str] = "criteo"
    domain: ClassVar[str] = "tables"

    file: str = "train.txt"
    rows: Count = 100_000
    scale: Literal["log", "linear"] = "log"
    skip_bad_rows: bool = False

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, self.file)
        lines = numbered_lines(self.name, root, self.file, most=self.rows)
        rows, notes = good_rows(self.name, root / self.file, lines, _fields, skip_bad=self.skip_bad_rows)
        labels, *columns = zip(*rows, strict=True)
        counts = np.array([[float(cell or "nan") for cell in column] for column in columns[:13]])
        if self.scale == "log":
            counts = np.log1p(np.maximum(counts, 0))
        prefix = "log " if self.scale == "log" else ""
        dense = {f"{prefix}I{place}": column for place, column in enumerate(counts, 1)}
        return table_pools(dense, {f"C{place}": column for place, column in enumerate(columns[13:], 1)}, labels, notes)


def _fields(line: bytes) -> list[str]:
    row = utf8(line)
    fields = row.split("\t")
    if not _ROW.fullmatch(row):
        if len(fields) != _FIELDS:
            raise BadRow(f"has {len(fields)} fields instead of {_FIELDS}", _CURE)
        place = next(n for n, cell in enumerate(fields, 1) if not _ALLOWED[(n > 1) + (n > 14)].fullmatch(cell))
        raise BadRow(f"has {shortened(fields[place - 1])} in field {place}", _CURE)
    return fields


_ALLOWED = (re.compile("[01]"), re.compile(r"(-?\d+)?"), re.compile("([0-9a-f]{8})?"))
"""Allowed text of the label, of a count and of a category."""
