"""Hijack detection: if wrong labels do not change the returned gradients, the server does not train the task."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import acos, exp
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from privkit.constraints import Checked, Count, Fraction, Positive, Whole

_EPSILON = 1e-12

Policy = Literal["fast", "average", "voting"]


@dataclass(kw_only=True)
class SplitGuard(Checked):
    """Detection of a hijacking server: a client sometimes sends wrong labels, and compares the returned gradients.

    A server that trains the task answers wrong labels with gradients of another direction and length. A server that
    trains the client for another purpose (FSHA) answers all labels alike. After the warm-up, each batch with wrong
    labels gives a score: near 1 for honest training, near 1/2^power for a hijack.

    The client decides by its `policy`. "fast": it notices the attack if score number `patience` is below the threshold;
    no other score counts. "average": from score number max(`patience`, `group`) on, it notices if the mean of the
    newest `group` scores is below the threshold. "voting": consecutive groups of `group` scores are averaged; also from
    score number max(`patience`, `group`) on, it notices at the end of a group if most means are below the threshold.

    Source: Erdoğan, Küpçü and Çiçek 2022, "SplitGuard", §4, and the policies of its evaluation. The score is σ(α·S)^β
    with S = (θ(F,R)·d(F,R) − θ(R₁,R₂)·d(R₁,R₂)) / (d(F,R) + d(R₁,R₂) + ε). F are the batches with wrong labels, R the
    batches with right labels, and R₁, R₂ two random halves of R. θ is the angle in radians between the mean gradients,
    d the distance of the mean norms.
    """

    generator: Generator  # on the CPU; it divides the gradients for right labels into two random halves
    policy: Policy = "voting"
    threshold: Fraction = 0.9  # scores below it mean an attack; 0.9 in the source
    patience: Count = 10  # number of scores before the first verdict
    group: Count = 5  # number of scores in a mean
    warm_up: Whole = 20  # first rounds to ignore, since an untrained model reacts alike to right and wrong labels
    slope: Positive = 5.0  # speed at which scores saturate (α of the source; 5 in the authors' notebook)
    power: Positive = 2.0  # exponent of scores (β of the source; 2 in the authors' notebook)
    rounds: int = field(default=0, init=False)
    scores: list[float] = field(default_factory=list, init=False)  # each in (0, 1)
    noticed: int | None = field(default=None, init=False)  # 0-based round at which the client would have noticed

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wrong, self._first, self._second = _Batches(), _Batches(), _Batches()

    def observe(self, gradient: Tensor, fake: bool) -> float | None:
        """Record the gradient of one round, and compute a score if the round had wrong labels (`fake`).

        `gradient` is the gradient of the client's own weights (in the source, of the first layer), summed over the
        batch. The score in (0, 1) is near 1 for honest training. The result is None during the warm-up, after right
        labels, and until each random half of the right-label batches holds a batch. A gradient that is not finite
        raises a ValueError.
        """
        flat = gradient.detach().flatten().double().cpu()
        if not torch.isfinite(flat).all():
            raise ValueError(f"the gradient of round {self.rounds} is not finite: training has diverged")
        self.rounds += 1
        if self.rounds <= self.warm_up:
            return None
        if not fake:
            half = torch.rand(1, generator=self.generator) < 0.5
            (self._first if half else self._second).add(flat)
            return None
        self._wrong.add(flat)
        if not (self._first.count and self._second.count):
            return None
        self.scores.append(self._score())
        if self.noticed is None and self._suspicious():
            self.noticed = self.rounds - 1
        return self.scores[-1]

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": self.generator.get_state(),
            "rounds": self.rounds,
            "scores": list(self.scores),
            "noticed": self.noticed,
            "batches": [batch.state() for batch in (self._wrong, self._first, self._second)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.rounds, self.scores, self.noticed = state["rounds"], list(state["scores"]), state["noticed"]
        self._wrong, self._first, self._second = (_Batches(*batch) for batch in state["batches"])

    def _score(self) -> float:
        regular = self._first.joined(self._second)
        far, near = self._wrong.distance(regular), self._first.distance(self._second)
        wide, narrow = self._wrong.angle(regular), self._first.angle(self._second)
        raw = (wide * far - narrow * near) / (far + near + _EPSILON)
        return float((1 + exp(-self.slope * raw)) ** -self.power)

    def _suspicious(self) -> bool:
        count = len(self.scores)
        if self.policy == "fast":
            return count == self.patience and self.scores[-1] < self.threshold
        if count < max(self.patience, self.group):
            return False
        if self.policy == "average":
            return sum(self.scores[-self.group :]) / self.group < self.threshold
        if count % self.group:
            return False
        means = [sum(self.scores[i : i + self.group]) / self.group for i in range(0, count, self.group)]
        return 2 * sum(mean < self.threshold for mean in means) > len(means)


class _Batches:
    def __init__(self, total: Tensor | float = 0.0, norms: float = 0.0, count: int = 0) -> None:
        self.total, self.norms, self.count = total, norms, count

    def add(self, gradient: Tensor) -> None:
        self.total = self.total + gradient
        self.norms += float(gradient.norm())
        self.count += 1

    def state(self) -> tuple[Tensor, float, int]:
        return torch.as_tensor(self.total).clone(), self.norms, self.count

    def joined(self, other: _Batches) -> _Batches:
        return _Batches(self.total + other.total, self.norms + other.norms, self.count + other.count)

    def distance(self, other: _Batches) -> float:
        return abs(self.norms / self.count - other.norms / other.count)

    def angle(self, other: _Batches) -> float:
        """Angle between the means, in radians; a right angle if one of them is 0."""
        a, b = torch.as_tensor(self.total), torch.as_tensor(other.total)
        cosine = float(a @ b) / max(float(a.norm() * b.norm()), _EPSILON**2)
        return acos(min(1.0, max(-1.0, cosine)))
