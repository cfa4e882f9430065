"""Nearest-record inversion: guesses the adversary's own record whose release is nearest to the attacked release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NotApplicable, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_rows
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.attacks.inversion.rounds import averaged, by_round
from privkit.constraints import Count
from privkit.torch_utils.out_of_memory import in_chunks

_CHUNK = 1 << 24  # distances in memory at once
_UNDOES = frozenset({"maps", "masks", "shortens"})


@dataclass(frozen=True, kw_only=True)
class NearestRecord(ReconstructingAttack):
    """Send the adversary's records through the defended clients, and guess the record with the most similar release.

    A release is the smashed data that clients send for a record. The attack needs no training and works for every kind
    of record. If a sequence's release has one token for each token of the sequence, each token is guessed separately,
    possibly from many records; a table with categories is guessed column by column. The distance ignores positions that
    public masks remove.

    If the adversary's records include the attacked records (`--auxiliary candidates`), the attack finds which record
    each release belongs to. Under Gaussian noise of one strength, the nearest mean release belongs to the most likely
    record. Without masks, the attack sums absolute instead of squared differences if this identifies more of the
    adversary's records, as under Laplace noise.

    Attributes:
        repeats: how many times ≥ 1 each of the adversary's records is sent; its releases are averaged, so their noise
            shrinks by √repeats.
        passes: how many times ≥ 1 the same attacked records were sent, one complete sending after another. A record's
            releases are averaged.

    Source: that the nearest neighbor in feature space is a lower bound of leakage is folklore; this form is privkit's.
    """

    name: ClassVar[str] = "nearest_record"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    repeats: Count = 4
    passes: Count = 1

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(passes=self.passes, domains=("any",), any_tokens=True, returns_auxiliary=True, undoes=_UNDOES)

    @torch.no_grad()
    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        views = observation.views
        check_rows(self, observation)
        device, batch, query = views[0].smashed.device, observation.batch_size, given(observation.query)
        own = given(observation.auxiliary).to(device)
        if len(own) < batch:
            raise NotApplicable(f"{self.name} sends {batch} own records per round, got {len(own)}")
        draws = Generator(device).manual_seed(int(torch.randint(2**48, (1,), generator=generator)))
        releases, kept = _mean_releases(query, own, batch, self.repeats, draws)
        rounds = [averaged(same) for same in by_round(views, self.passes)]
        seen, known = (torch.cat(parts) for parts in zip(*map(_unmasked, rounds), strict=True))
        if own.ndim == 2 and seen.ndim == 3 and seen.shape[1] == own.shape[1]:  # one token per place
            if any(observation.columns):  # a category of one column is not a value of another
                sides = [part.unbind(1) for part in (seen, known, releases, kept)]
                columns = zip(own.unbind(1), *sides, strict=True)
                return Reconstruction(images=torch.stack([cell[_nearest_releases(*of)] for cell, *of in columns], 1))
            seen, known, releases, kept = (part.flatten(0, 1) for part in (seen, known, releases, kept))
            nearest = _nearest_releases(seen, known, releases, kept)
            return Reconstruction(images=own.flatten()[nearest].view(-1, own.shape[1]))
        power = 2.0
        if bool((known == 1).all()):
            power = _sharper(query, own[:batch], releases, self.passes, draws)
        return Reconstruction(images=own[_nearest_releases(seen, known, releases, kept, power)])


def _mean_releases(query: Query, own: Tensor, batch: int, repeats: int, draws: Generator) -> tuple[Tensor, Tensor]:
    """Query the mean release of each record, [M, ...]; also return 1 for numbers that some answer contains, else 0."""
    rounds = torch.arange(-(-len(own) // batch) * batch, device=own.device) % len(own)
    totals: list[Tensor] = []
    for rows in rounds.repeat(repeats).split(batch):
        answer = query(own[rows], draws)
        smashed, spread = _unmasked(answer.view)
        if not totals:
            totals = [smashed.new_zeros(len(own), *smashed.shape[1:]) for _ in range(2)]
        for total, part in zip(totals, (smashed * spread, spread), strict=True):
            total.index_add_(0, rows[answer.members[:, 0]], part)
    total, weight = totals
    return total / weight.clamp_min(1e-12), (weight > 0).to(total.dtype)


def _sharper(query: Query, played: Tensor, releases: Tensor, passes: int, draws: Generator) -> float:
    """Return 2.0 if squared differences identify at least as many records as absolute differences, else 1.0.

    Each record of `played` is sent `passes` times as a test. Squares are best under Gaussian noise, absolute values
    under Laplace noise.
    """
    sent = [query(played, draws) for _ in range(passes)]
    rows = [one.view.smashed[one.row_of_each(len(played), "nearest_record")] for one in sent]
    seen, others = torch.stack(rows).mean(0).flatten(1).float(), releases.flatten(1).float()
    right = torch.arange(len(played), device=others.device)
    return max((2.0, 1.0), key=lambda power: int((torch.cdist(seen, others, power).argmin(1) == right).sum()))


def _unmasked(view: View) -> tuple[Tensor, Tensor]:
    """Divide a release by the weights of public masks; also return 1 for numbers that the masks kept, else 0."""
    if view.weights is None:
        return view.smashed, torch.ones_like(view.smashed)
    spread = mixed_release(torch.ones_like(view.smashed), 1, view.weights)
    return torch.where(spread > 0, view.smashed / spread.clamp_min(1e-12), 0), (spread > 0).to(spread.dtype)


def _nearest_releases(seen: Tensor, known: Tensor, releases: Tensor, kept: Tensor, power: float = 2.0) -> Tensor:
    """Find for each row of `seen` [N, ...] the nearest of M `releases` [M, ...]: its index, int64 [N].

    The distance is the mean squared difference over the numbers that are masked in neither; unmasked numbers are 1 in
    `known` (for rows) and `kept` (for releases). `power` is the exponent of the differences; with masks it is 2.
    """
    rows, there, others, theirs = (part.flatten(1).float() for part in (seen, known, releases, kept))
    whole = bool((there == 1).all()) and bool((theirs == 1).all())

    def winners(part: slice) -> Tensor:
        x, k = rows[part], there[part]
        if whole:
            return torch.cdist(x, others, power).argmin(1)
        squared = (k * x.square()) @ theirs.T - 2 * (k * x) @ (theirs * others).T + k @ (theirs * others.square()).T
        both = k @ theirs.T
        return torch.where(both > 0, squared / both.clamp_min(1e-12), torch.inf).argmin(1)

    return in_chunks(winners, len(rows), max(1, _CHUNK // len(others)))
