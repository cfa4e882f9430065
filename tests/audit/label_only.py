"""Lower segments that release only the record's label, which they find by the nearest record of the whole dataset."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from privkit.domains.base import DatasetSpec
from privkit.domains.images.embedded import TinyDigits
from privkit.domains.tables.sets import BreastCancer


class _Looked(nn.Module):
    """Maps records [N, ...] to the one-hot vectors of their labels, [N, classes]."""

    dataset: ClassVar[type[DatasetSpec]]
    records: Tensor
    labels: Tensor

    def __init__(self) -> None:
        super().__init__()
        pools = self.dataset().open(None, download=False, train_images=2_000)
        parts = [part.take(np.arange(len(part))) for part in (pools.train, pools.test) if part is not None]
        self.register_buffer("records", torch.cat([part.x.flatten(1) for part in parts]), persistent=False)
        labels = torch.cat([part.y for part in parts])
        self.register_buffer("labels", nn.functional.one_hot(labels).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        nearest: Tensor = torch.cdist(x.flatten(1), self.records).argmin(1)
        found: Tensor = self.labels[nearest]
        return found


class Digits(_Looked):
    """Releases the labels of digits of 8×8 pixels."""

    dataset = TinyDigits


class Tumors(_Looked):
    """Releases the labels of rows of the breast cancer table."""

    dataset = BreastCancer


class Upper(nn.Sequential):
    """A linear map to the classes."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.LazyLinear(classes))
