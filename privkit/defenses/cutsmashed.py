"""CutSmashed data: Random Cutout whose places are a pseudo-random sequence that clients and server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privkit.defenses.random_cutout import RandomCutout


@dataclass(frozen=True, kw_only=True)
class CutSmashed(RandomCutout):
    """The release of `random_cutout`; only kept positions travel, since a seed tells the server their places.

    The release has the same law, but fewer bytes travel: both sides know the sequence of masks, so not even their bits
    are sent, and the server fills in zeros. Nothing is proven.

    Source: CutMixSL §3.1, Eq. 1 and Figure 2 (masks fixed for all rounds, or drawn in every one).

    >>> import torch
    >>> z, y = torch.rand(3, 4, 16, 6), torch.zeros(3, 4)
    >>> ours, theirs = (d.apply(z, y, torch.Generator().manual_seed(0))[0] for d in (CutSmashed(), RandomCutout()))
    >>> torch.equal(ours.smashed, theirs.smashed)
    True
    """

    name: ClassVar[str] = "cutsmashed"
    server_knows: ClassVar[str] = "the server knows which positions these are: it shares the pseudo-random sequence"
