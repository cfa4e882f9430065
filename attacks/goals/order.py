"""Undo a shuffle: the guessed order of released tokens, and the shares of tokens that are right."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from torch import Tensor

from privkit.attacks.scores.order import direct_accuracy, membership_accuracy, neighbor_accuracy


@dataclass(frozen=True, kw_only=True)
class Permutation:
    """Holds a guess at the order of tokens that a shuffle hides.

    Attributes:
        source: the guessed original place of each of T tokens in each of N released rows, int64 [N, T]. Value v stands
            for token v % T of image v // T; images are counted from 0 within a message (the rows that are shuffled
            together).
    """

    source: Tensor


def order_scores(truth: Tensor, guess: Permutation, batch_size: int, kinds: Tensor | None = None) -> dict[str, Tensor]:
    """The share of each image's tokens for which the guessed order is right: measure -> float64 [N] in [0, 1].

    Measures are "direct" (right place), "membership" (right image) and, if T is a square number, "neighbor" (right
    neighbors in the grid). `truth` is like `Permutation.source`; with `kinds` from `equal_tokens`, a swap of equal
    tokens counts as right.

    >>> import torch
    >>> truth = torch.arange(4).unsqueeze(0)
    >>> {name: share.item() for name, share in order_scores(truth, Permutation(source=truth.flip(1)), 1).items()}
    {'direct': 0.0, 'membership': 1.0, 'neighbor': 0.0}
    """
    measures = {"direct": direct_accuracy, "membership": membership_accuracy}
    side = isqrt(truth.shape[1])
    if side > 1 and side * side == truth.shape[1]:
        measures["neighbor"] = neighbor_accuracy
    return {name: measure(guess.source, truth, batch=batch_size, kinds=kinds) for name, measure in measures.items()}
