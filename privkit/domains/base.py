"""The one shape in which images travel: `Batch`; and where they come from: `Pool`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privkit.domains.images.checks import check_images, check_labels, scale_of
from privkit.errors import DataError

TEST_ID_OFFSET = 1 << 32
"""Ids of official test images start here, so that no test image shares an id with a training image."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Labelled images.

    Attributes:
        x: float32 [N, C, H, W] in [0, 1].
        y: int64 [N], labels from 0.
        ids: int64 [N], the image's index in its official training set, or `TEST_ID_OFFSET` plus its index in the
            official test set; stable over runs and machines.

    Raises:
        DataError: if shapes, types or ranges are others.

    >>> batch = Batch(x=torch.rand(2, 1, 4, 4), y=torch.tensor([0, 1]), ids=torch.tensor([7, 9]))
    >>> batch[:1].ids
    tensor([7])
    """

    x: Tensor
    y: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        check_images(self.x)
        check_labels(self.y)
        if not len(self.x) == len(self.y) == len(self.ids):
            raise DataError(f"{len(self.x)} images need as many labels and ids, got {len(self.y)} and {len(self.ids)}")

    def __len__(self) -> int:
        """Number of images."""
        return len(self.x)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """Some of the images, in the order given."""
        return Batch(x=self.x[rows], y=self.y[rows], ids=self.ids[rows])

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(x=self.x.to(device), y=self.y.to(device), ids=self.ids.to(device))

    def sha256(self) -> str:
        """Hash of shape, ids, labels and pixels."""
        digest = hashlib.sha256(str(list(self.x.shape)).encode())
        for part in (self.ids, self.y, self.x):
            digest.update(part.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class Pool(Protocol):
    """Images that can be taken by their index; those not taken need never be decoded."""

    def __len__(self) -> int:
        """Number of images."""
        ...

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """The images of these rows, in this order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The official parts of a dataset; `test` is None where it has none."""

    train: Pool
    test: Pool | None
    classes: int


class DatasetSpec(Protocol):
    """A frozen specification that opens a dataset."""

    name: ClassVar[str]

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the dataset.

        Args:
            root: the data root, or None where the user named none.
            download: whether files may be fetched into the root.
            train_images: how many training images will be taken, so that a dataset in parts opens no more than needed.

        Raises:
            DataError: with one sentence, if files are missing or damaged.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ArrayPool:
    """A pool in memory.

    Attributes:
        images: [N, H, W] or [N, H, W, C]: uint8 in 0..255, uint16 in 0..65535, booleans, or floats in [0, 1].
        labels: whole numbers from 0, [N].
        first_id: id of row 0.
    """

    images: NDArray[np.generic]
    labels: NDArray[np.int64]
    first_id: int = 0

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """The images of these rows, in this order."""
        scale = scale_of(self.images)
        labels = np.asarray(self.labels)[rows]
        check_labels(labels)
        picked = self.images[rows]
        if picked.ndim == 3:
            picked = picked[..., None]
        x = np.ascontiguousarray(picked.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(scale)
        return Batch(
            x=torch.from_numpy(x),
            y=torch.from_numpy(labels.astype(np.int64)),
            ids=torch.from_numpy(rows.astype(np.int64) + self.first_id),
        )
