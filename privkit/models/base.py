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
        hides_places: whether permuting the patches of an image only permutes its tokens, which every permutation count
            presumes; None where nobody could check it.
    """

    lower: nn.Module
    upper: nn.Module
    hides_places: bool | None = None


class ModelSpec(Protocol):
    """A frozen specification that builds a `SplitModel`."""

    def build(self, image_shape: tuple[int, int, int], classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build the segments with seeded weights.

        Args:
            image_shape: (C, H, W).
            classes: number of labels.
            positions: whether the lower segment may embed positions; shuffling defenses forbid it.
            seed: of the initial weights; the global generator is left as it was.

        Raises:
            UsageError: if the segments cannot be built, or the lower one is seen to embed positions where it may not.
        """
        ...
