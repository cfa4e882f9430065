"""Gradient perturbation: the server holds the labels and adds noise to the gradients that it sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
from privkit.accountants.spec.sensitivity import Known
from privkit.constraints import Magnitude
from privkit.defenses.base import Effect, FrozenBlock, OnSmashed
from privkit.defenses.charge import Noised
from privkit.defenses.none import require_messages


@dataclass(frozen=True, kw_only=True)
class GradPerturb(OnSmashed[Noised]):
    """Adds noise to the cut-layer gradient against label inference; with `clip`, labels get (ε, δ)-DP.

    The server's noise protects its own labels; it does not protect the clients' data.

    Attributes:
        law: the distribution of the noise, "gaussian" or "laplace".
        noise: standard deviation σ (or scale b) on every coordinate, > 0, in units of the gradient that is sent. If the
            loss is a mean over the batch, this gradient is smaller for larger batches.
        clip: largest L2 norm (L1 for Laplace) of one image's gradient, > 0; longer gradients are shortened before the
            noise. None does not clip.

    Source: Yang et al. 2022, "Differentially private label protection in split learning", simple gradient perturbation.
    The accounting is privkit's, because here the server's weights learn from unperturbed labels.
    """

    name: ClassVar[str] = "grad_perturb"
    effects: ClassVar[frozenset[Effect]] = frozenset({"answers"})
    noise_fields: ClassVar[tuple[str, ...]] = ("noise",)
    place = "server"

    law: Literal["gaussian", "laplace"] = "gaussian"
    noise: Magnitude = 1e-3
    clip: Magnitude | None = None
    frozen_block: FrozenBlock = False

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Noised]:
        require_messages(self.name, smashed)
        norm: Literal["l1", "l2"] = "l2" if self.law == "gaussian" else "l1"
        return smashed, Noised(
            clip=None if self.clip is None else Known(value=2 * self.clip, relation="replace_one", norm=norm),
            noise=Noise(law=self.law, smashed=self.noise),
            mixing=UNMIXED,
            covers="labels",
            added_by="server",
        )

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        """Clip the gradient of every image, then add noise to every coordinate, in float64, rounded at the end."""
        exact, shape, device = gradient.double(), gradient.shape, gradient.device
        if self.clip is not None:
            norm = torch.linalg.vector_norm(exact.flatten(2), ord=2 if self.law == "gaussian" else 1, dim=2)
            factor = self.clip / norm.clamp_min(self.clip)
            exact = exact * factor.view(*factor.shape, *[1] * (gradient.ndim - 2))
        if self.law == "gaussian":
            noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        else:
            u = 2 * torch.rand(shape, generator=generator, device=device, dtype=torch.float64) - 1
            noise = -u.sign() * torch.log1p(-u.abs().clamp_max(1 - 2**-53))  # u = −1 occurs, once in 2⁵³
        return (exact + self.noise * noise).to(gradient.dtype)
