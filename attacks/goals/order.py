"""Undo a shuffle: the guessed order of released tokens, and the shares of tokens that are right."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from torch import Tensor

from privkit.attacks.scores.order import direct_accuracy, membership_accuracy, neighbor_accuracy


@dataclass(frozen=True, kw_only=True)
class Permutation:
    """A guess at the order that a shuffle hides.

    Attributes:
        source: int64 [N, T]. Released token t of row n is guessed to be token source % T of image source // T; images
            are counted from 0 within a message of `batch_size` rows.
    """

    source: Tensor


def score(truth: Tensor, guess: Permutation, batch_size: int, kinds: Tensor | None = None) -> dict[str, Tensor]:
    """Shares of each image's correct tokens: "direct" (place), "membership" (image) and, in a square grid, "neighbor".

    Args:
        truth: int64 [N, T], as in `Permutation.source`.
        batch_size: rows per message.
        kinds: int64 [N, T] from `privkit.attacks.scores.order.equal_tokens`: equal tokens are interchangeable.

    Returns:
        Measure -> float64 [N] in [0, 1].

    >>> import torch
    >>> truth = torch.arange(4).unsqueeze(0)
    >>> {name: share.item() for name, share in score(truth, Permutation(source=truth.flip(1)), 1).items()}
    {'direct': 0.0, 'membership': 1.0, 'neighbor': 0.0}
    """
    measures = {"direct": direct_accuracy, "membership": membership_accuracy}
    side = isqrt(truth.shape[1])
    if side > 1 and side * side == truth.shape[1]:
        measures["neighbor"] = neighbor_accuracy
    return {name: measure(guess.source, truth, batch=batch_size, kinds=kinds) for name, measure in measures.items()}
