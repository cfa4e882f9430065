"""The goal "which of two known contents was sent": attacks on canaries, from which lower bounds on ε follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Attack, Observation, Scores, View
from privkit.attacks.goals.control import Control, attack_draws, planted
from privkit.attacks.goals.goal import Goal
from privkit.attacks.outputs import scores_of

_CONTROL_CANARIES, _CONTROL_SIZE = 400, 16


@dataclass(frozen=True, kw_only=True)
class CanaryObservation(Observation):
    """Holds the adversary's data on K canaries: records that were inserted or not, by secret coin flips.

    If canary i was not inserted, a counterpart was sent: another record, or the same record with another label. Each
    canary (or counterpart) was sent R times. The adversary must guess the coin flips.

    Attributes:
        rows: int64 [R, K]; rows[r, i] is the released row, counted over all views, that held canary i or the
            counterpart for the r-th time.
        present: content of this row before noise, if it holds the canary: clamped or clipped smashed data, or the
            returned gradient; float [K, ...], or [R, K, ...] if the content differs between times.
        absent: content of the same row before noise, if it holds the counterpart, with the shape of `present`.
    """

    rows: Tensor
    present: Tensor
    absent: Tensor


class CanaryAttack(Attack[CanaryObservation, Scores], Protocol):
    """An attack that scores canaries, higher for "it was sent", and 0 if both are equally likely."""

    @property
    def on(self) -> Literal["smashed", "gradient"]:
        """The data that the attack reads: "smashed" (released rows) or "gradient" (their returned gradients)."""


def controls(attack: CanaryAttack, seed: int) -> tuple[Control, Control]:
    """Run two control experiments: canaries sent without protection, and rows of pure noise."""
    draws = Generator().manual_seed(seed)
    present, absent = torch.randn(2, _CONTROL_CANARIES, _CONTROL_SIZE, generator=draws)
    coins = torch.rand(_CONTROL_CANARIES, generator=draws) < 0.5
    noise = torch.randn(_CONTROL_CANARIES, _CONTROL_SIZE, generator=draws)
    scores = []
    for rows in (torch.where(coins.unsqueeze(1), present, absent), noise):
        observation = CanaryObservation(
            image_shape=(1, 4, 4),
            batch_size=_CONTROL_CANARIES,
            views=[View(round=0, smashed=rows, cut_gradient=rows)],
            rows=torch.arange(_CONTROL_CANARIES).unsqueeze(0),
            present=present,
            absent=absent,
        )
        scores.append(scores_of(attack, attack.run(observation, attack_draws(seed))))
    return planted(scores[0], coins, scores[1], coins)


GOAL = Goal(
    observation=CanaryObservation,
    controls=lambda attack, seed, seen: controls(attack, seed),
    fields=("on",),
)
