"""Training options of `--training`, with the optimizers and schedules that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le, Lt
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR

from privkit.constraints import Checked, Count, Fraction, NonNegative, Positive, Probability
from privkit.domains.images.augment import Augmentation
from privkit.errors import UsageError
from privkit.torch_utils.one_cycle import WARM_UP, one_cycle

_OF_OPTIMIZER = ("momentum", "weight_decay")
"""Options of a particular optimizer, which a side with another optimizer does not copy."""
_SCHEDULES_WITH = {
    "warm_up": ("one_cycle", "cosine"),
    "milestones": ("multi_step",),
    "decay": ("multi_step",),
    "lowest_rate": ("cosine",),
}
"""Option -> the schedules that use it."""

Optimizer = Literal["adamw", "adam", "sgd"]
Precision = Literal["auto", "float32", "bfloat16"]
LearningRateSchedule = Literal["one_cycle", "constant", "cosine", "multi_step"]
_Momentum = Annotated[float, Ge(0), Lt(1)]
_Scale = Annotated[float, Ge(1e-9), Le(1e9)]  # a clipping norm or a noise multiplier of DP-SGD


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Checked):
    """Chooses the optimizer and the learning-rate schedule of one side (clients or server).

    Attributes:
        optimizer: "adamw", "adam" or "sgd".
        learning_rate: largest rate > 0 of the schedule.
        momentum: momentum of sgd in [0, 1); None for 0.
        weight_decay: weight decay ≥ 0, decoupled for adamw and an L2 term for the others; None for 0.05 with adamw,
            else 0.
        schedule: how the rate changes. "one_cycle" rises and falls along cosines. "cosine" rises linearly and falls
            along a cosine. "multi_step" multiplies the rate by `decay` at each milestone. "constant" keeps it.
        warm_up: for one_cycle and cosine, the share in [0, 1] of all steps in which the rate rises; None for 0.1.
        milestones: for multi_step, the numbers of epochs after which the rate falls, ascending.
        decay: for multi_step, the factor in (0, 1] at each milestone; None for 0.1.
        lowest_rate: for cosine, the final rate in [0, `learning_rate`]; None for 0.

    Source: Loshchilov and Hutter 2019 (AdamW); Smith and Topin 2017 (one cycle).

    >>> OptimizerSpec(optimizer="sgd", momentum=0.9, schedule="cosine").optimizer
    'sgd'
    """

    optimizer: Optimizer = "adamw"
    learning_rate: Positive = 2e-3
    momentum: _Momentum | None = None
    weight_decay: NonNegative | None = None
    schedule: LearningRateSchedule = "one_cycle"
    warm_up: Probability | None = None
    milestones: Sequence[Count] | None = None
    decay: Fraction | None = None
    lowest_rate: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum is not None and self.optimizer != "sgd":
            raise ValueError(f"momentum belongs to sgd, but the optimizer is {self.optimizer}; drop it or use sgd")
        for name, schedules in _SCHEDULES_WITH.items():
            if getattr(self, name) is not None and self.schedule not in schedules:
                raise ValueError(f"{name} belongs to {' and '.join(schedules)}, but the schedule is {self.schedule}")
        if self.lowest_rate is not None and self.lowest_rate > self.learning_rate:
            raise ValueError(f"lowest_rate must lie in [0, learning_rate={self.learning_rate}], got {self.lowest_rate}")
        if self.schedule == "multi_step" and not self.milestones:
            raise ValueError("multi_step needs milestones, such as milestones=[30,60]")
        if self.milestones and list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones must be ascending whole numbers >= 1, got {list(self.milestones)}")


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(OptimizerSpec):
    """Chooses the options for training the task. The number of epochs is a separate argument of `train`.

    The options of `OptimizerSpec` apply to the lower side (clients).

    For each of these options there is one for the server, `upper_…`; None copies the lower side's value. An option of
    one particular optimizer or schedule is copied only if both sides use this optimizer or schedule.

    Attributes:
        batch_size: number B ≥ 1 of images that each client sends in a round. A batch-level defense mixes within a
            batch.
        freeze_lower: whether the clients' segments keep their initial weights, as in the patch-shuffling paper.
        fraction: share in (0, 1] of the private images that are used for training, with unchanged class shares.
        augment: augmentation at the clients: "none"; "crop", shifts by up to an eighth of the side; "crop_flip", with
            flips; or "histology", also with vertical flips and random colors.
        private: whether lower segments are trained by DP-SGD: each client clips the gradient of every record and adds
            noise to the sum. Needs `clip` and `noise`.
        clip: for DP-SGD, the largest L2 norm C of one record's gradient.
        noise: for DP-SGD, the noise's standard deviation divided by C (opacus' noise_multiplier).
        loss: "cross_entropy", or "multi_label" for binary cross-entropy of every label; an upper segment that defines
            `loss` keeps its own (`privkit.training.losses.OwnLoss`).
        keep: the epoch whose model is evaluated on test images and attacked: the "last", or the "best" on the budget's
            validation images. Both are stored. "best_test" chooses on the test images themselves, as some papers do;
            its accuracy is no estimate for new images.
        best_by: score that selects the best epoch: "accuracy", "mcc" or "auc"; the first of equally good epochs is
            taken.
        precision: precision of products and convolutions: "float32", "bfloat16" (weights and losses stay float32), or
            "auto" for bfloat16 on a GPU that has it and float32 elsewhere. A CPU with avx512_bf16 is about twice as
            fast in bfloat16.

    Source: batch 50 of Yao et al., patch shuffling, §V-A.1; Abadi et al. 2016 (DP-SGD). The default optimizer and
    schedule are privkit's.

    >>> spec = TrainingSpec(optimizer="sgd", momentum=0.9, learning_rate=0.05, upper_optimizer="adam")
    >>> spec.lower.momentum, spec.upper.optimizer, spec.upper.learning_rate, spec.upper.momentum
    (0.9, 'adam', 0.05, None)
    """

    batch_size: Count = 50
    freeze_lower: bool = False
    fraction: Fraction = 1.0
    augment: Augmentation = "none"
    private: bool = False
    clip: _Scale | None = None
    noise: _Scale | None = None
    loss: Literal["cross_entropy", "multi_label"] = "cross_entropy"
    keep: Literal["last", "best", "best_test"] = "last"
    best_by: Literal["accuracy", "mcc", "auc"] = "accuracy"
    precision: Precision = "auto"
    upper_optimizer: Optimizer | None = None
    upper_learning_rate: Positive | None = None
    upper_momentum: _Momentum | None = None
    upper_weight_decay: NonNegative | None = None
    upper_schedule: LearningRateSchedule | None = None
    upper_warm_up: Probability | None = None
    upper_milestones: Sequence[Count] | None = None
    upper_decay: Fraction | None = None
    upper_lowest_rate: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_private()
        try:
            _ = self.upper
        except ValueError as error:
            raise ValueError(f"of the upper side, {error}") from None

    def _check_private(self) -> None:
        given = {name: value for name in ("clip", "noise") if (value := getattr(self, name)) is not None}
        if not self.private and given:
            raise ValueError(f"{' and '.join(given)} belong to private training; add private=true or drop them")
        if self.private and len(given) < 2:
            raise ValueError("private=true needs clip and noise, such as private=true,clip=1.0,noise=1.1")
        if self.private and self.freeze_lower:
            raise ValueError("private=true trains the lower segments, and freeze_lower=true does not; choose one")

    @property
    def lower(self) -> OptimizerSpec:
        """Return the optimizer and schedule of the clients' weights."""
        return OptimizerSpec(**{name: getattr(self, name) for name in OptimizerSpec.__dataclass_fields__})

    @property
    def upper(self) -> OptimizerSpec:
        """Return the optimizer and schedule of the server's weights, with None replaced by the clients' value."""
        optimizer, schedule = self.upper_optimizer or self.optimizer, self.upper_schedule or self.schedule
        others = (_OF_OPTIMIZER if optimizer != self.optimizer else ()) + (
            tuple(_SCHEDULES_WITH) if schedule != self.schedule else ()
        )
        chosen = {}
        for name in OptimizerSpec.__dataclass_fields__:
            own = getattr(self, f"upper_{name}")
            chosen[name] = getattr(self, name) if own is None and name not in others else own
        return OptimizerSpec(**chosen)

    def check_epochs(self, epochs: int) -> None:
        """Raise `UsageError` unless every milestone is less than the number of epochs."""
        for side in (self.lower, self.upper):
            if side.milestones and side.milestones[-1] >= epochs:
                raise UsageError(
                    f"training: milestones must lie in 1..{epochs - 1} for {epochs} epochs, got {list(side.milestones)}"
                )


_WEIGHT_DECAY = {"adamw": 0.05, "adam": 0.0, "sgd": 0.0}  # each optimizer's default
_DECAY = 0.1  # the factor of multi_step, if the user names none


def optimizer_of(spec: OptimizerSpec, weights: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer of one side, with the schedule's largest rate. It acts on each weight separately, so the
    stacked copies of several clients are independent.
    """
    rate = spec.learning_rate
    decay = _WEIGHT_DECAY[spec.optimizer] if spec.weight_decay is None else spec.weight_decay
    if spec.optimizer == "sgd":
        return SGD(weights, lr=rate, momentum=spec.momentum or 0.0, weight_decay=decay, fused=True)
    kind = Adam if spec.optimizer == "adam" else AdamW
    return kind(weights, lr=rate, weight_decay=decay, fused=True)


def schedule_of(spec: OptimizerSpec, optimizer: torch.optim.Optimizer, epochs: int, steps: int) -> LRScheduler:
    """Build the learning-rate schedule of one side, to be advanced after each of an epoch's `steps` steps."""
    total, warm_up = epochs * steps, WARM_UP if spec.warm_up is None else spec.warm_up
    match spec.schedule:
        case "one_cycle":
            return one_cycle(optimizer, spec.learning_rate, total, warm_up=warm_up)
        case "multi_step":
            decay = _DECAY if spec.decay is None else spec.decay
            return MultiStepLR(optimizer, [epoch * steps for epoch in spec.milestones or ()], gamma=decay)
        case "cosine":
            lowest, rise = (spec.lowest_rate or 0.0) / spec.learning_rate, round(warm_up * total)
            return LambdaLR(optimizer, lambda step: _cosine(step, rise, total, lowest))
        case "constant":
            return LambdaLR(optimizer, lambda step: 1.0)


def _cosine(step: int, rise: int, total: int, lowest: float) -> float:
    """Share of the largest learning rate at a 0-based step: linear to 1 at `rise`, a cosine to `lowest` at `total`."""
    if step < rise:
        return (step + 1) / (rise + 1)
    return lowest + (1 - lowest) * (1 + cos(pi * (step - rise) / max(1, total - rise))) / 2
