"""Label leakage: the norm and the direction of the gradient at the cut reveal the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NamingAttack, NotApplicable, Scores, Session
from privkit.attacks.goals.labels import Epoch, LabelObservation
from privkit.attacks.returned import returned_gradients, weight_gradients
from privkit.constraints import Whole


@dataclass(frozen=True, kw_only=True)
class LabelLeak(NamingAttack):
    """Score each released row by the norm or direction of its returned gradient; higher means the positive label.

    A released row holds the smashed data of one record, or of several mixed records. In the views of a client, the
    gradient is the one that this client receives (unicast or broadcast). If the server's defense mixes records of
    several clients, the server's views hold the gradient of each group of mixed records, and the attack infers the
    labels of all records in the group.

    Attributes:
        score: "norm" (L2) or "cosine" (with the reference).
        reference: reference of the cosine. "mean" is the mean gradient of the row's own round, which needs no
            knowledge. The sign of this mean depends on the round's majority label. So the mean is multiplied by −1 if
            it points against the sum of the earlier rounds' directions. If the common sign is wrong, it is wrong in all
            rounds, and an AUC near 0 reveals the labels as well as an AUC near 1. "labeled" is the mean unit gradient
            of rows known to be positive minus the mean unit gradient of rows known to be negative (either kind of rows
            can be missing).
        positive: the label, an integer ≥ 0, whose records get the highest scores; used with "labeled" only.
        at: "cut" for the gradient at the cut; "lower" for each example's gradient of the lower segment's weights. An
            adversary with the segment and the images (`auxiliary`, one for each row) can compute these from the
            gradient at the cut.
        less_own: whether to infer the label of the other record in a gradient, such as the record with which the
            adversary's own record was mixed. The mean gradient over rows of the same round and the same own label is
            subtracted first. The remainder has mean zero, so "cosine" needs reference="labeled", which is then computed
            from the adversary's own labels.
        epoch: "pooled" averages a record's scores over all epochs of training that the privacy certificate counts. A
            number selects one epoch, counted from 0, or from the end (-1 is the last). "every" attacks each epoch by
            itself.

    In a balanced task positives can have longer or shorter gradients, so an AUC below 1/2 also shows a leak.

    Source: Li et al. 2021, "Label leakage and protection in two-party split learning", §3 (norm and cosine);
    DP-CutMixSL §5.A, which measures both at the cut and at the lower segment. `less_own` is privkit's.
    """

    name: ClassVar[str] = "label_leak"
    mounting: ClassVar[Mounting[LabelObservation, Scores]] = Mounting()

    score: Literal["norm", "cosine"] = "norm"
    reference: Literal["mean", "labeled"] = "mean"
    positive: Whole = 1
    at: Literal["cut", "lower"] = "cut"
    less_own: bool = False
    epoch: Epoch = "pooled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.less_own and (self.score, self.reference) == ("cosine", "mean"):
            raise ValueError("less_own=true subtracts the mean, so score=cosine needs reference=labeled")

    @property
    def needs(self) -> frozenset[str]:
        """Name the required fields: known labels for reference="labeled", own labels for `less_own`, and images and
        lower segment for at="lower".
        """
        known = {"known_rows", "known_labels"} if self.reference == "labeled" else set()
        known = {"own_labels"} if self.less_own else known
        return frozenset(known | ({"lower", "auxiliary"} if self.at == "lower" else set()))

    def run(self, observation: LabelObservation, generator: Generator, session: Session | None = None) -> Scores:
        views = observation.views
        rows, rounds, examples = returned_gradients(self.name, views)
        if self.at == "lower":
            lower, images = observation.lower, observation.auxiliary
            if lower is None or images is None:
                raise NotApplicable("label_leak at=lower needs the lower segment and the client's own images")
            total = sum(len(view.smashed) for view in views)
            if len(images) != total:
                raise NotApplicable(
                    f"label_leak at=lower needs the client's own image for each of the {total} rows, got {len(images)}"
                )
            rows = _at_lower(lower, images[examples.to(images.device)], rows, rounds, observation)
        direction = None
        if self.score == "cosine" and self.reference == "labeled":
            direction = self._labeled(nn.functional.normalize(rows, dim=1), examples, observation)
        if self.less_own:
            rows = rows - _own_part(rows, rounds, examples, observation)
        if self.score == "norm":
            return Scores(values=rows.norm(dim=1), examples=examples)
        unit = nn.functional.normalize(rows, dim=1)
        if direction is None:
            direction = _linked(rows, rounds)
        return Scores(values=(unit * direction).sum(1), examples=examples)

    def _labeled(self, unit: Tensor, examples: Tensor, observation: LabelObservation) -> Tensor:
        known, labels = observation.known_rows, observation.known_labels
        if self.less_own and observation.own_labels is not None:
            known, labels = examples, observation.own_labels[examples.to(observation.own_labels.device)]
        if known is None or labels is None:
            raise NotApplicable("label_leak reference=labeled needs some rows with known labels (LabelObservation)")
        known, labels = known.to(unit.device), labels.to(unit.device)
        yes = labels == self.positive
        sides = [unit[torch.isin(examples, known[chosen])] for chosen in (yes, ~yes)]
        if not any(len(side) for side in sides):
            raise NotApplicable("no gradient came back for any of the rows with known labels")
        direction = unit.new_zeros(unit.shape[1])
        for side, sign in zip(sides, (1, -1), strict=True):
            if len(side):
                direction = direction + sign * side.mean(0)
        return nn.functional.normalize(direction, dim=0)


def _linked(rows: Tensor, rounds: Tensor) -> Tensor:
    """The mean direction of each row's round, unit vectors [N, F].

    A round's direction is reversed if it points against the sum of the earlier rounds' directions.

    >>> _linked(torch.tensor([[2.0], [-3.0], [1.0]]), torch.arange(3)).flatten().tolist()
    [1.0, 1.0, 1.0]
    """
    numbers, of = rounds.unique(return_inverse=True)
    linked = rows.new_empty(len(numbers), rows.shape[1])
    linked[of] = nn.functional.normalize(_group_means(rows, rounds), dim=1)  # one value for all rows of a round
    before = linked[0].clone()
    for number in range(1, len(numbers)):
        linked[number] *= -1 if float(linked[number] @ before) < 0 else 1
        before += linked[number]
    return linked[of]


def _group_means(rows: Tensor, groups: Tensor) -> Tensor:
    count = int(groups.max()) + 1
    sums = rows.new_zeros(count, rows.shape[1]).index_add_(0, groups, rows)
    return (sums / torch.bincount(groups, minlength=count).clamp_min(1).unsqueeze(1))[groups]


def _own_part(rows: Tensor, rounds: Tensor, examples: Tensor, observation: LabelObservation) -> Tensor:
    if observation.own_labels is None:
        raise NotApplicable("label_leak less_own needs the client's own label of every row (LabelObservation)")
    own = observation.own_labels.to(rows.device)[examples]
    return _group_means(rows, rounds * (int(own.max()) + 1) + own)


def _at_lower(lower: nn.Module, images: Tensor, rows: Tensor, rounds: Tensor, observation: LabelObservation) -> Tensor:
    states = observation.lower_weights
    if states is None:
        return weight_gradients(lower, images, rows)
    each = [rounds == number for number in rounds.unique().tolist()]
    return torch.cat(
        [
            weight_gradients(lower, images[chosen.to(images.device)], rows[chosen], states[int(rounds[chosen][0])])
            for chosen in each
        ]
    )
