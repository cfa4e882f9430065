"""FedPass: the client scales and shifts each channel by a network's outputs for secret inputs, the passports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import leaky_relu

from privkit.constraints import NonNegative, Positive, Whole
from privkit.defenses.base import Effect, OnSmashed
from privkit.defenses.noise import gaussian
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import Nothing

_WIDEST = 256
"""Largest width between encoder and decoder: a quarter of 16,384 channels would need two matrices of 0.5 GB each."""


@dataclass(frozen=True, kw_only=True)
class FedPass(OnSmashed[Nothing]):
    """Replaces each channel x by tanh(s)·x + tanh(b), where a network computes s and b from secret random passports.

    Passports are vectors of random numbers p ~ N(μ, σ²), one per channel, drawn for each record; μ is secret and fixed
    for the run. Nothing is proven. With σ = 0 all records share one map, which an attacker learns from queries. With σ
    > 0 the map adds noise that grows with the smashed data.

    Attributes:
        reach: width > 0 of the interval (−reach, 0), from which the passports' means μ are drawn. If it is large, tanh
            saturates at ±1 and removes the noise.
        sigma: standard deviation σ ≥ 0 of the passports; with 0 all records have the same passports.
        seed: seed of the means μ and of the network's weights.

    Source: Gu et al. 2023, "FedPass: Privacy-preserving vertical federated deep learning with adaptive obfuscation"
    (arXiv 2301.12623). The network is an encoder to a quarter of the channels (here at most 256), a leaky ReLU and a
    decoder. The paper trains this network; here its weights are drawn and fixed, so that training cannot learn to
    ignore the passports. A white-box adversary knows the map for p = μ. The default reach is privkit's.

    >>> release, _ = FedPass(sigma=0.0).apply(torch.zeros(1, 3, 8), torch.zeros(1, 3), torch.Generator())
    >>> bool(release.smashed.abs().amax() < 1), bool((release.smashed == release.smashed[:, :1]).all())
    (True, True)
    """

    name: ClassVar[str] = "fedpass"
    effects: ClassVar[frozenset[Effect]] = frozenset({"scales"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)

    reach: Positive = 2.0
    sigma: NonNegative = 1.0
    seed: Whole = 0

    @property
    def keyed(self) -> bool:
        return True

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        require_messages(self.name, smashed)
        rows = smashed.flatten(0, 1)
        means, *network = self._secret(rows)
        passports = means.expand(len(rows), *means.shape)
        if self.sigma:
            passports = gaussian(passports, self.sigma, generator)
        return _passed(rows, passports, *network).view_as(smashed), Nothing(
            reason="each channel leaves scaled and shifted; no differential privacy (ε = ∞ for every δ < 1)",
            assumptions=("the passports' means and the network are the same in every round, and queries show them",),
            source="Gu et al. 2023 bound no record's release",
        )

    def public_transform(self, smashed: Tensor) -> Tensor:
        means, *network = self._secret(smashed)
        return _passed(smashed, means.expand(len(smashed), *means.shape), *network)

    def _secret(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        channels = rows.shape[1 if rows.ndim == 4 else -1]
        drawn: tuple[Tensor, Tensor, Tensor] = _constants(channels, self.reach, self.seed, rows.dtype, rows.device)
        return drawn


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constants(channels: int, reach: float, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """The random tensors of `_drawn`, which torch's compiler must treat as constants: it cannot trace the generator."""
    return _drawn(channels, reach, seed, dtype, device)


@lru_cache(maxsize=8)
def _drawn(
    channels: int, reach: float, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the secrets for C channels: passport means [2, C] (for s and b), encoder [C, h] and decoder [h, C]."""
    draws, hidden = Generator().manual_seed(seed), min(max(1, channels // 4), _WIDEST)
    means = -reach * torch.rand(2, channels, generator=draws, dtype=torch.float64)
    encoder = torch.randn(channels, hidden, generator=draws, dtype=torch.float64) / sqrt(channels)
    decoder = torch.randn(hidden, channels, generator=draws, dtype=torch.float64) / sqrt(hidden)
    return means.to(device, dtype), encoder.to(device, dtype), decoder.to(device, dtype)


def _passed(rows: Tensor, passports: Tensor, encoder: Tensor, decoder: Tensor) -> Tensor:
    scale, bias = (leaky_relu(passports @ encoder) @ decoder).tanh().unbind(1)
    if rows.ndim == 4:
        return scale[..., None, None] * rows + bias[..., None, None]
    return scale.unsqueeze(1) * rows + bias.unsqueeze(1) if rows.ndim == 3 else scale * rows + bias
