"""Sums of several clients' smashed data with known weights: a system of linear equations and its solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.inversion.mixed_releases import by_cell, records_of_rows
from privkit.attacks.inversion.rounds import by_round, labels_of
from privkit.attacks.patches import as_tokens

NOISES = (1e-6, 1e-4, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Noise variances that are tried, divided by the variance of the smashed data."""


@dataclass(frozen=True, kw_only=True)
class Mixtures:
    """All releases of one round's records: linear equations A·x = y for each batch place and each token position."""

    # A, float64 [B or 1, T or 1, E, n]: E equations for n clients, at B batch places and T positions (1 if all share A)
    design: Tensor
    released: Tensor  # y, float64 [B, T or 1, E, D]; with one position, D holds the whole release
    form: torch.Size  # shape of one record's smashed data

    @classmethod
    def of(cls, same: Sequence[View]) -> Mixtures:
        """Set up the equations from several releases of the same records (one view each), mixed with different weights.

        Raises `NotApplicable` if the adversary does not know which clients' records are mixed, or with which weights.
        """
        seats = torch.stack([_clients_of_seats(view) for view in same]).flatten(0, 1)  # [E, k], at each place
        batch = len(same[0].smashed) // same[0].messages
        rows = torch.cat([view.smashed for view in same])
        weights = torch.cat([_seat_weights(view) for view in same]).unflatten(0, (-1, batch))
        parts = rows.flatten(1).unsqueeze(1) if weights.shape[3] == 1 else as_tokens(rows)
        released = parts.unflatten(0, (-1, batch))
        shared = bool((weights == weights[:, :1]).all())
        weights = (weights[:, :1] if shared else weights).double().permute(1, 3, 0, 2)  # [B, T, E, k]
        design = weights.new_zeros(*weights.shape[:3], int(seats.max()) + 1)
        taken = (seats >= 0).expand_as(weights)
        design.scatter_add_(3, seats.clamp_min(0).expand_as(weights), torch.where(taken, weights, 0))
        return cls(design=design, released=released.double().permute(1, 2, 0, 3), form=rows.shape[1:])

    def solved(self, typical: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        """Estimate each record's smashed data by least squares, penalizing deviation from the mean record (`typical`).

        `noise` is the variance > 0 of the release's noise, divided by that of the smashed data. Returns the smashed
        data [n·B, ...] of n clients with B records each (row c·B + b is client c's b-th record), and the explained
        share of the variance, float64 [n·B, T or 1]: 1 if the equations determine the data, 0 for a position that was
        never sent.

        Source: ridge regression (Hoerl and Kennard 1970), which is the posterior mean for Gaussian noise and a Gaussian
        prior.
        """
        transposed = self.design.transpose(2, 3)
        gram = transposed @ self.design
        regular = gram + noise * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.inv(regular)
        unusual = self.released - self.design.sum(3, keepdim=True) * typical.unsqueeze(1)
        found = inverse @ (transposed @ unusual) + typical.unsqueeze(1)  # [B, T, n, D]
        known = 1 - noise * inverse.diagonal(dim1=2, dim2=3)
        batch, cells, clients, _ = found.shape
        smashed = found.permute(2, 0, 1, 3).reshape(clients * batch, cells, -1)
        if len(self.form) == 3 and cells > 1:
            smashed = smashed.transpose(1, 2)
        explained = known.permute(2, 0, 1).expand(-1, batch, -1).reshape(clients * batch, -1)
        return smashed.reshape(-1, *self.form).float(), explained.clamp(0, 1)

    def typical(self) -> Tensor:
        """Estimate the mean smashed data of a record from the releases, [T or 1, D]."""
        weight = self.design.sum((0, 2, 3)) * (len(self.released) / len(self.design))
        return self.released.sum((0, 2)) / weight.clamp_min(1e-12).unsqueeze(1)

    def variances(self) -> tuple[float, float]:
        """Estimate from the release the variances of its noise and of a record's smashed data."""
        typical = self.typical()
        smashed, explained = self.solved(typical, NOISES[0])
        left = (self.released - self.predicted(smashed)).square().mean(3)
        spare = left.numel() - float(explained.sum())
        noise = float(left.sum()) / spare if spare >= 1 else 0.0
        unusual = self.released - self.design.sum(3, keepdim=True) * typical.unsqueeze(1)
        weight = float(self.design.square().sum(3).mean())
        return noise, max(float(unusual.square().mean()) - noise, 1e-12) / max(weight, 1e-12)

    def predicted(self, smashed: Tensor) -> Tensor:
        """Predict the mixed releases of smashed data [n·B, ...] (n clients, B records each), shaped like `released`."""
        batch, cells = len(self.released), self.released.shape[1]
        tokens = smashed.flatten(1).unsqueeze(1) if cells == 1 else as_tokens(smashed)
        mixed: Tensor = self.design @ tokens.double().unflatten(0, (-1, batch)).permute(1, 2, 0, 3)
        return mixed


def fitting_noise(passes: Sequence[View], another: View) -> tuple[Tensor, float, float]:
    """Choose the noise level with which the solution of `passes` best predicts `another` release of the same records.

    Returns a record's mean smashed data, [T or 1, D]; the `noise` for `Mixtures.solved`; and the unexplained share ≥ 0
    of the variance of `another` (0: perfect prediction).
    """
    known, held_out = Mixtures.of(passes), Mixtures.of([another])
    typical = known.typical()
    wrong = [
        (held_out.predicted(known.solved(typical, noise)[0]) - held_out.released).square().mean().item()
        for noise in NOISES
    ]
    unusual = held_out.released - held_out.design.sum(3, keepdim=True) * typical.unsqueeze(1)
    best = min(range(len(wrong)), key=wrong.__getitem__)
    return typical, NOISES[best], wrong[best] / max(unusual.square().mean().item(), 1e-300)


def _clients_of_seats(view: View) -> Tensor:
    """The client of each of the k records in a mixed row, int64 [M, k] for M messages; −1 for an empty seat."""
    batch = len(view.smashed) // view.messages
    held = records_of_rows(view)[::batch]
    return torch.where(held >= 0, held // batch, -1)


def _seat_weights(view: View) -> Tensor:
    """The weight of each of the k records in a mixed row, at each position, [N, k, T or 1]."""
    if view.weights is not None:
        return by_cell(view.weights, view.smashed)
    if view.mixed > 1:
        raise NotApplicable(f"each row has {view.mixed} images with hidden weights; use a defense with published=true")
    return view.smashed.new_ones(len(view.smashed), 1, 1)


_DETERMINED = 0.5  # least explained share of the variance of each record's label


@dataclass(frozen=True, kw_only=True)
class Unmixed:
    """Releases of single records, computed from several mixed releases (passes) with public weights."""

    rows: Tensor  # float32 [R·n·B, ...], R rounds of n clients' B records
    seats: Tensor  # int64 [G], the row of each of G images that are to be guessed
    rounds: Sequence[Mixtures]  # the equations of each round
    noise: float  # standard deviation of the release's noise, estimated from differences between passes
    ridge: float  # variance of the noise divided by that of the smashed data, > 0
    # int64 [R·n·B], labels of the rows, if labels are sent unmixed, or mixed labels can be solved for; else None
    labels: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, views: Sequence[View], passes: int) -> Unmixed:
        """Compute each record's own release from mixed releases of several passes; errors are as in `Mixtures.of`.

        In `views`, all rounds of the first pass come first. A position that was never sent gets the mean.
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
        """Mix smashed data [N, ...] like the recorded rounds, add the same noise, and solve for each record, [N, ...].

        The result has the same errors as the attacked records' solutions: positions that the passes do not determine
        stay undetermined. So decoders are trained on such results, and simulators are judged by them. The result is
        differentiable. Repeated records fill an incomplete round.
        """
        whole = len(self.rows) // len(self.rounds)
        missing = torch.randint(len(smashed), (-len(smashed) % whole,), generator=draws, device=draws.device)
        filled = torch.cat([smashed, smashed[missing]])
        return torch.cat([self._solved(part, draws) for part in filled.split(whole)])[: len(smashed)]

    def _solved(self, smashed: Tensor, draws: Generator) -> Tensor:
        number = int(torch.randint(len(self.rounds), (1,), generator=draws, device=draws.device))
        mixed = self.rounds[number].predicted(smashed)
        noise = torch.randn(mixed.shape, generator=draws, device=mixed.device, dtype=mixed.dtype)
        own = replace(self.rounds[number], released=mixed + self.noise * noise)
        return own.solved(own.typical(), self.ridge)[0]


def _labels_of_records(rounds: Sequence[Sequence[View]]) -> Tensor | None:
    """Solve for each record's label, int64, from mixed labels; None if these are missing or do not determine it."""
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
    """Replace the view's smashed data by its mixed labels; None if it has no mixed labels or weights."""
    if view.labels is None or view.weights is None or not view.labels.is_floating_point():
        return None
    return replace(view, smashed=view.labels, weights=view.weights.mean(2, keepdim=True))
