"""Convolutional networks as a chain of named pieces, cut behind one of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

from privkit.models.base import SplitModel
from privkit.models.tokens import centered


class _Centered(nn.Module):
    """Images in [0, 1] on the scale [−1, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        return centered(images)


def cut_chain(pieces: Mapping[str, nn.Module], cut: str) -> SplitModel:
    """Cut a chain behind a piece.

    Args:
        pieces: name -> module, in order; together they take images on [−1, 1] to logits.
        cut: name of the last piece of the lower segment, any but the last.

    Returns:
        The two segments. Convolutions mix neighboring pixels, so that smashed data tell places.

    >>> split = cut_chain({"conv": nn.Conv2d(1, 2, 3), "flat": nn.Flatten()}, "conv")
    >>> [name for name, _ in split.lower.named_children()], [name for name, _ in split.upper.named_children()]
    (['center', 'conv'], ['flat'])
    """
    names = list(pieces)
    below = names.index(cut) + 1
    lower = OrderedDict({"center": _Centered(), **{name: pieces[name] for name in names[:below]}})
    upper = OrderedDict((name, pieces[name]) for name in names[below:])
    return SplitModel(lower=nn.Sequential(lower), upper=nn.Sequential(upper), hides_places=False)
