"""Selects classes of any dataset: `classes=[0,4]` keeps records of classes 0 and 4 and renumbers them 0 and 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privkit.domains.base import Batch, Pool, Pools
from privkit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class _ChosenPool:
    pool: Pool  # pool of all records
    rows: NDArray[np.int64]  # indices of the kept records in `pool`
    labels: NDArray[np.int64]  # the new label of each kept record

    def __len__(self) -> int:
        return len(self.rows)

    def targets(self) -> NDArray[np.int64]:
        return self.labels

    def take(self, rows: NDArray[np.int64]) -> Batch:
        batch = self.pool.take(self.rows[rows])
        return replace(batch, y=batch.y.new_tensor(self.labels[rows]))


def only_classes(name: str, pools: Pools, classes: Sequence[int]) -> Pools:
    """Keep only the records of the given classes, two or more, and renumber these classes from 0 in the given order.
    Raises `DataError` if a class does not exist or has no training record, or if records have several labels.
    """
    if max(classes) >= pools.classes:
        raise DataError(f"{name} has no class {max(classes)}; name some of 0 to {pools.classes - 1} with classes=[…]")
    train = _chosen(name, pools.train, classes)
    for label, count in zip(classes, np.bincount(train.labels, minlength=len(classes)), strict=True):
        if not count:
            raise DataError(f"{name} has no record of class {label}, which classes= names; name classes with records")
    test, validation = (
        None if pool is None else _chosen(name, pool, classes) for pool in (pools.test, pools.validation)
    )
    return replace(pools, train=train, test=test, validation=validation, classes=len(classes))


def _chosen(name: str, pool: Pool, classes: Sequence[int]) -> _ChosenPool:
    targets = pool.targets()
    if targets.ndim != 1:
        raise DataError(f"{name} has several labels per record and no classes to choose from; leave classes= out")
    number = np.full(max(*classes, int(targets.max(initial=0))) + 1, -1)
    number[list(classes)] = np.arange(len(classes))
    labels = number[targets]
    rows = np.flatnonzero(labels >= 0)
    return _ChosenPool(pool=pool, rows=rows, labels=labels[rows])


def with_classes(spec: Any, classes: object) -> Any:
    """Copy a dataset's specification and add the field `classes`; the new dataset holds only records of these classes.
    Raises `ValueError` unless `classes` is a list of at least two different class numbers.

    >>> from privkit.domains.images.vision import Mnist
    >>> with_classes(Mnist(), [0, 4])
    Mnist(classes=[0, 4])
    """
    if (
        not isinstance(classes, list)
        or not all(type(label) is int and label >= 0 for label in classes)
        or len(set(classes)) < max(2, len(classes))
    ):
        raise ValueError(f"classes must be at least two different class numbers such as [0, 4], got {classes!r}")
    own = {field.name: getattr(spec, field.name) for field in fields(spec) if field.init}
    filtered = _filtered(type(spec))  # type: ignore[arg-type]  # a class is hashable
    return filtered(**own, classes=classes)


@cache
def _filtered(dataset: Any) -> Any:
    @dataclass(frozen=True, kw_only=True)
    class Filtered(dataset):  # type: ignore[misc]  # a base that is known only now
        classes: list[int]

        def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
            """Open all records, whatever `train_images` is, because only their labels tell how many remain."""
            pools = super().open(root, download=download, train_images=sys.maxsize)
            return only_classes(self.name, pools, self.classes)

    Filtered.__doc__, Filtered.__qualname__ = dataset.__doc__, dataset.__qualname__
    return Filtered
