"""The scaling and the masking of least error, from running estimates of the server's first layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from privkit.defenses.base import Defense
from privkit.defenses.denoising import Denoising, ServerStage
from privkit.errors import UsageError

_MEMORY = 100
"""Rounds over which estimates are averaged: they follow the weights, which move slowly."""
_SMALLEST = 1e-3
"""Of λ: where no signal is seen yet, a server that gets nothing would never learn to see one."""


def denoisers(stages: Sequence[Defense], upper: nn.Module) -> list[Denoiser]:
    """The stages that estimate their setting, as modules in front of the server's segment.

    Args:
        stages: of a defense, in order.
        upper: the server's segment.

    Raises:
        UsageError: if no noise lies directly before such a stage, or the server's first layer is not linear.
    """
    found: list[Denoiser] = []
    for before, stage in zip((None, *stages), stages, strict=False):
        if isinstance(stage, Denoising) and stage.automatic:
            variance = getattr(before, "variance", None)
            if variance is None:
                raise UsageError(
                    f"{stage.name}:{stage.setting}=auto needs the variance of the noise; put it directly behind "
                    f"gaussian_noise or laplace_noise, or give {stage.setting} a number"
                )
            found.append(Denoiser(stage, variance, upper))
    return found


class Denoiser(ServerStage):
    """Estimates λ* or p* in every round of training, and applies it.

    With X̃ = X + Z the smashed data that arrive and M the first layer, E‖MX̃‖² = A + σ²F and E Σ m_ij² x̃_j² = B + σ²F.
    So the server, which knows σ and M, estimates A = ‖MX‖² and B without seeing X. Both are averaged over records and
    rounds. A + σ²F, B + σ²F and σ²F are buffers and so travel with the server's weights.

    Args:
        stage: scaling or masking with "auto".
        variance: σ² of the noise.
        upper: the server's segment, which begins with a linear layer or a convolution.

    Source: accurate_sl, Theorem 3.1; the minimizers are derived (`privkit.papers.accurate_sl.denoising`).
    """

    rounds: Tensor
    sums: Tensor

    def __init__(self, stage: Denoising, variance: float, upper: nn.Module) -> None:
        super().__init__()
        self.stage, self.variance = stage, variance
        self._first = _first_layer(stage, upper)  # a tuple registers no module: the weights stay the segment's
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(3, dtype=torch.float64))

    def forward(self, arrived: Tensor) -> Tensor:
        """[N, ...] -> [N, ...]."""
        if self.off:
            return arrived
        if self.training:
            self._estimate(arrived)
        return replace(self.stage, **{self.stage.setting: self.setting}).applied(arrived)  # type: ignore[type-var]

    @property
    def setting(self) -> float:
        """λ* of scaling or p* of masking; 1 before the first round."""
        if not int(self.rounds):
            return 1.0
        signal, diagonal, spread = self.sums.tolist()
        signal, diagonal = max(0.0, signal - spread), max(0.0, diagonal - spread)
        best = best_scale(signal, spread) if self.stage.setting == "factor" else best_keep(signal, diagonal, spread)
        return max(best, _SMALLEST)

    @property
    def remark(self) -> str:
        """What was estimated, in a sentence."""
        return f"{self.stage.name}:{self.stage.setting}=auto ended at {self.setting:.3g}"

    @torch.no_grad()
    def _estimate(self, arrived: Tensor) -> None:
        """Move the averages by one round."""
        *reshaping, layer = self._first
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        weight = layer.weight.detach().float()
        with torch.autocast(arrived.device.type, enabled=False):
            rows = arrived.detach().float()
            for reshape in reshaping:
                rows = reshape(rows)

            def total(weight: Tensor, values: Tensor) -> Tensor:
                """Sum of squares, or of what is squared already, a record."""
                parts: dict[str, Any] = {"weight": weight}
                if layer.bias is not None:
                    parts["bias"] = torch.zeros_like(layer.bias, dtype=torch.float32)
                out: Tensor = functional_call(layer, parts, (values,))
                return out.flatten(1)

            signal = total(weight, rows).square().sum(1).mean()
            diagonal = total(weight.square(), rows.square().mean(0, keepdim=True)).sum()
            spread = self.variance * total(weight.square(), torch.ones_like(rows[:1])).sum()
        self.rounds += 1
        self.sums += (torch.stack([signal, diagonal, spread]) - self.sums) / self.rounds.clamp(max=_MEMORY)


def best_scale(signal: float, spread: float) -> float:
    """λ* = A/(A + σ²F) from A and σ²F; 0 without a signal.

    >>> best_scale(4.0, 1.0)
    0.8
    """
    return signal / (signal + spread) if signal > 0 else 0.0


def best_keep(signal: float, diagonal: float, spread: float) -> float:
    """p* from A, B and σ²F: (2A − B − σ²F)/(2(A − B)) in [0, 1] if A > B, else 0 or 1, whichever errs less.

    >>> best_keep(4.0, 2.0, 4.0)
    0.5
    """
    if signal <= diagonal:
        return 0.0 if signal < spread else 1.0
    return min(1.0, max(0.0, 0.5 + (signal - spread) / (signal - diagonal) / 2))


def _first_layer(stage: Denoising, upper: nn.Module) -> tuple[nn.Module, ...]:
    """The first layer with weights, behind those that only reshape.

    Raises:
        UsageError: if another layer comes first.
    """
    found: list[nn.Module] = []
    for layer in _leaves(upper):
        found.append(layer)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            return tuple(found)
        if not isinstance(layer, nn.Flatten | nn.Identity):
            break
    name = type(found[-1]).__name__ if found else type(upper).__name__
    raise UsageError(
        f"{stage.name}:{stage.setting}=auto needs a server's segment that begins with a linear layer or a convolution, "
        f"and this one begins with a {name}; cut the model right before one, or give {stage.setting} a number"
    )


def _leaves(module: nn.Module) -> list[nn.Module]:
    """The layers of a sequence in order; any other module is one layer."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [leaf for part in module for leaf in _leaves(part)]
