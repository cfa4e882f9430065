"""Mixed rows solved for their records without a query, and own rows that are mixed and solved by the same coins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from privkit.attacks.base import View
from privkit.attacks.inversion.linear_mixtures import NOISES, Mixtures
from privkit.attacks.inversion.linked_rows import records_of_rows
from privkit.attacks.inversion.rounds import by_round, labels_of

_DETERMINED = 0.5
"""Least share of a mixed label that must be known."""


@dataclass(frozen=True, kw_only=True)
class Unmixed:
    """What each record released, as well as public coins and several passes tell it.

    Attributes:
        rows: float32 [R·n·B, ...], R rounds of n clients' B records.
        seats: int64 [G], the row of each image that is to be guessed.
        rounds: the equations of each round.
        noise: standard deviation of the release's noise, as far as the passes contradict each other.
        ridge: variance of the noise over that of the smashed data, > 0.
        labels: int64 [R·n·B], of the rows, if whole ones travel or mixed ones are determined; else None.
    """

    rows: Tensor
    seats: Tensor
    rounds: Sequence[Mixtures]
    noise: float
    ridge: float
    labels: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, views: Sequence[View], passes: int) -> Unmixed:
        """Solve every round; cells that never crossed are filled with the mean.

        Args:
            views: pass after pass.
            passes: P ≥ 1; see `Unmix` for what is assumed of them.

        Raises:
            NotApplicable: if rows hold several records and the adversary does not know which, or with what weights.
        """
        together = by_round(views, passes, mixed=True)
        rounds = [Mixtures.of(same) for same in together]
        noise, spread = rounds[0].variances()
        ridge = max(NOISES[0], noise / spread)
        parts = [mixtures.solved(mixtures.typical(), ridge)[0] for mixtures in rounds]
        rows, first = torch.cat(parts), len(parts[0])
        seats = [records_of_rows(same[0]).flatten().clamp_min(0) + i * first for i, same in enumerate(together)]
        return cls(
            rows=rows,
            seats=torch.cat(seats),
            rounds=rounds,
            noise=noise**0.5,
            ridge=ridge,
            labels=_labels_of_records(together),
        )

    def imitate(self, smashed: Tensor, draws: Generator) -> Tensor:
        """Own smashed data [N, ...], mixed by the coins of recorded rounds, with as much noise, and solved.

        Cells that the passes leave open are as open here, so that a simulator is compared, and a decoder trained, with
        what the attacked records look like. A round that is not full repeats some of them. Differentiable.
        """
        whole = len(self.rows) // len(self.rounds)
        missing = torch.randint(len(smashed), (-len(smashed) % whole,), generator=draws, device=draws.device)
        filled = torch.cat([smashed, smashed[missing]])
        return torch.cat([self._solved(part, draws) for part in filled.split(whole)])[: len(smashed)]

    def _solved(self, smashed: Tensor, draws: Generator) -> Tensor:
        """One round."""
        number = int(torch.randint(len(self.rounds), (1,), generator=draws, device=draws.device))
        mixed = self.rounds[number].predicted(smashed)
        noise = torch.randn(mixed.shape, generator=draws, device=mixed.device, dtype=mixed.dtype)
        own = replace(self.rounds[number], released=mixed + self.noise * noise)
        return own.solved(own.typical(), self.ridge)[0]


def _labels_of_records(rounds: Sequence[Sequence[View]]) -> Tensor | None:
    """The label of each record; a label is mixed by the mean weight of its record's cells."""
    if rounds[0][0].mixed == 1:
        return labels_of([same[0] for same in rounds])
    solved = []
    for same in rounds:
        sums = [_label_view(view) for view in same]
        if None in sums:
            return None
        mixtures = Mixtures.of([view for view in sums if view is not None])
        labels, explained = mixtures.solved(mixtures.typical(), NOISES[0])
        if explained.min() < _DETERMINED:
            return None
        solved.append(labels.argmax(1))
    return torch.cat(solved)


def _label_view(view: View) -> View | None:
    """The view with its mixed labels as what was released."""
    if view.labels is None or view.weights is None or not view.labels.is_floating_point():
        return None
    return replace(view, smashed=view.labels, weights=view.weights.mean(2, keepdim=True))
