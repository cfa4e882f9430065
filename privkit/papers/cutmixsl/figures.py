"""Pictures of the messages that CutMixSL and its variants send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from matplotlib.figure import Figure

from privkit.papers.mixed_pictures import mixed_pictures

_METHODS = {
    "CutSmashed": "cutsmashed",
    "Mixup": "mixup:concentration=inf",
    "Patch CutMix": "random_cutmix:concentration=inf",
    "Shuffled CutMix": "shuffled_cutmix:concentration=inf",
}

FIGURES: Mapping[str, Callable[[], Figure]] = {"mixed_pictures": partial(mixed_pictures, _METHODS)}
"""File name -> the function that draws the figure."""
