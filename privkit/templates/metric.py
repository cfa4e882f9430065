"""Metric `template`: measures how well edges are recovered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Template:
    """Compares edges: the mean squared error of differences between neighboring pixels.

    Source: your own.
    """

    name: ClassVar[str] = "template"
    higher_is_closer: ClassVar[bool] = False

    def __call__(
        self, truth: NDArray[np.float32], guess: NDArray[np.float32], *, data_range: float
    ) -> NDArray[np.float64]:
        """The error of each of N pairs of images [N, C, H, W], float64 [N]."""
        apart = (truth.astype(np.float64) - guess) / data_range
        across, down = np.diff(apart, axis=3), np.diff(apart, axis=2)
        return np.asarray(np.square(across).mean(axis=(1, 2, 3)) + np.square(down).mean(axis=(1, 2, 3)))
