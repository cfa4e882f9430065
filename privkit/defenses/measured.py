"""Measures how far a release moves if a record is replaced, to check the sensitivity that the accountant assumes.

Built-in defense stages are compared with their receipts (the claims about their release) in privkit's tests. A user's
stage is measured when a chain of stages is built, when an audit computes a certificate, and in `privkit check`. A
measurement can refute a claim but not prove it, so a user's claims are called declared, not proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.parts import NoMixing
from privkit.accountants.spec.sensitivity import Clamp, Norm
from privkit.defenses.base import Defense, Release, is_own, stages_with
from privkit.defenses.charge import Noised
from privkit.defenses.compile import bounded
from privkit.defenses.own_receipts import BATCH, CLASSES, IMAGE, TrialRounds, marks_places, refuted, trial_of

_TRIES = 48  # number of pairs of neighboring batches that are tried; gradient ascent takes half as many steps
_MOST_NUMBERS = 10**7  # largest number of values in all pairs together; for larger data, fewer pairs are tried
_SLACK = 1e-3


def contradiction(
    stages: Sequence[Defense],
    shape: tuple[int, ...] | None = None,
    image: tuple[int, ...] = IMAGE,
    doubted: Sequence[Defense] | None = None,
    batch: int = BATCH,
) -> str:
    """Test a chain's privacy claim on artificial data; return a sentence that says why it is false, or "".

    Args:
        shape: shape of one record's smashed data; None tries tokens, a feature map and a vector.
        image: shape (C, H, W) of a record, for stages on images.
        doubted: stages whose receipts are also measured one by one; None takes the user's own stages.
        batch: number of records that a client sends in a round.
    """
    for number, stage in enumerate(stages):
        if not (is_own(stage) if doubted is None else stage in doubted):
            continue
        if found := refuted(stage, shape, image, batch):
            return found
        if stages_with(stages[number + 1 :], "permutes") and marks_places(stage):
            return (
                f"{stage.name} treats the places of tokens differently, so tokens reveal the order that a later "
                f"shuffle should hide: its count of orders would be false"
            )
    return exceeds_charge(stages, shape, image, batch)


def exceeds_charge(
    stages: Sequence[Defense],
    shape: tuple[int, ...] | None = None,
    image: tuple[int, ...] = IMAGE,
    batch: int = BATCH,
) -> str:
    """Test whether replacing a record changes a release by more than the certified ε assumes; return a sentence, or "".

    Arguments as in `contradiction`. Each attempt compares two releases with the same random numbers and noise, so their
    distance is what the noise must hide. Attempts use large, small, constant and sparse records at several places of a
    batch, and replace one record, or all records of one client. Gradient ascent then enlarges the two largest
    distances.
    """
    for level in ("input", "smashed"):
        there = [stage for stage in stages if (stage.level == "input") == (level == "input")]
        for number, stage in enumerate(there):
            if "noises" not in (stage.effects or {"noises"}) and not is_own(stage):
                continue
            trial = trial_of(there[: number + 1], shape, image, batch)
            if trial is not None and (found := _moved_too_far(trial)):
                return found
    return ""


@dataclass(frozen=True, kw_only=True)
class _Charge:
    """The sensitivities, per replaced record, that the accountant assumes for the noise of the last stage."""

    norm: Norm
    most: Mapping[str, float]  # largest allowed change; the key says what changes, in words of the error
    covers_labels: bool  # whether labels get noise, too


_SMASHED, _LABELS, _NUMBER = "", " of labels", " of one number"


def _moved_too_far(trial: TrialRounds) -> str:
    charge = _charge_of(trial)
    if charge is None:
        return ""
    names = [stage.name for stage in trial.stages]
    where = f"{names[-1]} behind {'+'.join(names[:-1])}" if len(names) > 1 else names[0]
    worst = _worst(trial, charge)
    if worst is None:
        return f"{where} refuses all data on which its charge could be measured" if is_own(trial.stages[-1]) else ""
    if isinstance(worst, str):
        return f"{where} {worst}"
    if worst[_LABELS] > charge.most[_LABELS] == 0:
        return f"{where} makes labels from the smashed data, and no noise covers them; release the labels as they are"
    for what, moved in worst.items():
        if moved > (most := charge.most[what]):
            return (
                f"{where} is charged for a change{what} of at most {most:.4g} when one record is replaced, and a "
                f"change of {moved:.4g} was measured: no ε holds; bound what the noise is added to, record by record"
            )
    return ""


def _charge_of(trial: TrialRounds) -> _Charge | None:
    """The sensitivity that the accountant assumes for the last stage's noise; None if no noise covers the release."""
    steps = trial.play(trial.data(), trial.labels(), 0)[1]
    receipt = bounded(steps, len(steps) - 1)
    if not isinstance(receipt, Noised) or receipt.clip is None or receipt.covers == "labels":
        return None
    if receipt.added_by == "server":
        return None
    norm, clip = receipt.noise.distribution.norm, receipt.clip
    try:
        smashed = clip.sensitivity("replace_one", norm)
        labels = 0.0 if receipt.labels is None else receipt.labels.sensitivity("replace_one", norm)
    except ValueError:  # the accountant refuses such a receipt as well
        return None
    number = clip.high - clip.low if isinstance(clip, Clamp) and isinstance(receipt.mixing, NoMixing) else inf
    most = {_SMASHED: smashed, _LABELS: labels, _NUMBER: number}
    return _Charge(norm=norm, most=most, covers_labels=receipt.labels is not None)


def _worst(trial: TrialRounds, charge: _Charge) -> dict[str, float] | str | None:
    """The largest changes of all attempts, per replaced record and beyond rounding; None if the stages refuse all data.

    If a release is faulty, the result is a sentence that says so.
    """
    tries = max(8, min(_TRIES, _MOST_NUMBERS // trial.size))
    moved, tried = dict.fromkeys(charge.most, 0.0), []
    for number in range(tries):
        pair = _Pair(trial, number, charge.covers_labels)
        released = pair.released()
        if released is None:
            continue
        a, b = released
        if a.smashed.shape != b.smashed.shape or not _same_coins(a, b):
            return "publishes weights that depend on the data: public weights must not depend on the data"
        many = pair.replaced if charge.norm == "l1" else sqrt(pair.replaced)
        distance = _distance(a.smashed, b.smashed, charge.norm) / many
        labels, one = _distance(a.labels, b.labels, charge.norm) / many, _distance(a.smashed, b.smashed, "furthest")
        for what, change in ((_SMASHED, distance), (_LABELS, labels), (_NUMBER, one)):
            moved[what] = max(moved[what], change)
        tried.append((distance, pair))
    for _, pair in sorted(tried, key=lambda attempt: -attempt[0])[:2]:
        if pair.replaced == 1:
            moved[_SMASHED] = max(moved[_SMASHED], _climb(pair, charge.norm, tries // 2))
    return moved if tried else None


class _Pair:
    """Two batches of artificial data that differ in one record, or in all `replaced` records of one client.

    The number of the attempt is the seed of the data, of the replaced record's place `at` = (m, b), and of the random
    draws. `scale` is the data's order of magnitude. With `relabels`, the replaced records also get other labels.
    """

    def __init__(self, trial: TrialRounds, number: int, relabels: bool) -> None:
        draws = Generator().manual_seed(number)
        self._trial, self._number = trial, number
        last = (trial.lead[0] - 1, trial.lead[1] - 1)
        drawn = tuple(int(torch.randint(size, (), generator=draws)) for size in trial.lead)
        self.at = ((0, 0), last, drawn)[number % 3]
        self.scale = 10.0 ** (5 * torch.rand((), generator=draws).item() - 2)
        self.data, self.other = self._drawn(number, draws)
        self.replaced = 1
        if number % 6 == 5:  # replaces all records of a message, i.e. of a client
            self.other[self.at[0]] = -self.data[self.at[0]].flip(0)
            self.replaced = trial.lead[1]
        self.labels = trial.labels((1, 2, trial.lead[1])[number // 2 % 3])
        self.relabeled = self.labels.clone()
        if relabels:
            rows = slice(None) if self.replaced > 1 else self.at[1]
            self.relabeled[self.at[0], rows] = (self.labels[self.at[0], rows] + 1) % CLASSES

    def _drawn(self, number: int, draws: Generator) -> tuple[Tensor, Tensor]:
        trial, at = self._trial, self.at
        shape, rows = (*trial.lead, *trial.shape), (*trial.lead, *(1 for _ in trial.shape))
        data = torch.randn(shape, generator=draws, dtype=trial.dtype)
        data = self.scale * data * 10.0 ** torch.randint(-1, 2, rows, generator=draws)
        kind = number % 4
        if kind == 1:  # all other records are zero
            kept = data[at].clone()
            data = data * 0
            data[at] = kept
        elif kind == 2:  # all coordinates of a record are equal
            data = data.flatten(2)[..., :1].expand(*trial.lead, data[0, 0].numel()).reshape(shape).clone()
        elif kind == 3:  # about a tenth of the coordinates are not 0
            data = data * (torch.rand(shape, generator=draws) < 0.1)
        other, own = data.clone(), data[at]
        far = 10.0 ** torch.randint(0, 4, (), generator=draws).item()
        other[at] = (-far * own, -far * own.roll(1, 0), 0 * own, -far * own.abs().max().expand_as(own))[number // 4 % 4]
        return data, other

    def released(self) -> tuple[Release, Release] | None:
        """Both batches' releases. If a stage refuses the data, smaller data are tried; None if it refuses all."""
        for into in (None, torch.tanh, torch.sigmoid):
            if into is not None:
                self.data, self.other = into(self.data / self.scale), into(self.other / self.scale)
                self.scale = 1.0
            try:
                with torch.no_grad():
                    return self.play(self.data, self.labels), self.play(self.other, self.relabeled)
            except Exception:  # a user's stage may raise anything on data that it was not made for
                continue
        return None

    def play(self, data: Tensor, labels: Tensor) -> Release:
        return self._trial.play(data, labels, self._number)[0]


def _distance(a: Tensor, b: Tensor, norm: Literal["l1", "l2", "furthest"]) -> float:
    """The distance of a and b, minus the rounding error of float32 and a thousandth of the distance."""
    apart = (a.detach().double() - b.detach().double()).flatten()
    rounding = 4e-7 * max(1.0, a.detach().abs().max().item(), b.detach().abs().max().item())
    if norm == "furthest":
        return max(0.0, apart.abs().max().item() / (1 + _SLACK) - rounding)
    size = apart.abs().sum().item() if norm == "l1" else apart.norm().item()
    return max(0.0, size / (1 + _SLACK) - rounding * (apart.numel() if norm == "l1" else sqrt(apart.numel())))


def _climb(pair: _Pair, norm: Norm, steps: int) -> float:
    """The largest distance of two releases, in the given norm, that gradient ascent from `pair` finds."""
    start, record, most = pair.data.clone().requires_grad_(), pair.other[pair.at].clone().requires_grad_(), 0.0
    here = torch.zeros_like(start)
    here[pair.at] = 1
    for _ in range(steps):
        try:
            a, b = (pair.play(x, pair.labels).smashed for x in (start, torch.where(here > 0, record, start)))
            most = max(most, _distance(a, b, norm))
            apart = (a - b).flatten().norm(p=1 if norm == "l1" else 2)
            for value, up in zip((start, record), torch.autograd.grad(apart, (start, record)), strict=True):
                value.data += 0.3 * pair.scale * up / up.abs().max().clamp_min(1e-30)
        except Exception:  # no gradient, or data that the stage refuses
            return most
    return most


def _same_coins(a: Release, b: Release) -> bool:
    if a.weights is None or b.weights is None:
        return a.weights is b.weights
    return torch.equal(a.weights, b.weights)
