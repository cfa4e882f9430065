"""Orthogonal maps: the client rotates the features of its smashed data, or projects them onto fewer dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Fraction, Whole
from privkit.defenses.base import Effect, OnSmashed
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class _Mapped(Nothing):
    sent: float = 1.0  # share of the dimensions that are sent, in (0, 1]

    @property
    def payload_share(self) -> float:
        return self.sent


@dataclass(frozen=True, kw_only=True)
class OrthogonalMap(OnSmashed[_Mapped]):
    """Multiplies each token (or position) z by a matrix Q with orthonormal columns; nothing is proven.

    All clients and rounds use the same Q: a rotation if keep=1, a projection if keep < 1. Queries reveal Q: if z has d
    dimensions, an adversary who knows the lower segment finds Q by least squares from d of its own tokens. So attacks
    that know the segment are given Q, even if it is secret.

    Attributes:
        keep: share of the dimensions that are sent, in (0, 1], rounded to whole dimensions and at least one.
        secret: if true, only the clients know Q, and the server computes on zQ, padded with zeros. If false, the server
            computes on zQQᵀ.
        matrix_seed: seed of Q, which is uniform over all matrices with orthonormal columns.

    Source: Cihangiroglu et al. 2026, "LightSplit" (arXiv 2605.13265): secret=false, keep of at least 1/32; Yukhimchuk
    et al. 2026, "Privacy from symmetry" (arXiv 2606.16461): keep=1, secret=true. The network of Yukhimchuk et al. is
    equivariant and fits any Q; here the server's segment is trained on the mapped data.

    >>> release, receipt = OrthogonalMap(keep=0.25).apply(torch.rand(1, 2, 16, 8), torch.zeros(1, 2), torch.Generator())
    >>> release.smashed.shape, receipt.payload_share, int(release.smashed[0, 0, 0].count_nonzero())
    (torch.Size([1, 2, 16, 8]), 0.25, 2)
    """

    name: ClassVar[str] = "orthogonal_map"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})
    keeps_zeros: ClassVar[bool] = True

    keep: Fraction = 1.0
    secret: bool = True
    matrix_seed: Whole = 0

    @property
    def keyed(self) -> bool:
        return self.secret

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, _Mapped]:
        require_messages(self.name, smashed)
        released = self.public_transform(smashed.flatten(0, 1)).view_as(smashed)
        left, width = self._left(smashed.shape[2 if smashed.ndim == 5 else -1])
        return released, _Mapped(
            reason=f"{left} of {width} directions of the features leave the client {NOT_DP}",
            quantities={"dimensions": float(left), "of": float(width)},
            assumptions=("the matrix is the same in every round, and queries reveal it",),
            source="neither paper claims a bound",
            sent=left / width,
        )

    def public_transform(self, smashed: Tensor) -> Tensor:
        features = smashed.movedim(1, -1) if smashed.ndim == 4 else smashed
        left, width = self._left(features.shape[-1])
        q = _columns(width, left, self.matrix_seed, features.dtype, features.device)
        sent = features @ q
        mapped = torch.nn.functional.pad(sent, (0, width - left)) if self.secret else sent @ q.T
        return mapped.movedim(-1, 1) if smashed.ndim == 4 else mapped

    def _left(self, width: int) -> tuple[int, int]:
        return max(1, round(self.keep * width)), width


@lru_cache(maxsize=8)
def _columns(width: int, left: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uniform orthonormal columns [width, left]: QR with a positive diagonal (Mezzadri 2007), on the CPU in float64."""
    drawn = torch.randn(width, left, generator=Generator().manual_seed(seed), dtype=torch.float64)
    q, r = torch.linalg.qr(drawn)
    columns: Tensor = q * r.diagonal().sign()
    return columns.to(device, dtype)  # cached on the device, since a copy in each step would wait for it
