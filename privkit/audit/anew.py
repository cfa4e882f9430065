"""Whether the noise of a user's own stage is drawn anew in each round."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.defenses.base import Defense, is_own
from privkit.defenses.own_receipts import TrialRounds, trial_of
from privkit.errors import Misbehaved


@torch.no_grad()
def must_draw_anew(stages: tuple[Defense, ...], shape: tuple[int, ...], image: tuple[int, ...]) -> None:
    """Refuse a user's own stage that adds the same noise in each round, such as noise from a seed of its own.

    Whoever has the code, or asks twice, subtracts such noise. Attacks take it for fresh noise, so that their failure
    would say nothing.

    Args:
        shape: of one record's smashed data, for stages that take no other.
        image: of one record, for stages on images.

    Raises:
        Misbehaved: if a stage that scales noise makes the same of other draws, and that is not what it makes without.
    """
    for stage in stages:
        if not (is_own(stage) and stage.noise_fields):
            continue
        trial = trial_of((stage,), None, image) or trial_of((stage,), shape, image)
        if trial is None:
            continue  # nothing of it can be measured, and the run itself refuses it
        silent = TrialRounds((stage.noiseless(),), trial.shape, trial.lead[1], dtype=trial.dtype)
        one, other, without = (_released(each, seed) for each, seed in ((trial, 0), (trial, 1), (silent, 0)))
        if torch.equal(one, other) and not torch.allclose(one, without):
            raise Misbehaved(
                f"{stage.name} adds the same noise in each round, whatever the draws: whoever has its code subtracts "
                "it, and attacks take it for fresh noise; draw from the generator that apply is given, and seed none"
            )


def _released(trial: TrialRounds, seed: int) -> Tensor:
    return trial.play(trial.data(), trial.labels(), seed)[0].smashed
