"""Whether a recording that declares a shuffle moved its tokens."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn

from privkit.accountants.shuffles.permutations import kept_tokens
from privkit.defenses.base import Defense
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.compile import sites_of
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.residual import LEVEL
from privkit.recording.read import Recording
from privkit.recording.replay import replay_round, rounds_to_replay


def unmoved(recording: Recording, lower: nn.Module, stages: tuple[Defense, ...]) -> str:
    """A sentence that begins "the recording declares …, but …" if tokens lie where a shuffle leaves few; else empty.

    A token is in place if it is nearest to what the lower segment makes at this place of the row, whatever clips and
    noise followed. A shuffle knows nothing of tokens: whatever place a token resembles, it comes there once in T times.
    So a shuffled row leaves one token in place in the mean, with exponential moments of at most those of a Poisson
    variable. An honest recording is refuted at most once in a million (`residual.LEVEL`), and never if half of its
    tokens moved, since class tokens may stay.
    """
    shuffle = next((stage for stage in stages if isinstance(stage, PatchShuffle | BatchShuffle)), None)
    if shuffle is None or recording.description.mixed > 1 or recording.views[0].smashed.ndim != 3:
        return ""
    stayed = told = rows = tokens = 0
    for number in rounds_to_replay(recording):
        try:
            one = replay_round(recording, number, lower)
            clean = one.clean
            for stage in sites_of(stages).smashed:
                clean = stage.public_transform(clean)
            stayed += in_place(clean, one.released)
            told += in_place(clean, clean)
        except Exception:  # of a user's own segment; the row says why the release cannot be made again
            return ""
        rows, tokens = rows + len(one.released), one.released.shape[1]
    kept, mean = _left(shuffle, tokens)
    if 2 * stayed <= told or not _unlikely(stayed - kept * rows, mean * rows):
        return ""
    return (
        f"the recording declares {shuffle.name}, but {stayed} of {told} different tokens in {rows} rows lie where the "
        f"recorded lower segment makes them; the shuffle leaves {(kept + mean) * rows} there in the mean"
    )


def in_place(clean: Tensor, released: Tensor) -> int:
    """How many tokens of a release [N, T, D] are nearest to the segment's output [N, T, D] at their own place.

    >>> tokens = torch.eye(4).repeat(2, 1, 1)
    >>> in_place(tokens, tokens), in_place(tokens, tokens.roll(1, 1))
    (8, 0)
    """
    apart = torch.cdist(released.float(), clean.float(), compute_mode="donot_use_mm_for_euclid_dist")
    return int((apart.argmin(2) == torch.arange(clean.shape[1], device=clean.device)).sum())


def _left(shuffle: PatchShuffle | BatchShuffle, tokens: int) -> tuple[int, int]:
    """Of each row, how many tokens a shuffle leaves in place on purpose, and how many more in the mean, at most."""
    if isinstance(shuffle, PatchShuffle) or shuffle.variant == "final_shuffle":
        return 0, 1
    kept = kept_tokens(tokens, shuffle.keep)
    return (kept, 1) if shuffle.variant == "kept_in_place" else (0, 2)  # of kept and of dealt tokens


def _unlikely(stayed: int, mean: int) -> bool:
    """Whether Chernoff's bound lets a Poisson variable of this mean be as large at most once in a million.

    >>> _unlikely(3200, 50), _unlikely(60, 50), _unlikely(0, 1)
    (True, False, False)
    """
    return stayed > mean and stayed - mean + stayed * log(mean / stayed) < log(LEVEL)
