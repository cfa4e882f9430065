"""A lower segment whose last part runs after the defense. An adversary who has that part's weights can undo it."""

from __future__ import annotations

from torch import nn


class Behind(nn.Sequential):
    """A client's modules in sequence. The last one is a transformer block, which runs on the defense's output.

    >>> whole = Behind(nn.Linear(4, 3), nn.Linear(3, 3))
    >>> whole.front.out_features, whole.block is whole[1]
    (3, True)
    """

    @property
    def front(self) -> nn.Module:
        """The modules that run before the defense, as one module."""
        first, *others = list(self)[:-1]
        return nn.Sequential(first, *others) if others else first

    @property
    def block(self) -> nn.Module:
        """The block behind the defense: tokens [N, T, D] -> [N, T, D], each record separately."""
        return self[-1]
