"""Random records with an official dataset's shape and size, so that a dry run needs none of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import Batch, DatasetSpec, Pools
from privkit.domains.chosen import only_classes
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens

_ATTRIBUTES = 40
"""Labels of a face of CelebA with `attribute=all`."""
_CATEGORIES = 1_000
"""Categories of each column of a table: how many there are follows from the file, and a step hardly feels it."""


@dataclass(frozen=True, kw_only=True)
class Official:
    """The contents of an official dataset's files.

    Attributes:
        train: number of training records.
        test: number of test records; None if it has no such part.
        classes: number of classes.
        channels: of a picture; 0 for texts and tables.
        side: of a picture in pixels, unless the dataset has an option `size`.
        dense: number of dense columns of a table.
        categorical: number of categorical columns.
    """

    train: int
    test: int | None
    classes: int
    channels: int = 0
    side: int = 32
    dense: int = 0
    categorical: int = 0

    def domain(self, spec: Any) -> Domain:
        if self.channels:
            side = getattr(spec, "size", self.side)
            return Images(shape=(self.channels, side, side))
        if self.dense:
            return Tables(
                dense=tuple(f"I{column}" for column in range(self.dense)),
                ranges=((0.0, 1.0),) * self.dense,
                categorical=tuple(f"C{column}" for column in range(self.categorical)),
                values=(tuple(map(str, range(_CATEGORIES))),) * self.categorical,
            )
        return Tokens(length=spec.length, vocabulary=("", "?", *map(str, range(spec.vocabulary - 2))))


OFFICIAL: Mapping[str, Official] = {
    "amazon_reviews": Official(train=3_000_000, test=650_000, classes=5),
    "celeba": Official(train=162_770, test=19_962, classes=2, channels=3),
    "cifar10": Official(train=50_000, test=10_000, classes=10, channels=3),
    "cifar100": Official(train=50_000, test=10_000, classes=100, channels=3),
    "criteo": Official(train=45_840_617, test=None, classes=2, dense=13, categorical=26),
    "fashion_mnist": Official(train=60_000, test=10_000, classes=10, channels=1, side=28),
    "imagenet": Official(train=1_281_167, test=50_000, classes=1_000, channels=3),
    "imdb": Official(train=25_000, test=25_000, classes=2),
    "lfw_people": Official(train=9_525, test=None, classes=4_038, channels=3),
    "mnist": Official(train=60_000, test=10_000, classes=10, channels=1, side=28),
    "names": Official(train=20_074, test=None, classes=18),
    "pcam": Official(train=262_144, test=32_768, classes=2, channels=3),
}
"""Datasets that need files, by their name; published counts."""


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Replaces a dataset without its files; see `DatasetSpec`.

    Attributes:
        spec: the dataset.
    """

    spec: Any

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        official, several = OFFICIAL[self.spec.name], getattr(self.spec, "attribute", "") == "all"
        domain, classes = official.domain(self.spec), _ATTRIBUTES if several else official.classes
        train, test = (
            None if count is None else RandomPool(count=count, classes=classes, domain=domain, several=several)
            for count in (official.train, official.test)
        )
        assert train is not None
        pools = Pools(train=train, test=test, classes=classes)
        chosen = getattr(self.spec, "classes", None)
        return only_classes(self.spec.name, pools, chosen) if chosen else pools


@dataclass(frozen=True, kw_only=True)
class RandomPool:
    """Random records with all classes in turn.

    Attributes:
        count: number of records.
        classes: number of classes, or of labels that each record has.
        domain: what a record is.
        several: whether each record has several labels.
    """

    count: int
    classes: int
    domain: Domain
    several: bool = False

    def __len__(self) -> int:
        """Number of records."""
        return self.count

    def targets(self) -> NDArray[np.int64]:
        return np.arange(self.count, dtype=np.int64) % self.classes

    def take(self, rows: NDArray[np.int64]) -> Batch:
        y = torch.from_numpy(rows % self.classes)
        labels = torch.nn.functional.one_hot(y, self.classes) if self.several else y
        x = self.domain.random(len(rows), torch.Generator().manual_seed(0))
        return Batch(x=x, y=labels, ids=torch.from_numpy(rows), domain=self.domain)


def without_files(spec: DatasetSpec) -> DatasetSpec:
    """A dataset's stand-in if it has one, else the dataset itself."""
    name = getattr(spec, "name", "")
    return StandIn(spec=spec) if name in OFFICIAL else spec  # type: ignore[return-value]  # it is only opened
