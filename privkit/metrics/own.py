"""The interface of a user's own metric for reconstructed images, and its values for result rows."""

from __future__ import annotations

import re
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privkit.attacks.scores.image import Values
from privkit.errors import UsageError
from privkit.files.import_path import faults_of

PREFIX = "own_"
"""Prefix of a user's own metric in rows, tables and gates, so that it is not mistaken for one of privkit's metrics."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class ImageMetric(Protocol):
    """A frozen dataclass that compares guesses with their original images."""

    name: ClassVar[str]  # name of the metric and of its column: small letters, digits and _
    higher_is_closer: ClassVar[bool]  # whether a larger value means that the guess is closer to the original

    def __call__(
        self, truth: NDArray[np.float32], guess: NDArray[np.float32], *, data_range: float
    ) -> NDArray[np.floating]:
        """Compare N originals with their guesses, both [N, C, H, W]; returns one finite value for each image, [N].
        `data_range` is the largest minus the smallest possible value, 1.0 for images in [0, 1]."""


def check_metric(metric: ImageMetric) -> None:
    """Raise ValueError if the metric's name is not allowed, or if its `higher_is_closer` is no bool."""
    if not isinstance(metric.name, str) or not _NAME.fullmatch(metric.name):
        raise ValueError(f"name must be small letters, digits and _, at most 40 of them, got {metric.name!r}")
    if metric.name.endswith("worst"):
        raise ValueError(f"name must not end in worst, as columns of the worst image do, got {metric.name!r}")
    if not isinstance(metric.higher_is_closer, bool):
        raise ValueError(f"higher_is_closer must be True or False, got {metric.higher_is_closer!r}")


def column(metric: ImageMetric) -> str:
    """The name of the metric's column in result rows, tables and pass/fail conditions."""
    return PREFIX + metric.name


def values(metric: ImageMetric, truth: Tensor, guess: Tensor) -> Values:
    """Apply a user's metric to N originals and guesses [N, C, H, W] in [0, 1]; returns one finite value per image, [N].
    Raises `UsageError` for a result of another shape, or with NaN or infinity."""
    with faults_of(f"metric {metric.name}", metric):
        given = np.asarray(metric(truth.cpu().numpy().copy(), guess.cpu().numpy().copy(), data_range=1.0))
    if given.shape != (len(truth),) or given.dtype.kind not in "biuf":
        raise UsageError(f"metric {metric.name} must give {len(truth)} numbers, one per image, got {list(given.shape)}")
    if not bool(np.isfinite(given).all()):
        raise UsageError(f"metric {metric.name} gave NaN or infinity; give a finite number for each image")
    return given.astype(np.float64)
