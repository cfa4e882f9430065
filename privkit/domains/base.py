"""Batches of records (`Batch`) with checked labels, and the pools from which they are taken (`Pool`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import DataError


def several(y: Tensor) -> bool:
    """Whether labels are L values of 0 or 1 per record, [N, L], instead of one class number per record, [N]."""
    return y.ndim == 2


def check_labels(y: Tensor | NDArray[np.generic]) -> None:
    """Raise `DataError` unless labels are class numbers ≥ 0, [N], or L values of 0 or 1 per record, [N, L]."""
    values = torch.as_tensor(y)
    if values.ndim not in (1, 2):
        raise DataError(
            f"labels must be [N], one class number per record, or [N, L] of 0 and 1, got {list(values.shape)}"
        )
    if values.ndim == 2:
        if not bool(((values == 0) | (values == 1)).all()):
            raise DataError("several labels per record must be 0 or 1 each; give one class number per record as [N]")
        return
    if values.dtype == torch.bool:
        return
    wrong = (values != values.floor()) | (values < 0) if values.is_floating_point() else values < 0
    if bool(wrong.any()):
        raise DataError(
            f"labels must be whole numbers from 0, got {values[wrong][0].item():g}; number the classes 0, 1, 2, …"
        )


TEST_ID_OFFSET = 1 << 32
"""Ids of official test records start here, so that no test record shares an id with a training record."""
VALIDATION_ID_OFFSET = 1 << 33  # ids of official validation records start here


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Holds N labelled records of one domain (images, token sequences or table rows).

    Attributes:
        x: the records [N, *domain.shape]: images, float32 [N, C, H, W] in [0, 1]; token sequences, int64 [N, T]; or
            table rows, float32 [N, columns].
        y: one class number ≥ 0 per record, int64 [N]; or L labels of 0 or 1 per record, [N, L], converted to int64.
        ids: int64 [N], numbers that identify the records in all runs: a record's index in the official training set, or
            `TEST_ID_OFFSET` plus its index in the official test set. An official validation set has its own offset.
        domain: what one record is; by default, an image of the shape of `x`. It defines the checks of `x`.

    Raises:
        DataError: if shapes, types or ranges differ from those above.

    >>> batch = Batch(x=torch.rand(2, 1, 4, 4), y=torch.tensor([0, 1]), ids=torch.tensor([7, 9]))
    >>> batch[:1].ids, batch.domain
    (tensor([7]), Images(shape=(1, 4, 4)))
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    domain: Domain = field(default=cast(Domain, None), repr=False)

    def __post_init__(self) -> None:
        if self.domain is None:
            object.__setattr__(self, "domain", Images.of(self.x))
        self.domain.check(self.x)
        check_labels(self.y)
        if several(self.y):
            object.__setattr__(self, "y", self.y.long())
        if not len(self.x) == len(self.y) == len(self.ids):
            raise DataError(
                f"{len(self.x)} {self.domain.records} need as many labels and ids, got {len(self.y)} and "
                f"{len(self.ids)}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """The records at `rows` (a slice, indices or a mask), in this order."""
        return replace(self, x=self.x[rows], y=self.y[rows], ids=self.ids[rows])

    def joined(self, other: Batch) -> Batch:
        """A new batch: the records of this batch, then those of `other`, a batch of the same domain."""
        x, y, ids = (torch.cat(pair) for pair in ((self.x, other.x), (self.y, other.y), (self.ids, other.ids)))
        return replace(self, x=x, y=y, ids=ids)

    def to(self, device: torch.device) -> Batch:
        """Move the records, labels and ids to `device`; the result is a new batch."""
        return replace(self, x=self.x.to(device), y=self.y.to(device), ids=self.ids.to(device))

    def sha256(self) -> str:
        """Hash the shape of `x`, the ids, the labels and the records by SHA-256, as 64 hexadecimal digits."""
        digest = hashlib.sha256(str(list(self.x.shape)).encode())
        for part in (self.ids, self.y, self.x):
            digest.update(part.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class Pool(Protocol):
    """Gives access by index to the N records of one part of a dataset, such as its training part. A record is decoded
    only when it is taken.
    """

    def __len__(self) -> int: ...

    def targets(self) -> NDArray[np.int64]:
        """Read the labels of all N records without decoding a record: class numbers from 0, [N], or 0 and 1 for each
        of L labels, [N, L].
        """

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Decode the records with the indices `rows`, in this order."""


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Holds the official parts of a dataset (training, test and validation), before they are divided by `split`.

    Attributes:
        train: official training records.
        test: official test records; None if the dataset has none.
        classes: number of classes, or of 0/1 labels that each record has.
        notes: sentences for readers of the results, for example about omitted records.
        validation: official validation records; if None, validation records are drawn from `train`.
    """

    train: Pool
    test: Pool | None
    classes: int
    notes: tuple[str, ...] = ()
    validation: Pool | None = None


class DatasetSpec(Protocol):
    """Describes a dataset immutably, by its options. The method `open` gives access to the records.

    Attributes:
        name: the dataset's name, as users type it.
        domain: kind of the records: "images", "tokens" (token sequences) or "tables" (table rows).
    """

    name: ClassVar[str]
    domain: ClassVar[str]

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Load the dataset's training, test and validation parts.

        Args:
            root: the data root, i.e. the folder with the files of all datasets, or None if the user named none.
            download: whether missing files may be downloaded into the root.
            train_images: number of training records needed; a dataset of several files opens only the files that this
                number needs.

        Raises:
            DataError: if files are missing or damaged; the message is one sentence.
        """


@dataclass(frozen=True, kw_only=True)
class RecordPool:
    """A `Pool` of records in memory."""

    x: Tensor  # records [N, *domain.shape]
    y: Tensor  # int64 [N], labels from 0; or [N, L] of 0 and 1, several labels per record
    domain: Domain  # what a record is
    first_id: int = 0  # id of the first record

    def __len__(self) -> int:
        return len(self.x)

    def targets(self) -> NDArray[np.int64]:
        return self.y.numpy()

    def take(self, rows: NDArray[np.int64]) -> Batch:
        picked = torch.from_numpy(rows.astype(np.int64))
        return Batch(x=self.x[picked], y=self.y[picked], ids=picked + self.first_id, domain=self.domain)
