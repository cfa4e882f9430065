"""Scaling and masking remove noise together with some of the signal, on smashed data or on logits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from privkit.constraints import Magnitude, Probability
from privkit.defenses.base import Defense, Effect, OnSmashed, Place
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import NOT_DP, Nothing
from privkit.errors import UsageError

GradientVariant = Literal["exact", "straight_through", "undone", "logits", "straight_through_logits"]
"""Where a stage acts, and the gradient that goes back through it.

"exact": on smashed data, with the derivative, as in the paper. "straight_through": the gradient passes as if the
stage were not there. "undone": like "straight_through", but the server restores the smashed data before its backward
pass, so that its first layer learns from unscaled numbers. "logits": on the server's logits, with the derivative.
"straight_through_logits": on the logits, and the gradient passes as if the stage were not there.
"""

_Automatic = Literal["auto"]
"""The server estimates the setting with the least mean squared error while it trains."""


class Denoising(OnSmashed[Nothing]):
    """A defense stage after noise that removes part of the noise, and some of the signal with it.

    Attributes:
        variant: how gradients pass through the stage (the values are explained at `GradientVariant`).
        setting: name of the field whose value may be "auto", which means that the server estimates it.
        receipt: the stage's receipt, which says why nothing is proven.
    """

    denoises: ClassVar[bool] = True
    setting: ClassVar[str]
    receipt: ClassVar[Nothing]
    variant: GradientVariant

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant != "exact" and self.place != "server":
            raise ValueError(
                f"variant={self.variant} is a step of the server, got place={self.place}; use place=server, or "
                "variant=exact"
            )
        if self.automatic and (self.place != "server" or self.on_logits or self.variant == "undone"):
            raise ValueError(
                f"{self.setting}=auto estimates what the server's first layer makes of noise: it needs place=server "
                f"and variant exact or straight_through, got place={self.place}, variant={self.variant}"
            )

    @property
    def automatic(self) -> bool:
        return bool(getattr(self, self.setting) == "auto")

    @property
    def on_logits(self) -> bool:
        return self.variant in ("logits", "straight_through_logits")

    @property
    def remarks(self) -> tuple[str, ...]:
        how = {
            "straight_through": "the gradient passes {} as if it were not there, as in accurate_sl's released code",
            "undone": "the gradient passes {} as if it were not there, and the server's first layer learns from "
            "restored smashed data, as in accurate_sl's released code for MNIST",
            "straight_through_logits": "the gradient passes {} of the logits as if it were not there, as in "
            "accurate_sl's released code for CIFAR-10 and ImageNet",
        }
        return (how[self.variant].format(self.name),) if self.variant in how else ()

    @abstractmethod
    def changed(self, values: Tensor, generator: Generator | None) -> Tensor:
        """Scale or mask the values [...]; gradients are the true derivatives."""

    def applied(self, values: Tensor, generator: Generator | None = None) -> Tensor:
        """Scale or mask the values [...]; gradients pass as `variant` says."""
        changed = self.changed(values, generator)
        if self.variant in ("exact", "logits"):
            return changed
        return changed.detach() + (values - values.detach())

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        require_messages(self.name, smashed)
        unchanged = self.on_logits or self.automatic
        return smashed if unchanged else self.applied(smashed, generator), self.receipt

    def head(self) -> nn.Module | None:
        return _OnLogits(self) if self.on_logits else None


class _ServerStage(nn.Module):
    off = False  # whether values pass unchanged, as when accuracy without noise is measured


class _OnLogits(_ServerStage):
    """A stage behind the server's segment. Masks act in training only: a masked logit makes a prediction random."""

    def __init__(self, stage: Denoising) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, logits: Tensor) -> Tensor:
        """Logits [N, L] -> [N, L]; random numbers come from the global generator, as in a dropout layer."""
        if not isinstance(logits, Tensor):
            raise UsageError(
                f"{self.stage.name}:variant={self.stage.variant} needs a server's segment with one output, got "
                "several; use variant=exact"
            )
        masked = "masks" in cast("frozenset[Effect]", self.stage.effects)
        return logits if self.off or (masked and not self.training) else self.stage.applied(logits)


def switch(upper: nn.Module, *, off: bool) -> None:
    """Switch all stages inside a server's segment off or on; if they are off, values pass unchanged."""
    for stage in upper.modules():
        if isinstance(stage, _ServerStage):
            stage.off = off


_MEMORY = 100  # rounds over which estimates are averaged, since they follow the weights, which change slowly
_SMALLEST = 1e-3  # smallest λ; with λ = 0, the server would get no signal and never learn to use one


def denoisers(stages: Sequence[Defense], upper: nn.Module) -> list[Denoiser]:
    """One module, to run before the server's segment `upper`, for each denoising stage whose setting is "auto".

    Raises `UsageError` if no noise stage lies directly before such a stage, or if the server's segment does not begin
    with a linear layer or a convolution.
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


class Denoiser(_ServerStage):
    """Scales or masks noisy smashed data by the best scale λ* or keep probability p*, which it estimates in training.

    X̃ = X + Z are the arriving smashed data, with noise Z of variance σ², and M = (m_ij) is the matrix of the server's
    first layer. λ* and p* follow from A = ‖MX‖², B = Σ m_ij² x_j² and F = Σ m_ij². Since E‖MX̃‖² = A + σ²F and E Σ
    m_ij² x̃_j² = B + σ²F, the server, who knows σ and M, estimates A and B without seeing X, as averages over records
    and rounds. The averages are buffers, so they are saved with the server's weights.

    Source: accurate_sl, Theorem 3.1; λ* and p* are derived in `privkit.papers.accurate_sl.denoising`.
    """

    rounds: Tensor
    sums: Tensor

    def __init__(self, stage: Denoising, variance: float, upper: nn.Module) -> None:
        super().__init__()
        self.stage, self.variance = stage, variance
        self._first = _first_layer(stage, upper)  # in a tuple, since only the segment may register these weights
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(3, dtype=torch.float64))

    def forward(self, arrived: Tensor) -> Tensor:
        if self.off:
            return arrived
        if self.training:
            self._estimate(arrived)
        return replace(self.stage, **{self.stage.setting: self.setting}).applied(arrived)  # type: ignore[type-var]

    @property
    def setting(self) -> float:
        """The estimated λ* of scaling or p* of masking; 1 before the first round."""
        if not int(self.rounds):
            return 1.0
        signal, diagonal, spread = self.sums.tolist()
        signal, diagonal = max(0.0, signal - spread), max(0.0, diagonal - spread)
        best = best_scale(signal, spread) if self.stage.setting == "factor" else best_keep(signal, diagonal, spread)
        return max(best, _SMALLEST)

    @property
    def remark(self) -> str:
        return f"{self.stage.name}:{self.stage.setting}=auto ended at {self.setting:.3g}"

    @torch.no_grad()
    def _estimate(self, arrived: Tensor) -> None:
        *reshaping, layer = self._first
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        weight = layer.weight.detach().float()
        with torch.autocast(arrived.device.type, enabled=False):
            rows = arrived.detach().float()
            for reshape in reshaping:
                rows = reshape(rows)

            def total(weight: Tensor, values: Tensor) -> Tensor:
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
    """The best scale λ* = A/(A + σ²F), from A = `signal` and σ²F = `spread`; 0 without a signal."""
    return signal / (signal + spread) if signal > 0 else 0.0


def best_keep(signal: float, diagonal: float, spread: float) -> float:
    """The best keep probability p* ∈ [0, 1]: (2A − B − σ²F)/(2(A − B)) if A > B, else the better of 0 and 1."""
    if signal <= diagonal:
        return 0.0 if signal < spread else 1.0
    return min(1.0, max(0.0, 0.5 + (signal - spread) / (signal - diagonal) / 2))


def _first_layer(stage: Denoising, upper: nn.Module) -> tuple[nn.Module, ...]:
    """The layers up to and including the first with weights; `UsageError` if earlier layers do more than reshape."""
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
    if not isinstance(module, nn.Sequential):
        return [module]
    return [leaf for part in module for leaf in _leaves(part)]


@dataclass(frozen=True, kw_only=True)
class Masking(Denoising):
    """Keeps each coordinate with probability `keep` and zeroes the others; after noise, this removes some of the noise.

    Unlike dropout, it does not divide the kept values by `keep`.

    Attributes:
        keep: the probability p in [0, 1], or "auto" for the p with the smallest mean squared error, estimated while the
            server trains.
        place: the party that masks: "server" removes noise from the arrived data; "client" or "mixer" masks before data
            reach the server.
        variant: how gradients pass (see `privkit.defenses.denoising.GradientVariant`); "undone" is refused, since
            masked values cannot be restored. The paper's released code uses "straight_through".
        at_inference: whether test images are masked, too. Logits of test images are never masked.

    Source: accurate_sl §3, the random masking operator R_p.

    >>> z = torch.ones(2, 3, 100, 10)
    >>> release, _ = Masking(keep=0.2).apply(z, torch.zeros(2, 3), Generator().manual_seed(0))
    >>> round(release.smashed.mean().item(), 2)
    0.2
    """

    name: ClassVar[str] = "masking"
    effects: ClassVar[frozenset[Effect]] = frozenset({"masks"})
    setting: ClassVar[str] = "keep"
    receipt: ClassVar[Nothing] = Nothing(reason=f"the coordinates that a mask kept are released as they are, {NOT_DP}")

    keep: Probability | _Automatic = 0.2
    place: Place = "server"
    variant: GradientVariant = "exact"
    at_inference: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "undone":
            raise ValueError(
                "variant=undone divides by a factor again, and a mask has none; use exact, straight_through, logits or "
                "straight_through_logits"
            )

    def changed(self, values: Tensor, generator: Generator | None) -> Tensor:
        assert self.keep != "auto"
        uniform = torch.rand(values.shape, generator=generator, device=values.device)  # bfloat16 has too few digits
        return torch.where(uniform < self.keep, values, 0)


@dataclass(frozen=True, kw_only=True)
class Scaling(Denoising):
    """Multiplies the smashed data by λ; after a noise stage, λ < 1 shrinks both the noise and the signal.

    Attributes:
        factor: λ > 0 (1/α in the paper). With "auto", the server estimates the λ with the least mean squared error of
            the scaled data while it trains.
        place: the party that multiplies: "server", "client" or "mixer" (which mixes the clients' messages).
        variant: how gradients pass (see `privkit.defenses.denoising.GradientVariant`). The paper's released code uses
            "undone" for MNIST, "straight_through" for IMDB, and "straight_through_logits" for CIFAR-10, ImageNet and
            Amazon reviews.

    Source: accurate_sl §3, the scaling operator S_α.

    >>> import torch
    >>> Scaling(factor=0.5).apply(torch.ones(1, 1, 2), torch.zeros(1, 1), Generator())[0].smashed.tolist()
    [[[0.5, 0.5]]]
    """

    name: ClassVar[str] = "scaling"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})
    keeps_zeros: ClassVar[bool] = True
    setting: ClassVar[str] = "factor"
    receipt: ClassVar[Nothing] = Nothing(
        reason="scaled smashed data are divided by the factor again; no differential privacy"
    )

    factor: Magnitude | _Automatic = 0.2
    place: Place = "server"
    variant: GradientVariant = "exact"

    def changed(self, values: Tensor, generator: Generator | None) -> Tensor:
        assert self.factor != "auto"
        return values * self.factor

    def public_transform(self, smashed: Tensor) -> Tensor:
        return smashed if self.on_logits or self.automatic else self.changed(smashed, None)

    def before_backward(self, arrived: Tensor) -> None:
        """With the variant "undone", divide by the factor in place, outside autograd, as in accurate_sl's code."""
        if self.variant == "undone" and self.factor != "auto":
            arrived.data.div_(self.factor)
