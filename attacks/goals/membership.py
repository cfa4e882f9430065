"""The goal "who took part in training": membership inference from the trained model's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Attack, Observation, Scores
from privkit.attacks.goals.control import Control, attack_draws, planted
from privkit.attacks.goals.goal import Goal
from privkit.attacks.outputs import scores_of

_CONTROL_CANDIDATES, _CONTROL_CLASSES = 400, 4
_EXACT = "donot_use_mm_for_euclid_dist"  # with matrix products, an image's distance to itself may be rounded above 0

Predict = Callable[[Tensor], Tensor]  # images [N, C, H, W] in, logits [N, L] out

Fit = Callable[[Tensor, Tensor, Generator], Predict]
"""(images, labels, draws) -> a model like the attacked one, trained on these images."""


@dataclass(frozen=True, kw_only=True)
class MembershipObservation(Observation):
    """Holds the data of an adversary who infers which of N candidates took part in training.

    Attributes:
        candidates: images [N, C, H, W] in [0, 1]; the attack asks which of them are members, i.e. images on which the
            model was trained.
        candidate_labels: labels of the candidates, int64 [N].
        predict: the attacked model as a function: images [N, C, H, W] -> logits [N, L] for L labels.
        fit: function (images, labels, generator) -> a function like `predict`. It trains a shadow model, i.e. a model
            like the attacked one, on these images. None if the adversary cannot train one.
    """

    candidates: Tensor
    candidate_labels: Tensor
    predict: Predict
    fit: Fit | None = None


MembershipAttack = Attack[MembershipObservation, Scores]


def controls(attack: MembershipAttack, seed: int) -> tuple[Control, Control]:
    """Run two control experiments: a model that memorized its images, and a model that answers at random."""
    draws = Generator().manual_seed(seed)
    images = torch.rand(_CONTROL_CANDIDATES, 1, 4, 4, generator=draws)
    labels = torch.randint(_CONTROL_CLASSES, (_CONTROL_CANDIDATES,), generator=draws)
    positive = torch.rand(_CONTROL_CANDIDATES, generator=draws) < 0.5

    def by_heart(own: Tensor, truth: Tensor, draws: Generator) -> Predict:
        def predict(asked: Tensor) -> Tensor:
            logits = torch.randn(len(asked), _CONTROL_CLASSES, generator=draws)
            distance, nearest = torch.cdist(asked.flatten(1), own.flatten(1), compute_mode=_EXACT).min(1)
            known = 8.0 * torch.nn.functional.one_hot(truth[nearest], _CONTROL_CLASSES)
            return logits + known * (distance < 1e-4).unsqueeze(1)

        return predict

    def at_random(own: Tensor, truth: Tensor, draws: Generator) -> Predict:
        return lambda asked: torch.randn(len(asked), _CONTROL_CLASSES, generator=draws)

    scores = []
    for fit in (by_heart, at_random):
        observation = MembershipObservation(
            image_shape=(1, 4, 4),
            batch_size=_CONTROL_CANDIDATES,
            candidates=images,
            candidate_labels=labels,
            predict=fit(images[positive], labels[positive], draws),
            fit=fit,
        )
        scores.append(scores_of(attack, attack.run(observation, attack_draws(seed))))
    return planted(scores[0], positive, scores[1], positive)


GOAL = Goal(
    observation=MembershipObservation,
    controls=lambda attack, seed, seen: controls(attack, seed),
)
