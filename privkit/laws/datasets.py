"""Laws of a dataset: records of one shape and range, labels that are classes, and records that never change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import Pool, Pools, several

_LOOKED_AT = 64  # largest number of records that are read of each split


def _parts(pools: Pools) -> dict[str, Pool]:
    parts = {"train": pools.train, "test": pools.test, "validation": pools.validation}
    return {name: pool for name, pool in parts.items() if pool is not None}


def _rows(pool: Pool) -> NDArray[np.int64]:
    """At most 64 indices from all over a split of the dataset, in descending order."""
    spread = np.unique(np.linspace(0, len(pool) - 1, min(_LOOKED_AT, len(pool))).astype(np.int64))
    return spread[::-1].copy()


def _records_are_of_one_form(pools: Pools) -> str:
    """Check that each split has records, all of one shape; `Batch` itself refuses wrong types and ranges."""
    shapes = {}
    for name, pool in _parts(pools).items():
        if not len(pool):
            return f"its {name} part has no record"
        shapes[name] = tuple(pool.take(_rows(pool)).x.shape[1:])
    return "" if len(set(shapes.values())) == 1 else f"its parts have records of different shapes: {shapes}"


def _labels_are_classes(pools: Pools) -> str:
    """Check that labels lie below `classes`, and that `targets()`, which decodes nothing, returns the same labels."""
    seen: set[int] = set()
    for name, pool in _parts(pools).items():
        rows, targets = _rows(pool), pool.targets()
        batch = pool.take(rows)
        if len(targets) != len(pool) or not np.array_equal(targets[rows], batch.y.numpy()):
            return f"targets() of its {name} part are not the labels of its records"
        if several(batch.y):
            if batch.y.shape[1] != pools.classes:
                return f"its {name} part has {batch.y.shape[1]} labels per record, and classes={pools.classes}"
            continue
        seen |= set(targets.tolist())
        if max(seen) >= pools.classes:
            return f"its {name} part has label {max(seen)}, and classes={pools.classes}"
    return f"all its records have label {seen.pop()}; nothing can be learned from them" if len(seen) == 1 else ""


def _rows_stay_what_they_are(pools: Pools) -> str:
    """Check that an index always gives the same record, and that no two records share an id."""
    ids: list[int] = []
    for name, pool in _parts(pools).items():
        rows = _rows(pool)
        batch, again = pool.take(rows), pool.take(rows[::-1].copy())
        if batch.sha256() != again[torch.arange(len(rows) - 1, -1, -1)].sha256():
            return f"rows of its {name} part give other records when they are taken again, or in another order"
        ids += batch.ids.tolist()
    return "" if len(set(ids)) == len(ids) else "records share an id; give each its own, over all parts"


LAWS: dict[str, Callable[[Pools], str]] = {
    "records have one shape, in range": _records_are_of_one_form,
    "labels are classes": _labels_are_classes,
    "a row never changes": _rows_stay_what_they_are,
}
