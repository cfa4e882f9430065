"""The common part of masking and scaling: they act on smashed data or on logits, with the derivative or without."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense, Effect, Release
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import Nothing
from privkit.errors import UsageError

Variant = Literal["exact", "straight_through", "undone", "logits", "straight_through_logits"]
"""Where a stage acts, and the gradient that goes back through it.

"exact": on smashed data, with the derivative, as the paper writes. "straight_through": the gradient passes as if the
stage were not there. "undone": likewise, and the server restores the smashed data before its backward pass, so that the
weights of its first layer learn from unscaled numbers. "logits": on the server's logits, with the derivative.
"straight_through_logits": likewise, and the gradient passes as if the stage were not there.
"""

Automatic = Literal["auto"]
"""The setting with the least mean squared error, from running estimates (`privkit.defenses.automatic`)."""


class Denoising(Defense):
    """A stage that lowers the noise, and the signal, too.

    Attributes:
        variant: see `Variant`.
    """

    denoises: ClassVar[bool] = True
    setting: ClassVar[str]
    variant: Variant

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant != "exact" and self.place != "server":
            raise ValueError(
                f"variant={self.variant} is what a server does to itself, got place={self.place}; use place=server, or "
                "variant=exact"
            )
        if self.automatic and (self.place != "server" or self.on_logits or self.variant == "undone"):
            raise ValueError(
                f"{self.setting}=auto estimates what the server's first layer makes of noise: it needs place=server "
                f"and variant exact or straight_through, got place={self.place}, variant={self.variant}"
            )

    @property
    def automatic(self) -> bool:
        """Whether the setting is estimated."""
        return bool(getattr(self, self.setting) == "auto")

    @property
    def on_logits(self) -> bool:
        """Whether it acts on the server's logits."""
        return self.variant in ("logits", "straight_through_logits")

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence if the gradient is not the derivative."""
        how = {
            "straight_through": "the gradient passes {} as if it were not there, as accurate_sl released it",
            "undone": "the gradient passes {} as if it were not there, and the server's first layer learns from "
            "restored smashed data, as accurate_sl released it for MNIST",
            "straight_through_logits": "the gradient passes {} of the logits as if it were not there, as accurate_sl "
            "released it for CIFAR-10 and ImageNet",
        }
        return (how[self.variant].format(self.name),) if self.variant in how else ()

    @abstractmethod
    def changed(self, values: Tensor, generator: Generator | None) -> Tensor:
        """The values [...] scaled or masked, with the derivative."""

    @abstractmethod
    def nothing(self) -> Nothing:
        """Why nothing is proven."""

    def applied(self, values: Tensor, generator: Generator | None = None) -> Tensor:
        """The values scaled or masked, with the gradient of the variant."""
        changed = self.changed(values, generator)
        if self.variant in ("exact", "logits"):
            return changed
        return changed.detach() + (values - values.detach())

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Change the smashed data; stages on logits or with estimated settings leave them to the server's segment."""
        require_messages(self.name, smashed)
        if not self.on_logits and not self.automatic:
            smashed = self.applied(smashed, generator)
        return Release(smashed=smashed, labels=labels), self.nothing()

    def head(self) -> nn.Module | None:
        """The stage as a module, if it acts on logits."""
        return OnLogits(self) if self.on_logits else None


class ServerStage(nn.Module):
    """A stage inside the server's segment.

    Attributes:
        off: whether values pass unchanged, as for noise-free accuracy.
    """

    off = False


class OnLogits(ServerStage):
    """A stage behind the server's segment. Masks act in training only: a masked logit would be a guess."""

    def __init__(self, stage: Denoising) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, logits: Tensor) -> Tensor:
        """[N, L] -> [N, L]; random numbers are drawn from the global generator, as a dropout layer draws them.

        Raises:
            UsageError: if the segment returns several outputs.
        """
        if not isinstance(logits, Tensor):
            raise UsageError(
                f"{self.stage.name}:variant={self.stage.variant} needs a server's segment with one output, got "
                "several; use variant=exact"
            )
        masked = "masks" in cast("frozenset[Effect]", self.stage.effects)
        return logits if self.off or (masked and not self.training) else self.stage.applied(logits)


def switch(upper: nn.Module, **attributes: Any) -> None:
    """Set attributes of every stage inside a server's segment."""
    for stage in upper.modules():
        if isinstance(stage, ServerStage):
            for name, value in attributes.items():
                setattr(stage, name, value)


def uniform(values: Tensor, generator: Generator | None) -> Tensor:
    """A uniform number in [0, 1) for every value, as float32: bfloat16 has too few digits for a probability."""
    return torch.rand(values.shape, generator=generator, device=values.device)
