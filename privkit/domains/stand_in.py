"""Random records in the shape of an official dataset, so that a dry run (an estimate of times) needs no files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import Batch, Pools
from privkit.domains.chosen import only_classes
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens

_ATTRIBUTES = 40  # labels of a face of CelebA with `attribute=all`
_CATEGORIES = 1_000
"""Assumed number of categories of a table's column; the true number hardly changes the time of a step."""


@dataclass(frozen=True, kw_only=True)
class RandomPool:
    """A `Pool` of random records in place of real data; record i has class i modulo the number of classes."""

    count: int  # number of records
    classes: int  # number of classes, or of labels that each record has
    domain: Domain  # what a record is
    several: bool = False  # whether each record has several labels

    def __len__(self) -> int:
        return self.count

    def targets(self) -> NDArray[np.int64]:
        return np.arange(self.count, dtype=np.int64) % self.classes

    def take(self, rows: NDArray[np.int64]) -> Batch:
        y = torch.from_numpy(rows % self.classes)
        labels = torch.nn.functional.one_hot(y, self.classes) if self.several else y
        x = self.domain.random(len(rows), torch.Generator().manual_seed(0))
        return Batch(x=x, y=labels, ids=torch.from_numpy(rows), domain=self.domain)


class Official(NamedTuple):
    """Published facts about an official dataset."""

    train: int  # number of training records
    test: int | None  # number of test records; None if the dataset has no test part
    classes: int
    domain: Callable[[Any], Domain]  # dataset's specification -> its domain, i.e. the kind and shape of a record


def _images(channels: int, side: int = 32) -> Callable[[Any], Domain]:
    return lambda spec: Images(shape=(channels, size := getattr(spec, "size", side), size))


def _tokens(spec: Any) -> Domain:
    return Tokens(length=spec.length, vocabulary=("", "?", *map(str, range(spec.vocabulary - 2))))


def _criteo(spec: Any) -> Domain:
    dense, values = tuple(f"I{column}" for column in range(13)), tuple(map(str, range(_CATEGORIES)))
    names = tuple(f"C{column}" for column in range(26))
    return Tables(dense=dense, ranges=((0.0, 1.0),) * 13, categorical=names, values=(values,) * 26)


OFFICIAL: Mapping[str, Official] = {
    "amazon_reviews": Official(3_000_000, 650_000, 5, _tokens),
    "celeba": Official(162_770, 19_962, 2, _images(3)),
    "cifar10": Official(50_000, 10_000, 10, _images(3)),
    "cifar100": Official(50_000, 10_000, 100, _images(3)),
    "criteo": Official(45_840_617, None, 2, _criteo),
    "fashion_mnist": Official(60_000, 10_000, 10, _images(1, 28)),
    "imagenet": Official(1_281_167, 50_000, 1_000, _images(3)),
    "imdb": Official(25_000, 25_000, 2, _tokens),
    "lfw_people": Official(9_525, None, 4_038, _images(3)),
    "mnist": Official(60_000, 10_000, 10, _images(1, 28)),
    "names": Official(20_074, None, 18, _tokens),
    "pcam": Official(262_144, 32_768, 2, _images(3)),
}
"""Facts about each dataset that needs files, by the dataset's name."""


def stand_in(spec: Any) -> Pools | None:
    """Build random records with the shape and number of an official dataset's records, to work without its files.
    Returns None for a dataset that is not in `OFFICIAL`.
    """
    if (official := OFFICIAL.get(getattr(spec, "name", ""))) is None:
        return None
    several, chosen = getattr(spec, "attribute", "") == "all", getattr(spec, "classes", None)
    classes = _ATTRIBUTES if several else official.classes
    like = RandomPool(count=official.train, classes=classes, domain=official.domain(spec), several=several)
    test = None if official.test is None else replace(like, count=official.test)
    pools = Pools(train=like, test=test, classes=classes)
    return only_classes(spec.name, pools, chosen) if chosen else pools
