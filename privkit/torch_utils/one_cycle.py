"""The one-cycle schedule of the learning rate, for any number of steps."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

WARM_UP = 0.1  # share of the steps in which the learning rate rises


def one_cycle(
    optimizer: Optimizer, peak: float, steps: int, *, warm_up: float = WARM_UP, momentum: bool = False
) -> OneCycleLR:
    """Create a schedule whose learning rate rises to `peak` and falls to zero along cosines, over `steps` ≥ 0 steps.

    If the rise took exactly one step, it is left out, because torch would divide by zero.

    Args:
        warm_up: share of the steps in which the rate rises, in [0, 1].
        momentum: whether the momentum (AdamW's β₁) falls while the rate rises, and rises while the rate falls.

    Source: Smith and Topin 2017, "Super-convergence"; torch `OneCycleLR`.
    """
    total = steps + 1
    return OneCycleLR(
        optimizer,
        max_lr=peak,
        total_steps=total,
        pct_start=0.0 if warm_up * total == 1 else warm_up,
        cycle_momentum=momentum,
    )
