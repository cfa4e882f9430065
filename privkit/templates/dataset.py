"""Dataset `template`: digits that ship with scikit-learn, labelled by whether they are odd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from privkit.domains.base import Pools
from privkit.domains.images.arrays import ArrayPool


@dataclass(frozen=True, kw_only=True)
class Template:
    """1,797 digits, 8×8 grey; the label is 1 if the digit is odd.

    Source: your own.
    """

    name: ClassVar[str] = "template"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Read the records; `root` is the folder of --data-root. See `privkit.domains.base.DatasetSpec.open`."""
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = np.asarray(pixels).reshape(-1, 8, 8) / 16.0  # [N, H, W] or [N, H, W, C], in [0, 1]
        return Pools(train=ArrayPool(images=images, labels=np.asarray(labels) % 2), test=None, classes=2)
