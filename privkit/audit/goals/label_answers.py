"""Combines the scores of an attack on labels over several epochs, and over both cuts of a U-shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable, Scores
from privkit.attacks.goals.labels import LabelAttack
from privkit.attacks.scores.leak import pooled_auc
from privkit.audit.goals.label_adversary import Cut

_CONTRADICTS = -0.3  # below this correlation, the scores of two epochs count as having opposite signs

Asked = tuple[Scores, Tensor, Tensor]
"""Scores of records, counted client after client; the label of each record; and its round."""


def best_cut(
    attack: LabelAttack, cuts: Sequence[Cut], found: Sequence[dict[Cut, Asked]], records: list[Tensor] | None
) -> tuple[dict[Cut, float], list[Asked], Asked]:
    """Return the AUC at each cut of a U-shape and, for the best cut, the scores of each epoch and their average.

    The best cut has the largest AUC of the averaged scores. If only one label is scored, the sign of the scores is
    unknown, so the AUC farthest from 1/2 counts. `records` holds the ids of each epoch's records; None uses the last
    epoch only.
    """
    said = {cut: [one[cut] for one in found] for cut in cuts if all(cut in one for one in found)}
    if not said:
        raise NotApplicable(f"{attack.name} gave answers in some epochs only, at either cut")
    whole = {cut: one[-1] if records is None else _pooled(one, records) for cut, one in said.items()}
    auc = {
        cut: pooled_auc(scores.values.double().cpu().numpy(), (of == attack.positive).cpu().numpy()).auc.value
        for cut, (scores, of, _) in whole.items()
    }
    signed = {cut: scores.of_labels is not None for cut, (scores, *_) in whole.items()}
    best = max(auc, key=lambda cut: auc[cut] if signed[cut] else abs(auc[cut] - 0.5))
    return auc, said[best], whole[best]


def _pooled(epochs: list[Asked], records: list[Tensor]) -> Asked:
    """Average the scores over epochs for each record of the last epoch, after standardizing the scores of each epoch.

    An epoch whose scores contradict the earlier ones is negated: some attacks do not know the sign of their scores.
    """
    last, labels, rounds = epochs[-1]
    if len(epochs) == 1:
        return epochs[-1]
    of_labels = [scores.of_labels for scores, *_ in epochs if scores.of_labels is not None]
    pooled = Scores(
        values=_means(_turned([scores.values for scores, *_ in epochs], records), records),
        examples=last.examples,
        of_labels=_means(of_labels, records) if of_labels else None,
    )
    return pooled, labels, rounds


def _turned(epochs: list[Tensor], records: list[Tensor]) -> list[Tensor]:
    """Negate the scores of each epoch whose correlation with the mean of the earlier epochs is below `_CONTRADICTS`.

    >>> scores, same = torch.tensor([0.0, 1.0, 3.0]), [torch.arange(3), torch.arange(3)]
    >>> _turned([scores, -2 * scores], same)[1].tolist()
    [0.0, 2.0, 6.0]
    """
    turned = epochs[:1]
    for number in range(1, len(epochs)):
        values, of = epochs[number].double(), records[number]
        last = [*records[:number], of]  # `_means` returns values for the records of its last epoch
        before = _means([*turned, torch.zeros_like(epochs[number])], last)
        away, ahead = values - values.mean(), before - before.mean()
        alike = float((away * ahead).sum() / (away.norm() * ahead.norm()).clamp_min(1e-300))
        turned.append(-epochs[number] if alike < _CONTRADICTS else epochs[number])
    return turned


def _means(epochs: list[Tensor], records: list[Tensor]) -> Tensor:
    """The mean over epochs of each record's standardized values, [N] or [N, L], for the N records of the last epoch."""
    count = 1 + int(torch.cat(records).max())
    sums, times = epochs[-1].new_zeros(count, *epochs[-1].shape[1:], dtype=torch.float64), torch.zeros(count)
    for values, of in zip(epochs, records, strict=True):
        values = values.double()
        sums.index_add_(0, of, (values - values.mean()) / values.std().clamp_min(1e-300))
        times += of.bincount(minlength=count)
    last = records[-1]
    return sums[last] / times[last].view(-1, *[1] * (sums.ndim - 1))
