"""Max-norm: the server gives all returned gradients of a message the same expected squared length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.defenses.base import Effect, FrozenBlock, OnSmashed
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class MaxNorm(OnSmashed[Nothing]):
    """Stretches each image's cut-layer gradient at random, so that norms do not reveal labels; nothing is proven.

    An image's gradient g becomes (1 + s·ε)·g with ε ~ N(0, 1) and s² = ‖g_max‖²/‖g‖² − 1, where g_max is the batch's
    longest gradient. Then all gradients have the same expected squared norm. g_max is unchanged, and every other
    gradient keeps its direction up to the sign. With more than two classes this direction reveals the label. With two
    classes both labels have the same direction up to the sign; short gradients get nearly random signs, but long
    gradients do not.

    Source: Li et al. 2021, "Label leakage and protection in two-party split learning", §4, the heuristic max_norm.
    """

    name: ClassVar[str] = "max_norm"
    effects: ClassVar[frozenset[Effect]] = frozenset({"answers"})
    place = "server"

    frozen_block: FrozenBlock = False

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        require_messages(self.name, smashed)
        return smashed, Nothing(
            reason=f"smashed data leave as they are, and the direction of a returned gradient, up to its sign, "
            f"reveals its label {NOT_DP}",
            source="Li et al. 2021 claim no bound for max_norm",
        )

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        """Stretch the gradients of each message, [M, B, ...]; a zero gradient stays zero."""
        norm = torch.linalg.vector_norm(gradient.double().flatten(2), dim=2)
        longest = norm.amax(1, keepdim=True)
        spread = (longest.square() / norm.square().clamp_min(1e-300) - 1).clamp_min(0).sqrt()
        drawn = torch.randn(norm.shape, generator=generator, device=gradient.device, dtype=torch.float64)
        factor = torch.where(norm > 0, 1 + spread * drawn, 1)
        return (gradient.double() * factor.view(*factor.shape, *[1] * (gradient.ndim - 2))).to(gradient.dtype)
