"""No defense: the unprotected baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.defenses.base import Effect, FrozenBlock, OnSmashed
from privkit.defenses.receipts import Nothing


def require_messages(name: str, smashed: Tensor) -> None:
    """Raise a ValueError for tensors that are not messages of images: [M, B, ...] with at least three axes."""
    if smashed.ndim < 3:
        raise ValueError(
            f"{name} needs messages of images, [M, B, T, D], [M, B, C, H, W] or [M, B, D], got shape "
            f"{list(smashed.shape)}; a single client sends [1, B, ...]"
        )


class Unchanged(OnSmashed[Nothing]):
    """Releases the smashed data unchanged. Base class of `none` and of the defenses that change only the training.

    Attributes:
        receipt: the receipt, which says why nothing is proven about the release.
    """

    receipt: ClassVar[Nothing]
    frozen_block: FrozenBlock = False

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        require_messages(self.name, smashed)
        return smashed, self.receipt


@dataclass(frozen=True, kw_only=True)
class NoDefense(Unchanged):
    """Releases the smashed data unchanged: no defense (vanilla split learning).

    Source: Gupta and Raskar 2018, "Distributed learning of deep neural network over multiple agents".

    >>> import torch
    >>> z = torch.rand(1, 2, 4, 3)
    >>> release, receipt = NoDefense().apply(z, torch.zeros(1, 2), torch.Generator())
    >>> release.smashed is z, receipt.certificate().kind
    (True, 'nothing')
    """

    name: ClassVar[str] = "none"
    effects: ClassVar[frozenset[Effect]] = frozenset()
    receipt: ClassVar[Nothing] = Nothing(
        reason="the smashed data leave the client as they are; no differential privacy"
    )

    frozen_block: FrozenBlock = False
