"""Whether a user's own stage did the same before and after training."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.defenses.base import Defense, is_own
from privkit.defenses.own_receipts import trial_of
from privkit.errors import Misbehaved
from privkit.torch_utils.seeded import seeded

_ROUNDED = 1e-4
"""Difference, relative to the size of a release, that other ways to compute the same explain."""


@torch.no_grad()
def made_by(stages: tuple[Defense, ...], image: tuple[int, ...]) -> list[Tensor | None]:
    """What each of a user's own stages releases of the same made-up records, with the same draws; None if it cannot.

    Args:
        image: of one record, for stages on images.
    """
    made: list[Tensor | None] = []
    for stage in filter(is_own, stages):
        with seeded(torch.device("cpu"), 0):
            trial = trial_of((stage,), None, image)
            played = None if trial is None else trial.play(trial.data(), trial.labels(), 0)[0].smashed.nan_to_num()
        made.append(played)
    return made


def must_keep_no_state(stages: tuple[Defense, ...], image: tuple[int, ...], before: list[Tensor | None]) -> None:
    """Refuse a user's own stage that has changed while a model was trained, such as by counting its calls.

    Attacks and measurements meet it afterwards, so that they would say nothing of the rounds of training, and a receipt
    of the last round would be charged for all of them.

    Args:
        image: as for `made_by`.
        before: what `made_by` gave before training.
    """
    for stage, first, after in zip(filter(is_own, stages), before, made_by(stages, image), strict=True):
        if first is None or after is None:
            continue
        same = first.shape == after.shape
        apart = float((first - after).norm() / after.norm().clamp_min(1e-30)) if same else float("inf")
        if not apart <= _ROUNDED:
            raise Misbehaved(
                f"{stage.name} changed while the model was trained: it releases the same records, with the same draws, "
                f"{apart:.2g} of their size away from what it released before, so that attacks and claims, which meet "
                "it afterwards, tell nothing of training; let it keep no state between calls"
            )
