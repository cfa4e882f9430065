"""Optimizers and schedules of the learning rate, from their specification."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR

from privkit.torch_utils.one_cycle import WARM_UP, one_cycle
from privkit.training.spec import OptimizerSpec

_WEIGHT_DECAY = {"adamw": 0.05, "adam": 0.0, "sgd": 0.0}
"""Of each optimizer, if the user names none."""
_DECAY = 0.1
"""The factor of multi_step, if the user names none."""


def optimizer_of(spec: OptimizerSpec, weights: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer of one side, at its largest rate. All of them are elementwise, so stacked copies stay independent.

    >>> optimizer_of(OptimizerSpec(optimizer="sgd", momentum=0.9), [nn.Parameter()]).defaults["momentum"]
    0.9
    """
    rate = spec.learning_rate
    decay = _WEIGHT_DECAY[spec.optimizer] if spec.weight_decay is None else spec.weight_decay
    if spec.optimizer == "sgd":
        return SGD(weights, lr=rate, momentum=spec.momentum or 0.0, weight_decay=decay, fused=True)
    kind = Adam if spec.optimizer == "adam" else AdamW
    return kind(weights, lr=rate, weight_decay=decay, fused=True)


def schedule_of(spec: OptimizerSpec, optimizer: Optimizer, epochs: int, steps: int) -> LRScheduler:
    """The schedule of one side's rate, stepped after every step of training.

    Args:
        spec: of the side.
        optimizer: whose rate is set.
        epochs: of the training.
        steps: of an epoch.

    >>> optimizer = optimizer_of(OptimizerSpec(learning_rate=1.0), [nn.Parameter()])
    >>> spec = OptimizerSpec(learning_rate=1.0, schedule="multi_step", milestones=(1,))
    >>> schedule = schedule_of(spec, optimizer, epochs=2, steps=1)
    >>> optimizer.step(); schedule.step(); schedule.get_last_lr()
    [0.1]
    """
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
    """The rate over its largest at a step, 0-based: up a line to 1 at `rise`, down a cosine to `lowest` at `total`.

    >>> [round(_cosine(step, 1, 5, 0.0), 3) for step in range(6)]
    [0.5, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if step < rise:
        return (step + 1) / (rise + 1)
    return lowest + (1 - lowest) * (1 + cos(pi * (step - rise) / max(1, total - rise))) / 2
