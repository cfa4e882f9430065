"""Scores of a guessed order of shuffled tokens: accuracies with their limits, and the remaining entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Literal

import torch
from torch import Tensor

from privkit.accountants.shuffles.entropy import accuracy_lower_limit, orderings_bits, patch_entropy_bits
from privkit.attacks.scores.order import direct_accuracy, membership_accuracy, neighbor_accuracy
from privkit.defenses.base import Receipt
from privkit.reports.seed_intervals import over_records
from privkit.shared.interval import Interval
from privkit.shared.measures import UNIT


@dataclass(frozen=True, kw_only=True)
class OrderAccuracy:
    """An accuracy of a guessed order: the share of correctly placed tokens, with its limits."""

    share: Interval  # mean and interval over images, since the tokens of one image are often found together
    sound_low: float  # lower limit of the expected accuracy, for any dependence of tokens inside an image or message
    left_alone: float  # the accuracy of the guess that leaves all tokens in place


@dataclass(frozen=True, kw_only=True)
class _ArrangementScores:
    """All accuracies of a guessed order, and the order's entropy in bits before and after the attack."""

    direct: OrderAccuracy  # accuracy: the share of tokens in their place
    neighbor: OrderAccuracy | None  # share of neighboring pairs that are neighbors again; None without a square grid
    membership: OrderAccuracy  # share of tokens that are placed in their true image, at any place
    unit: Literal["image", "message"]  # the independent unit: a message if tokens moved between images, else an image
    units: int
    tokens: int  # number of tokens in one secret order: T of an image, or B·T of a message if its images were mixed
    bits_before: float  # mean entropy of a uniform order up to swaps of equal tokens, at most `most_bits`
    # the largest entropy of a secret order, at most `bits_before`, that an accuracy of `direct.sound_low` allows; None
    # if there are so few units that even a perfect attack could not bring this bound below `bits_before`
    bits_left: float | None
    confidence: float  # confidence of all limits


def arrangement_scores(
    guess: Tensor,
    truth: Tensor,
    *,
    batch: int,
    kinds: Tensor | None = None,
    confidence: float = 0.95,
    most_bits: float | None = None,
) -> _ArrangementScores:
    """Score an attack's guess of the order in which a defense shuffled tokens, against the true order.

    Args:
        guess: the guessed original place of each of T released tokens in N images, int64 [N, T]. Places 0..B·T−1 are
            counted in a message (a batch of B images in one round), and each place occurs once in the message.
        truth: the true places, int64 [N, T], counted in the same way (from `true_arrangement`).
        batch: the number B of images in a message.
        kinds: int64 [N, T], equal for equal tokens (`equal_tokens`), which are interchangeable; None if all differ.
        most_bits: an upper bound on the entropy of one secret order before the release, if this bound is below a
            uniform order's entropy (batch shuffling: log2(10) times the certificate's `log10_outcomes`).

    Source: Clopper and Pearson 1934; Hoeffding 1963, Eq. 2.1 (`accuracy_lower_limit`); maximum entropy with rencontres
    numbers (`patch_entropy_bits`). The entropy bound holds for any distribution of the order, any guess, and equal
    tokens, because at most (T − j)! distinguishable orders agree with a guess on j given places.
    """
    n, t = truth.shape
    if batch < 1 or n % batch:
        raise ValueError(f"batch must be a whole number >= 1 that divides the {n} images, got {batch}")
    if guess.shape != truth.shape:
        raise ValueError(f"guess and truth must have one shape [N, T], got {list(guess.shape)} and {list(truth.shape)}")
    own = t * (torch.arange(n, device=truth.device) % batch).unsqueeze(1)
    mixed, crossed = (bool((order // t * t != own).any()) for order in (truth, guess))
    together = batch if mixed or crossed else 1
    secret, units = (batch if mixed else 1) * t, n // together
    alone = own + torch.arange(t, device=truth.device)

    def accuracy(measure: Callable[..., Tensor]) -> OrderAccuracy:
        each = measure(guess, truth, batch=batch, kinds=kinds)
        share = over_records(each.tolist(), confidence, UNIT)
        return OrderAccuracy(
            share=share,
            sound_low=accuracy_lower_limit(share.value, units, confidence),
            left_alone=float(measure(alone, truth, batch=batch, kinds=kinds).mean()),
        )

    side = isqrt(t)
    before = _bits_before(kinds, n * t // secret, secret)
    before = before if most_bits is None else min(most_bits, before)
    direct = accuracy(direct_accuracy)
    left, least = (
        float(patch_entropy_bits(secret, share))
        for share in (direct.sound_low, accuracy_lower_limit(1.0, units, confidence))
    )
    return _ArrangementScores(
        direct=direct,
        neighbor=accuracy(neighbor_accuracy) if side > 1 and side * side == t else None,
        membership=accuracy(membership_accuracy),
        unit="message" if together > 1 else "image",
        units=units,
        tokens=secret,
        bits_before=before,
        bits_left=min(before, left) if least < before else None,
        confidence=confidence,
    )


def _bits_before(kinds: Tensor | None, orders: int, tokens: int) -> float:
    """The mean of log2 of the number of distinguishable orders of `tokens` tokens, over `orders` secret orders."""
    if kinds is None:
        return orderings_bits(tokens)
    counts = [row.unique(return_counts=True)[1].tolist() for row in kinds.view(orders, tokens)]
    return sum(orderings_bits(tokens, many) for many in counts) / orders


def true_arrangement(receipt: Receipt) -> Tensor | None:
    """The original place of each of T shuffled tokens in M batches of B images, int64 [M·B, T], counted from 0 in each
    batch; None without an order.

    >>> from privkit.defenses.receipts import Permuted
    >>> true_arrangement(Permuted(source=torch.tensor([[[1, 2], [0, 3]], [[6, 7], [5, 4]]]))).tolist()
    [[1, 2], [0, 3], [2, 3], [1, 0]]
    """
    source = receipt.order
    if source is None:
        return None
    m, b, t = source.shape
    first = b * t * torch.arange(m, device=source.device).view(m, 1, 1)
    return (source - first).flatten(0, 1)
