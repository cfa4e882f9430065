"""No defense: the unprotected baseline of every table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.accountants.base import Certificate, no_protection
from privkit.defenses.base import Release


@dataclass(frozen=True, kw_only=True)
class NoReceipt:
    """Nothing happened to the smashed data."""

    def certificate(self) -> Certificate:
        """Nothing is proven."""
        return no_protection()


@dataclass(frozen=True, kw_only=True)
class NoDefense:
    """The release is the smashed data: vanilla split learning.

    Source: Gupta and Raskar 2018, "Distributed learning of deep neural network over multiple agents".
    """

    name: ClassVar[str] = "none"
    applied_by: ClassVar[str] = "client"
    positions: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 1

    frozen_block: bool = False

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator) -> tuple[Release, NoReceipt]:
        """Release the smashed data as they are.

        >>> import torch
        >>> z = torch.rand(2, 4, 3)
        >>> release, receipt = NoDefense().apply(z, torch.zeros(2), torch.Generator())
        >>> release.smashed is z, receipt.certificate().kind
        (True, 'nothing')
        """
        return Release(smashed=smashed, labels=labels), NoReceipt()
