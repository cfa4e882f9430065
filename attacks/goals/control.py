"""Control experiments: an attack counts only if it succeeds on an easy task and fails if nothing is revealed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from privkit.attacks.base import Scores
from privkit.shared.seeds import derive

CONTROL_STEPS = 100  # training steps of an attack in its controls, if the attack names no other number
_PLANTED_AUC = 0.9  # least AUC on a planted leak
_NOISE_AUC = 0.1  # largest distance of the AUC from 1/2 on noise


@dataclass(frozen=True, kw_only=True)
class Control:
    """The result of a control experiment: a task in which an attack must succeed, or in which it must fail."""

    name: str
    passed: bool | None  # whether the attack behaved as required; None if the experiment was not possible
    detail: str  # a sentence with what was measured
    decisive: bool = True  # whether the attack's results are valid only if this experiment passed


def attack_draws(seed: int) -> Generator:
    """The attack's own random generator, which is independent of the draws with this seed that make the task."""
    return Generator().manual_seed(derive(seed, "control", "attack"))


def planted(leak: Scores, leak_truth: Tensor, noise: Scores, noise_truth: Tensor) -> tuple[Control, Control]:
    """Two control experiments for an attack that returns scores: a planted leak, and pure noise.

    The first passes if the AUC is at least 0.9, the second if it is at most 0.1 away from 1/2. `noise_truth` are coin
    flips, independent of the noise.
    """
    from privkit.attacks.scores.leak import pooled_auc

    detected, nothing = (
        pooled_auc(scores.values.double().cpu().numpy(), truth.cpu().numpy()).auc.value
        for scores, truth in ((leak, leak_truth), (noise, noise_truth))
    )
    return (
        Control(
            name="wins_on_a_planted_leak",
            passed=detected >= _PLANTED_AUC,
            detail=f"with a planted leak the attack's AUC is {detected:.3f}",
        ),
        Control(
            name="fails_on_noise",
            passed=abs(nothing - 0.5) <= _NOISE_AUC,
            detail=f"on pure noise the attack's AUC is {nothing:.3f}",
        ),
    )
