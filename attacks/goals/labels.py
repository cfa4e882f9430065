"""Infer labels from the gradients that cross a cut, or from the released data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from annotated_types import Ge, Le
from torch import Generator, Tensor, nn

from privkit.attacks.base import Attack, NotApplicable, Observation, Scores, View
from privkit.attacks.goals.control import Control, attack_draws, planted
from privkit.attacks.goals.goal import Goal
from privkit.attacks.outputs import scores_of
from privkit.torch_utils.seeded import seeded

_CONTROL_ROUNDS, _CONTROL_ROWS = 8, 100
_APART = 2.0  # standard deviations between the labels' means, in each of 16 coordinates

_MOST = 1_000_000_000  # most epochs, the largest number that a budget allows

Epoch = Annotated[int, Ge(-_MOST), Le(_MOST)] | Literal["pooled", "every"]
"""Which epochs are scored: a number is one epoch, counted from 0, or from the end (-1 is the last)."""


@dataclass(frozen=True, kw_only=True)
class LabelObservation(Observation):
    """Holds the data that an adversary who infers labels may have; an unknown field is None.

    A released row is the smashed data of one record, or of several mixed records. The N rows are the released rows of
    all views (rounds), one after another; L is the number of labels.

    Attributes:
        upper: the server's segment or, for a client, a substitute for it: smashed data -> logits [N, L].
        lower: the client's own lower segment: images -> smashed data.
        lower_weights: state dict of `lower` in the round of each view; None if it never changed.
        auxiliary: the client's own images, float [N, ...], one for each row.
        known_rows: int64 [K], the indices of the K rows whose labels the adversary knows, or None.
        known_labels: int64 [K], the labels of these K rows.
        own_labels: int64 [N], the label of the client's own record in each row. An attack that declares this field
            infers the label of the one other record whose loss is in the row's gradient.
        label_shares: float [L], the share of each label among all records, which is public.
        releases: float [N, ...], the data sent for each row, if the views are from the second cut of a U-shape (where
            the server's output returns to the clients, who hold the last layer).
        tail: the clients' last layer of a U-shape before training, features [N, D] -> logits [N, L].
        other_images: float [M, C, H, W] in [0, 1], M images of the adversary that resemble the clients' images.
        other_labels: int64 [M], the labels of `other_images`.

    Raises:
        ValueError: if only one of `known_rows` and `known_labels` is given, or their lengths differ.
    """

    upper: nn.Module | None = None
    lower: nn.Module | None = None
    lower_weights: Sequence[Mapping[str, Tensor]] | None = None
    auxiliary: Tensor | None = None
    known_rows: Tensor | None = None
    known_labels: Tensor | None = None
    own_labels: Tensor | None = None
    label_shares: Tensor | None = None
    releases: Tensor | None = None
    tail: nn.Module | None = None
    other_images: Tensor | None = None
    other_labels: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.known_rows is None) != (self.known_labels is None):
            raise ValueError("known_rows and known_labels go together: give both, or neither")
        if self.known_rows is not None and self.known_labels is not None:
            shapes = [list(self.known_rows.shape), list(self.known_labels.shape)]
            if self.known_rows.ndim != 1 or shapes[0] != shapes[1] or not len(self.known_rows):
                raise ValueError(f"known_rows and known_labels must both be [K] with K >= 1, got shapes {shapes}")


class LabelAttack(Attack[LabelObservation, Scores], Protocol):
    """An attack that gives each released row a score, which is higher for the positive label."""

    @property
    def positive(self) -> int:
        """The positive label, ≥ 0."""

    @property
    def epoch(self) -> Epoch:
        """The epoch of training that the attack reads; "pooled" joins all epochs, "every" reads each separately."""


def one_against_rest(of_labels: Tensor, positive: int, examples: Tensor) -> Scores:
    """Score one label: its score in `of_labels` [N, L ≥ 2] minus the largest score of the other labels.

    `examples` are the indices of the released rows. Raises `NotApplicable` if there is no label `positive`.
    """
    labels = of_labels.shape[1]
    if positive >= labels:
        raise NotApplicable(f"positive={positive} is none of the labels 0..{labels - 1} that the attack distinguishes")
    others = torch.arange(labels, device=of_labels.device) != positive
    values = of_labels[:, positive] - of_labels[:, others].amax(1)
    return Scores(values=values, examples=examples, of_labels=of_labels)


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """The indices of the first `count` rows with each label, int64, in ascending order."""
    return torch.cat([(labels == label).nonzero().flatten()[:count] for label in labels.unique()]).sort().values


def observe(
    lower: nn.Module, upper: nn.Module, images: Tensor, targets: Tensor, *, batch_size: int, known: bool = False
) -> LabelObservation:
    """Send images through a client and collect the returned gradients, without training and without an audit.

    `lower` maps images [N, C, H, W] to smashed data, and `upper` maps smashed data to logits [N, L]. The loss is
    cross-entropy with `targets`, int64 [N]. The adversary holds `upper` if `known` is true.

    >>> lower, upper = nn.Flatten(), nn.Linear(4, 3)
    >>> seen = observe(lower, upper, torch.rand(6, 1, 2, 2), torch.arange(6) % 3, batch_size=3)
    >>> [tuple(view.cut_gradient.shape) for view in seen.views]
    [(3, 4), (3, 4)]
    """
    views = []
    for number, (part, labels) in enumerate(zip(images.split(batch_size), targets.split(batch_size), strict=True)):
        smashed = lower(part).detach().requires_grad_()
        loss = nn.functional.cross_entropy(upper(smashed), labels)
        (back,) = torch.autograd.grad(loss, smashed)
        views.append(View(round=number, smashed=smashed.detach(), cut_gradient=back))
    return LabelObservation(
        image_shape=tuple(images.shape[1:]), batch_size=batch_size, views=views, upper=upper if known else None
    )


def controls(attack: LabelAttack, seed: int) -> tuple[Control, Control]:
    """Run two control experiments: an attack must find labels in an easy task, and nothing in pure noise.

    In the easy task, a linear server returns gradients for two labels of unequal frequency. Exceptions:
    - An attack that knows some records of each label gets three labels.
    - An attack on the label of a second record in a gradient gets gradients of the sum of both records' losses.
    - An attack without gradients, or with its own labeled images, gets smashed data and images that depend on the
      label.
    """
    of_other, mounting = "own_labels" in attack.needs, attack.mounting
    draws = Generator().manual_seed(seed)
    kinds = 3 if mounting.labeled else 2  # gradients of two labels lie on one line, up to the sign
    upper = nn.Linear(16, max(kinds, attack.positive + 1))
    with torch.no_grad():
        upper.weight.copy_(torch.randn(upper.weight.shape, generator=draws) / 16)
        upper.bias.zero_()
        upper.bias[attack.positive] = -2.0  # so that rows of the positive label have the longer gradients
    positive = torch.rand(_CONTROL_ROUNDS, _CONTROL_ROWS, generator=draws) < (0.3 if of_other else 0.6)
    beside = torch.randint(1, 3, positive.shape, generator=draws) if mounting.labeled else 1
    labels = torch.where(positive, attack.positive, (attack.positive + beside) % upper.out_features)
    smashed = torch.randn(_CONTROL_ROUNDS, _CONTROL_ROWS, 16, generator=draws)
    given = smashed.clone().requires_grad_()
    logits = upper(given.flatten(0, 1))
    loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    own = None
    if of_other:
        other = (attack.positive + 1) % upper.out_features
        own = torch.where(torch.rand(positive.shape, generator=draws) < 0.5, attack.positive, other)
        loss = loss + nn.functional.cross_entropy(logits, own.flatten(), reduction="sum")
    loss.backward()
    assert given.grad is not None
    known = torch.arange(len(positive)) * _CONTROL_ROWS + positive.int().argmax(1)
    if mounting.labeled:
        known = first_of_each(labels.flatten(), mounting.labeled)
    noise = torch.randn(given.grad.shape, generator=draws)
    others = torch.randn(len(labels.flatten()), 16, generator=draws)
    with seeded(torch.device("cpu"), seed):
        lower = nn.Sequential(nn.Flatten(), nn.Linear(16, 16))
    alike = "other_images" in attack.needs
    apart = smashed if mounting.gradients and not alike else smashed + _APART * positive.unsqueeze(2)
    scores, truths = [], []
    for rows, gradient in ((apart, given.grad / _CONTROL_ROWS), (smashed, noise)):
        observation = LabelObservation(
            image_shape=(1, 4, 4),
            batch_size=_CONTROL_ROWS,
            views=[
                View(round=number, smashed=sent, cut_gradient=back)
                for number, (sent, back) in enumerate(zip(rows, gradient, strict=True))
            ],
            upper=upper,
            tail=upper if "tail" in attack.needs else None,
            known_rows=known,
            known_labels=labels.flatten()[known],
            own_labels=None if own is None else own.flatten(),
            lower=lower if "lower" in attack.needs else None,
            auxiliary=_records(rows) if "auxiliary" in attack.needs else None,
            label_shares=labels.flatten().bincount(minlength=upper.out_features) / labels.numel(),
            other_images=_records(others + _APART * positive.view(-1, 1)) if alike else None,
            other_labels=labels.flatten() if alike else None,
        )
        found = scores_of(attack, attack.run(observation, attack_draws(seed)))
        asked = ~torch.isin(found.examples, known) if mounting.labeled else torch.ones_like(found.examples).bool()
        scores.append(Scores(values=found.values[asked], examples=found.examples[asked]))
        truths.append(positive.flatten()[found.examples[asked]])
    return planted(scores[0], truths[0], scores[1], truths[1])


def _records(rows: Tensor) -> Tensor:
    return 0.5 + 0.05 * rows.reshape(-1, 1, 4, 4)


GOAL = Goal(
    observation=LabelObservation,
    controls=lambda attack, seed, seen: controls(attack, seed),
    fields=("positive", "epoch"),
)
