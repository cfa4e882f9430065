"""A pool of images in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import Batch, check_labels
from privkit.domains.images.domain import scale_of


@dataclass(frozen=True, kw_only=True)
class ArrayPool:
    """A `Pool` of images in memory."""

    # [N, H, W] or [N, H, W, C]: uint8 in 0..255, uint16 in 0..65535, booleans, or floats in [0, 1]
    images: NDArray[np.generic]
    labels: NDArray[np.int64]  # whole numbers from 0, [N]
    first_id: int = 0  # id of the first image

    def __len__(self) -> int:
        return len(self.images)

    def targets(self) -> NDArray[np.int64]:
        return np.asarray(self.labels, dtype=np.int64)

    def take(self, rows: NDArray[np.int64]) -> Batch:
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
