"""What a split model is: two modules, and what crosses between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import nn


@dataclass(kw_only=True)
class SplitModel:
    """A network cut in two.

    Attributes:
        lower: the client's segment, images [N, C, H, W] in [0, 1] -> smashed data [N, T, D] or [N, C', H', W'].
            Normalisation lives in it.
        upper: the server's segment, smashed data -> logits [N, classes]. It owns the class token, if there is one.
    """

    lower: nn.Module
    upper: nn.Module


class ModelSpec(Protocol):
    """A frozen specification that builds a `SplitModel`."""

    def build(self, image_shape: tuple[int, int, int], classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build the segments with seeded weights.

        Args:
            image_shape: (C, H, W).
            classes: number of labels.
            positions: whether the lower segment may embed positions; shuffling defenses forbid it.
            seed: of the initial weights; the global generator is left as it was.
        """
        ...
