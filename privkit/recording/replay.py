"""Replay: sends recorded records through the recorded lower segment again, and compares the result with the release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded

if TYPE_CHECKING:
    from privkit.recording.read import Recording

FAR = 0.05  # above this relative distance, a lower segment does not reproduce the release
Ask = Callable[[Tensor], Tensor]
"""A function, perhaps random: records of a round [N, ...] -> the release of each record before noise, [N, ...]."""

_DRAWS = 8  # number of outputs over which a random segment is averaged
_QUIET, _RANGES = 0.9, 2.0
"""Limits of `Replay.quieter`: a share of the expected variance, and a multiple of the range of other distances."""
_CHANCE = 4.0  # deviations up to this number of standard errors are attributed to chance
_FLOAT = 1e-5  # rounding may change an output by this share of the output's median over the batch
_NUMBERS = 2**21
"""Most numbers in the records that a quick check sends again, and in their releases; one round is always sent."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One replayed round: the recorded release, the mean of the replayed outputs, and their spread."""

    released: Tensor  # float [N, ...], the recorded release
    clean: Tensor  # float [N, ...], the mean of the segment's outputs
    spread: float = 0.0  # standard deviation of one output; 0 for a segment without randomness
    draws: int = 1  # number of outputs
    # mean squared distances of the release and of each output from the mean of release and outputs; empty without
    # randomness
    apart: tuple[float, ...] = ()

    @property
    def blur(self) -> float:
        """Standard deviation of the error of `clean`, the mean of the replayed outputs."""
        return self.spread / sqrt(self.draws)

    def distance(self, variance: float) -> float:
        """The distance ‖release − replay‖ / ‖release‖ ≥ 0 without the part that noise explains. The noise is the
        segment's own randomness or, for a segment without randomness, a declared noise of mean variance `variance`.

        The noise's expected share is subtracted from the squared distance and from the squared norm. From the squared
        distance, a margin is also subtracted, which Gaussian noise exceeds in one of 30,000 rounds. The result is 0 if
        no distance remains, and 1 if nothing of the release remains.
        """
        noise = self.spread**2 if self.spread else variance
        both, numbers = noise + self.blur**2, self.released.numel()
        apart = float((self.released - self.clean).double().square().mean())
        excess = apart - both * _most(numbers, (self.draws - 1) * numbers if self.spread else 0)
        size = float(self.released.double().square().mean()) - noise
        if excess <= 0:
            return 0.0
        return sqrt(excess / size) if size > 0 else 1.0

    def quieter(self, variance: float) -> float | None:
        """The mean square of release minus replay, divided by the expected variance, if clearly below 1; else None.

        Without randomness, the expected variance is `variance`, as in `distance`. For a random segment, it is the
        variance of its outputs, and a correct release is like one more output. The release is too quiet if its squared
        distance from the mean of all outputs is smaller than that of every other output, by more than twice the range
        of the others' squared distances. For a correct release, the probability of this is 1.5e-4 for normal distances
        (measured), and smaller for skewed distances.
        """
        about = float((self.released - self.clean).double().square().mean())
        if not self.apart:
            chance = _CHANCE * sqrt(5 / self.released.numel())  # Laplace noise: its squares deviate by √5 of their mean
            return about / variance if about < variance * (_QUIET - chance) else None
        own, others = self.apart[0], self.apart[1:]
        least = min(_QUIET * sum(others) / len(others), min(others) - _RANGES * (max(others) - min(others)))
        return max(0.0, about / self.spread**2 - 1 / self.draws) if own < least else None


@lru_cache(maxsize=4096)
def _most(numbers: int, drawn: int) -> float:
    """An upper limit for the ratio of two mean squares of the same Gaussian noise, over `numbers` and over `drawn`
    numbers (0 for a known variance). Chance exceeds this limit as rarely as a normal variable exceeds four standard
    deviations."""
    from scipy.stats import chi2, f, norm

    rare = float(norm.sf(_CHANCE))
    return float(f.isf(rare, numbers, drawn) if drawn else chi2.isf(rare, numbers) / numbers)


def variance_of(mechanism: SplitMechanism | None) -> float:
    """Variance of the noise that a mechanism adds to each number of a release; 0 without noise or mechanism."""
    if mechanism is None:
        return 0.0
    return mechanism.noise.distribution.variance_factor * mechanism.noise.smashed * mechanism.noise.smashed


@torch.no_grad()
def replay(ask: Ask, x: Tensor, released: Tensor) -> Replay:
    """Send the N records `x` of a round again through `ask`, and compare the outputs with the release, [N, ...]."""
    return _replay(lambda: ask(x), released)


@torch.no_grad()
def replay_round(recording: Recording, number: int, ask: Ask) -> Replay:
    """Send the records of round `number` again, and compare the result with the recorded release. Mixed records are
    sent separately and mixed by their recorded weights. Raises `ValueError` if records or weights are missing."""
    view, members = recording.views[number], recording.members_of(number)
    if not len(recording.truth):
        raise ValueError(f"no true {recording.record} was recorded")
    if view.mixed > 1 and view.weights is None:
        raise ValueError(f"the shares of mixed {recording.domain.records} were not recorded")
    taken = torch.ones_like(members, dtype=torch.bool) if view.weights is None else (view.weights > 0).any(2)
    if bool((taken & (members < 0)).any()):
        raise ValueError(f"truth.members does not know every {recording.record} of the round")
    seats = members.clamp(min=0)

    def answer() -> Tensor:
        rows = torch.stack([ask(recording.truth.x[seats[:, seat]]) for seat in range(view.mixed)], 1)
        return mixed_release(rows.flatten(0, 1), view.mixed, view.weights)

    return _replay(answer, view.smashed)


def _replay(answer: Callable[[], Tensor], released: Tensor) -> Replay:
    """Compute the output twice, and more often if the two outputs differ."""
    first, second = (_drawn(answer, "replay", number) for number in range(2))
    if first.shape != released.shape:
        raise ValueError(
            f"the lower segment makes {list(first.shape[1:])} of a record, and {list(released.shape[1:])} was released"
        )
    if torch.equal(first, second):
        return Replay(released=released, clean=first)
    answers = torch.stack([first, second, *(_drawn(answer, "replay", number) for number in range(2, _DRAWS))])
    mean = (released + answers.sum(0)) / (1 + _DRAWS)
    return Replay(
        released=released,
        clean=answers.mean(0),
        spread=float(answers.double().var(0).mean().sqrt()),
        draws=_DRAWS,
        apart=tuple(float((one - mean).double().square().mean()) for one in (released, *answers)),
    )


def _drawn(answer: Callable[[], Tensor], *stream: str | int) -> Tensor:
    with seeded(torch.device("cpu"), derive(0, *stream)):
        return answer().detach().cpu().float()


def rounds_to_replay(recording: Recording) -> Sequence[int]:
    """Indices of a few rounds for a quick check, evenly spaced, including the last round."""
    last = recording.views[-1]
    each = max(len(last.smashed) * last.mixed * prod(recording.domain.shape), last.smashed.numel()) / _NUMBERS
    count = max(1, min(len(recording.views), int(1 / each)))
    return sorted({len(recording.views) - 1 - number * len(recording.views) // count for number in range(count)})


@torch.no_grad()
def carried(ask: Ask, x: Tensor) -> tuple[int, int]:
    """Test whether a record affects the outputs of other records in its batch `x` [N, ...]. Returns the numbers of
    replaced records and of changed outputs if more outputs changed than records were replaced; otherwise (0, 0).

    Half of the batch is replaced by neighboring records at a time: the records whose number has a 1 (or a 0) in one
    binary digit. For any two of N records, one of these 2·⌈log₂ N⌉ halves contains exactly one of the two. A
    permutation of the outputs does not count as an effect. Raises `ValueError` if equal batches give different outputs.
    """

    def answer(records: Tensor) -> Tensor:
        return _drawn(lambda: ask(records), "rows apart")

    before, places = answer(x), torch.arange(len(x))
    if not torch.equal(before, answer(x.clone())):
        raise ValueError("the lower segment answers equal batches differently")
    least = _FLOAT * before.abs().median(0).values
    for digit in range((len(x) - 1).bit_length()):
        ones = (places >> digit) % 2 == 1
        for half in (~ones, ones):
            given = x.clone()
            given[half] = x.roll(1, 0)[half]
            replaced = int((given != x).flatten(1).any(1).sum())
            moved = int(((answer(given) - before).abs() > least).flatten(1).any(1).sum())
            if moved > replaced:
                return replaced, moved
    return 0, 0
