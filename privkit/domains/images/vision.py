"""Official datasets that fit into memory, through torchvision: CIFAR, MNIST and similar ones."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from privkit.constraints import Checked
from privkit.domains.base import TEST_ID_OFFSET, Pools
from privkit.domains.files import advice_on_missing, check_files, need_root, one_sentence
from privkit.domains.images.arrays import ArrayPool
from privkit.errors import DataError

_IMAGES_PER_CIFAR_BATCH = 10_000


@dataclass(frozen=True, kw_only=True)
class Cifar10(Checked):
    """CIFAR-10: 50,000 training and 10,000 test images of natural objects, 32×32 colour, 10 classes.

    Attributes:
        batches: number of the five official training files to use, in their order; None for the files that the
            experiment's number of images needs. Set it if some of the five files are missing.

    Source: Krizhevsky 2009; torchvision `CIFAR10`.
    """

    name: ClassVar[str] = "cifar10"
    domain: ClassVar[str] = "images"

    batches: Annotated[int, Ge(1), Le(5), "there are five official training files"] | None = None

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision.datasets import CIFAR10

        root = need_root(self.name, root, CIFAR10.base_folder)
        count = self.batches or min(5, -(-train_images // _IMAGES_PER_CIFAR_BATCH))
        advice = advice_on_missing(download)
        if not download:
            advice += f" (or use a declared subset: --dataset cifar10:batches=N; this run needs {count})"

        class Subset(CIFAR10):  # type: ignore[misc]  # torchvision has no types
            train_list = CIFAR10.train_list[:count]

        return _open_cifar(self.name, Subset, root, download, advice, classes=10)


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """CIFAR-100: 50,000 training and 10,000 test images of natural objects, 32×32 colour, 100 classes.

    Source: Krizhevsky 2009; torchvision `CIFAR100`.
    """

    name: ClassVar[str] = "cifar100"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision.datasets import CIFAR100

        root = need_root(self.name, root, CIFAR100.base_folder)
        return _open_cifar(self.name, CIFAR100, root, download, advice_on_missing(download), classes=100)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """MNIST: 60,000 training and 10,000 test images of digits, 28×28 grey.

    Source: LeCun et al. 1998; torchvision `MNIST`.
    """

    name: ClassVar[str] = "mnist"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision.datasets import MNIST

        return _open_idx(self.name, MNIST, root, download)


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothing, 28×28 grey, 10 classes.

    Source: Xiao et al. 2017; torchvision `FashionMNIST`.
    """

    name: ClassVar[str] = "fashion_mnist"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision.datasets import FashionMNIST

        return _open_idx(self.name, FashionMNIST, root, download)


def _open_cifar(name: str, dataset: Any, root: Path, download: bool, advice: str, classes: int) -> Pools:
    files = [*map(tuple, dataset.train_list + dataset.test_list), (dataset.meta["filename"], dataset.meta["md5"])]
    with one_sentence(name, root, advice):
        if download:
            dataset(str(root), download=True)
        check_files(name, root / dataset.base_folder, files, advice)
        return _array_pools(lambda train: dataset(str(root), train=train), classes)


def _array_pools(part: Callable[[bool], Any], classes: int) -> Pools:
    pools = []
    for train in (True, False):
        dataset = part(train)
        images, labels = np.asarray(dataset.data), np.asarray(dataset.targets)
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images but {len(labels)} labels")
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise ValueError(f"labels {labels.min()} to {labels.max()} where 0 to {classes - 1} are allowed")
        pools.append(ArrayPool(images=images, labels=labels, first_id=0 if train else TEST_ID_OFFSET))
    return Pools(train=pools[0], test=pools[1], classes=classes)


def _open_idx(name: str, dataset: Any, root: Path | None, download: bool) -> Pools:
    inside = f"{dataset.__name__}/raw"
    root = need_root(name, root, inside)
    folder = root / inside
    advice = advice_on_missing(download)
    with one_sentence(name, folder, advice):
        files = [Path(archive).stem for archive, _ in dataset.resources]
        for file in files:  # only archives have an official MD5, and a download keeps existing files
            path = folder / file
            if path.is_file() and not _is_idx(path, dimensions=3 if "idx3" in file else 1):
                cure = f"delete it and {advice_on_missing(download=False)}"
                raise DataError(f"{name}: {path} is damaged (no complete idx file); {cure}")
        if download:
            dataset(str(root), download=True)
        check_files(name, folder, [(file, None) for file in files], advice)
        # read the idx files even if an old torchvision left `processed/*.pt`
        from_idx: Any = type(dataset.__name__, (dataset,), {"_check_legacy_exist": lambda self: False})
        return _array_pools(lambda train: from_idx(str(root), train=train), classes=10)


def _is_idx(path: Path, dimensions: int) -> bool:
    """Whether the file holds bytes in the idx format, with a length that agrees with its header."""
    start = 4 + 4 * dimensions
    with path.open("rb") as handle:
        header = handle.read(start)
    if len(header) < start or header[:4] != bytes([0, 0, 8, dimensions]):
        return False
    shape: tuple[int, ...] = struct.unpack(f">{dimensions}I", header[4:])
    return path.stat().st_size == start + math.prod(shape)
