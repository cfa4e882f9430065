"""Membership inference from losses: a threshold on the loss, and likelihood ratios against shadow models."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, MultipleOf
from torch import Generator, Tensor

from privkit.attacks.base import Attack, Mounting, NoSession, NotApplicable, Scores, Session
from privkit.attacks.goals.membership import MembershipObservation
from privkit.constraints import Checked


@dataclass(frozen=True, kw_only=True)
class MemberInference(Checked, Attack[MembershipObservation, Scores]):
    """Guess whether an image was a training image, from the model's loss on it, alone or compared with shadow models.

    Attributes:
        score: "loss" (members have lower losses), "lira" (likelihood ratio of the label's confidence against shadow
            models with and without the image) or "rmia" (the label's probability divided by its mean over shadow
            models). If the attack fails, an audit can double the number of shadow models (`privkit.attacks.escalate`).
        shadows: number of shadow models for "lira" and "rmia", even and ≥ 4. Each model is trained on half of the
            candidates, and each candidate is in the training data of half of the models.

    Source: Yeom et al. 2018, §4; Carlini et al. 2022, Algorithm 1, one variance (§VI-B); Zarifzadeh et al. 2024, Eqs.
    3, 4.
    """

    name: ClassVar[str] = "member_inference"
    goal: ClassVar[str] = "membership"
    needs: ClassVar[frozenset[str]] = frozenset({"candidates", "candidate_labels", "predict"})

    score: Literal["loss", "lira", "rmia"] = "loss"
    shadows: Annotated[int, Ge(4), MultipleOf(2)] = 8

    @property
    def uses(self) -> frozenset[str]:
        """Name the optional fields of the observation: `fit`, which trains shadow models, if the score needs them."""
        return frozenset(() if self.score == "loss" else {"fit"})

    @property
    def mounting(self) -> Mounting[MembershipObservation, Scores]:
        return Mounting(shadow_models=0 if self.score == "loss" else self.shadows)

    def run(self, observation: MembershipObservation, generator: Generator, session: Session | None = None) -> Scores:
        images, labels, predict = observation.candidates, observation.candidate_labels, observation.predict
        if self.score == "loss":
            return loss_threshold(torch.nn.functional.cross_entropy(predict(images), labels, reduction="none"))
        if observation.fit is None:
            raise NotApplicable(f"member_inference score={self.score} trains shadow models, so it needs `fit`")
        session, n = session or NoSession(), len(images)
        saved = session.load()
        shadow: list[Tensor] = [] if saved is None else list(saved["shadow"])
        members, seeds = torch.empty(0, n, dtype=torch.bool, device=images.device), list[int]()
        while not seeds or session.goes_on(self.shadows, [0.0] * len(seeds)):
            more = len(seeds) or self.shadows
            ranks = torch.rand(more, n, generator=generator).argsort(0)
            members = torch.cat([members, (ranks < more // 2).to(images.device)])
            seeds += torch.randint(2**48, (more,), generator=generator).tolist()
            for number in range(len(shadow), len(seeds)):
                own = members[number]
                model = observation.fit(images[own], labels[own], Generator().manual_seed(seeds[number]))
                shadow.append(confidence(model(images), labels))
                session.save({"shadow": shadow})
                session.report(number + 1, len(seeds), shadow[-1][own].mean().item())
        target, others = confidence(predict(images), labels), torch.stack(shadow)
        return lira(target, others, members) if self.score == "lira" else rmia(target, others)


def loss_threshold(losses: Tensor) -> Scores:
    """Membership scores from losses alone: the negated loss on each example [N], since members have lower losses.

    Source: Yeom et al. 2018, "Privacy risk in machine learning", §4 (the threshold is left to the metric).
    """
    values = -_check_likelihoods("losses", losses, 1)
    return Scores(values=values, examples=torch.arange(len(values), device=values.device))


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """The log-odds ln(p/(1 − p)) of the probability p of each example's true label, [...], from logits [..., L].

    It stays finite for p near 1, and its distribution over shadow models is nearly normal.

    Source: Carlini et al. 2022, "Membership inference attacks from first principles", §IV-C.
    """
    own = torch.nn.functional.one_hot(labels, logits.shape[-1]).bool()
    return logits[own].view(labels.shape) - logits.masked_fill(own, -torch.inf).logsumexp(-1)


def lira(target: Tensor, shadow: Tensor, members: Tensor) -> Scores:
    """Membership scores by likelihood ratios: is the statistic more likely if the model was trained with the example?

    The statistic's distributions, with and without the example, are estimated from at least two shadow models each.
    Both are normal, with a mean for each example and one variance for all ("fixed variance"), which suits few models.

    `target` [N] and `shadow` [S, N] hold a statistic such as `confidence`; `members`, bool [S, N], says which examples
    each shadow model was trained on.

    Source: Carlini et al. 2022, Algorithm 1 and §VI-B (fixed variance).
    """
    target, shadow = _check_likelihoods("target", target, 1).double(), _check_likelihoods("shadow", shadow, 2).double()
    (mean, variance), (own_mean, own_variance) = _normal(shadow, ~members), _normal(shadow, members)
    ratio = (target - mean).square() / variance - (target - own_mean).square() / own_variance
    values = (ratio + variance.log() - own_variance.log()) / 2
    return Scores(values=values, examples=torch.arange(len(target), device=target.device))


def rmia(target: Tensor, shadow: Tensor) -> Scores:
    """Membership scores: the logarithm of the true label's probability divided by its mean over shadow models.

    Half of the shadow models are trained on each example. RMIA scores an example by the share of other examples whose
    ratio is smaller by a given factor. This share grows with the ratio, so the ratio itself gives the same AUC and the
    same rates. `target` [N] and `shadow` [S, N] are `confidence`.

    Source: Zarifzadeh et al. 2024, "Low-cost high-power membership inference attacks", Eqs. 3 and 4.
    """
    target, shadow = _check_likelihoods("target", target, 1).double(), _check_likelihoods("shadow", shadow, 2).double()
    likely = torch.nn.functional.logsigmoid
    values = likely(target) - likely(shadow).logsumexp(0) + log(len(shadow))
    return Scores(values=values, examples=torch.arange(len(target), device=target.device))


def _normal(shadow: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [N] of each example, and one pooled variance, unbiased, over the chosen shadow models."""
    count = chosen.sum(0)
    mean = (shadow * chosen).sum(0) / count
    squares = ((shadow - mean).square() * chosen).sum()
    return mean, (squares / (count - 1).sum()).clamp_min(1e-12)


def _check_likelihoods(name: str, values: Tensor, axes: int) -> Tensor:
    if values.ndim != axes or not values.is_floating_point() or not values.numel() or not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must be finite numbers with {axes} {'axis' if axes == 1 else 'axes'}, got {values.dtype} of shape "
            f"{list(values.shape)}"
        )
    return values
