"""How much of a shuffle an attack undid: accuracies with their limits, and the bits that the order can still have."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal, Protocol

import torch
from torch import Tensor

from privkit.accountants.shuffles.entropy import accuracy_lower_limit, entropy_after_attack
from privkit.attacks.scores.order import direct_accuracy, membership_accuracy, neighbor_accuracy
from privkit.defenses.base import Receipt
from privkit.interval import Interval, clopper_pearson


class Measure(Protocol):
    """One of the accuracies of `privkit.attacks.scores.order`."""

    def __call__(self, guess: Tensor, truth: Tensor, *, batch: int, kinds: Tensor | None = None) -> Tensor:
        """float64 [N], of each image."""


@dataclass(frozen=True, kw_only=True)
class OrderAccuracy:
    """A share of right answers.

    Attributes:
        share: of all pieces (or adjacent pairs). Pieces of one image stand or fall together: the interval covers the
            expected accuracy only as if they did not, and is too narrow for other images. Take it as a description of
            these pieces.
        sound_low: one-sided lower limit of the expected accuracy over images like these, whatever the dependence of
            pieces inside an image (inside a message, where images were mixed).
        left_alone: what the guess "nothing was moved" scores: the floor of an attack.
    """

    share: Interval
    sound_low: float
    left_alone: float


@dataclass(frozen=True, kw_only=True)
class ArrangementScores:
    """What an arrangement got right.

    Attributes:
        direct: pieces in their place.
        neighbor: pairs that lie side by side again, in the right direction; None where tokens are no square grid.
        membership: pieces in their image, at whatever place.
        unit: what is independent of what: "image", or "message" where the shuffle or the guess moved pieces between
            images.
        units: how many of them.
        tokens: pieces whose order is one secret: an image's T, or B·T of a message whose images were mixed.
        bits_before: entropy of a uniform order of as many pieces, or `most_bits`, if that is less.
        bits_left: most entropy that one secret order can still have, at the lower Clopper–Pearson limit of the success
            at one piece drawn from each unit. A failed attack proves nothing: then it is `bits_before`.
        success_at_least: that limit.
        confidence: of all limits.
    """

    direct: OrderAccuracy
    neighbor: OrderAccuracy | None
    membership: OrderAccuracy
    unit: Literal["image", "message"]
    units: int
    tokens: int
    bits_before: float
    bits_left: float
    success_at_least: float
    confidence: float


def arrangement_scores(
    guess: Tensor,
    truth: Tensor,
    *,
    batch: int,
    kinds: Tensor | None = None,
    confidence: float = 0.95,
    most_bits: float | None = None,
    seed: int = 0,
) -> ArrangementScores:
    """Score a guessed order against the true one.

    Args:
        guess: int64 [N, T], the guessed place of each released token among the B·T places of its message; in each
            message every place once.
        truth: int64 [N, T], likewise; see `true_arrangement`.
        batch: B, images a message; it divides N.
        kinds: int64 [N, T] from `puzzle.kinds_of`: equal pieces count as one in the accuracies. The bits are those of
            the order itself, which equal pieces keep for good: there they are told apart.
        confidence: of all limits, in (0, 1).
        most_bits: an upper bound on the entropy of one secret order before the release, where the shuffle is known not
            to reach that of a uniform order (batch shuffling: log2(10) times the certificate's `log10_outcomes`).
        seed: of the piece that is drawn from each unit.

    Raises:
        ValueError: if these are no arrangements of one shape, or N is no multiple of B.

    Source: Clopper and Pearson 1934; Hoeffding 1963, Eq. 2.1 (`accuracy_lower_limit`); maximum entropy with rencontres
    numbers (`entropy_after_attack`), which holds for any law of the order: fixing the expected share of right places
    leaves no order more entropy.

    >>> truth = torch.arange(16).repeat(40, 1)
    >>> guess = truth.clone()
    >>> guess[:, :2] = truth[:, :2].flip(1)
    >>> scores = arrangement_scores(guess, truth, batch=1)
    >>> direct = scores.direct
    >>> direct.share.value, round(direct.share.low, 3), round(direct.sound_low, 3), scores.units
    (0.875, 0.847, 0.713, 40)
    >>> round(scores.bits_before, 1), round(scores.bits_left, 1)
    (44.3, 16.7)
    """
    n, t = truth.shape
    if batch < 1 or n % batch:
        raise ValueError(f"batch must be a whole number >= 1 that divides the {n} images, got {batch}")
    if guess.shape != truth.shape:
        raise ValueError(f"guess and truth must have one shape [N, T], got {list(guess.shape)} and {list(truth.shape)}")
    own = t * (torch.arange(n, device=truth.device) % batch).unsqueeze(1)
    mixed, crossed = (bool((order // t * t != own).any()) for order in (truth, guess))
    together = batch if mixed or crossed else 1
    alone = own + torch.arange(t, device=truth.device)

    def accuracy(measure: Measure, trials_an_image: int) -> OrderAccuracy:
        each = measure(guess, truth, batch=batch, kinds=kinds)
        share = clopper_pearson(round(float(each.sum()) * trials_an_image), n * trials_an_image, confidence)
        return OrderAccuracy(
            share=share,
            sound_low=accuracy_lower_limit(share.value, n // together, confidence),
            left_alone=float(measure(alone, truth, batch=batch, kinds=kinds).mean()),
        )

    side = isqrt(t)
    secret = (batch if mixed else 1) * t
    right = (guess == truth).view(n // together, -1)
    draws = torch.Generator().manual_seed(seed)
    drawn = torch.randint(right.shape[1], (len(right), 1), generator=draws).to(right.device)
    bound = entropy_after_attack(
        tokens=secret,
        hits=int(right.gather(1, drawn).sum()),
        trials=len(right),
        confidence=confidence,
        counted="patches",
    ).quantities
    before = bound["orderings_bits"] if most_bits is None else min(most_bits, bound["orderings_bits"])
    return ArrangementScores(
        direct=accuracy(direct_accuracy, t),
        neighbor=accuracy(neighbor_accuracy, 2 * side * (side - 1)) if side > 1 and side * side == t else None,
        membership=accuracy(membership_accuracy, t),
        unit="message" if together > 1 else "image",
        units=n // together,
        tokens=secret,
        bits_before=before,
        bits_left=min(before, bound["entropy_bits_at_most"]),
        success_at_least=bound["success_at_least"],
        confidence=confidence,
    )


def true_arrangement(receipt: Receipt) -> Tensor | None:
    """The order that a shuffle's receipt holds, in the convention of guesses: counted from 0 within each message.

    Args:
        receipt: of one round, of one defense or a chain.

    Returns:
        int64 [M·B, T], or None for a receipt of something that shuffles nothing.

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
