"""Tables of numbers and words as rows of one tensor: dense columns are scaled, categories numbered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import Pools, RecordPool
from privkit.domains.tables.domain import Tables


def table_pools(
    dense: dict[str, NDArray[np.float64]],
    categorical: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    notes: tuple[str, ...] = (),
) -> Pools:
    """A dataset of labelled rows.

    Args:
        dense: column -> its numbers [N]; NaN stands for a missing one and becomes the column's median.
        categorical: column -> its words [N]; a missing one is the category "".
        labels: the class of each row; classes are numbered in alphabetical order.
        notes: see `Pools`.

    >>> pools = table_pools({"mpg": np.array([10.0, 30.0, np.nan])}, {"fuel": ["gas", "oil", "gas"]}, ["a", "b", "a"])
    >>> pools.train.x.tolist()
    [[0.0, 0.0], [1.0, 1.0], [0.5, 0.0]]
    """
    columns, ranges = [], []
    for numbers in dense.values():
        known = numbers[~np.isnan(numbers)]
        middle, low, high = (np.median(known), known.min(), known.max()) if len(known) else (0.0, 0.0, 0.0)
        filled = np.where(np.isnan(numbers), middle, numbers)
        columns.append((filled - low) / (high - low if high > low else 1.0))
        ranges.append((float(low), float(high)))
    values = [tuple(sorted(set(words))) for words in categorical.values()]
    for words, known_words in zip(categorical.values(), values, strict=True):
        number = {word: place for place, word in enumerate(known_words)}
        columns.append(np.array([number[word] for word in words], dtype=np.float64))
    domain = Tables(dense=tuple(dense), ranges=tuple(ranges), categorical=tuple(categorical), values=tuple(values))
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
