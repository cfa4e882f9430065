"""Compare sequences of token ids without regard to their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PADDING = 0  # the id behind the end of a text, in every domain of token sequences


def rouge_1(truth: NDArray[np.int64], guess: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many token ids two texts share in any order: the F-measure ROUGE-1 of each of N pairs, float64 [N] in [0, 1].

    Padding does not count. Token ids are [N, T] for the truth and [N, S] for the guess, or [1, S] for all rows.

    Source: Lin 2004, "ROUGE: a package for automatic evaluation of summaries", §2 (equal weights of precision and
    recall).

    >>> rouge_1(np.array([[2, 3, 0]]), np.array([[3, 3, 2]])).tolist()
    [0.8]
    """
    before = np.tril(truth[:, :, None] == truth[:, None, :], -1).sum(2)  # equal tokens in front of each one
    there = (truth[:, :, None] == guess[:, None, :]).sum(2)
    shared = ((before < there) & (truth != PADDING)).sum(1)
    both = (truth != PADDING).sum(1) + (guess != PADDING).sum(1)
    return np.asarray(2 * shared / np.maximum(both, 1))


def commonest_tokens(texts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens [T] that share most with the N ≥ 1 texts [N, T], by the mean of ROUGE-1: one constant guess, with
    padding at the end. A token that most texts contain twice may be in it twice.

    Tokens are added in the order of the share of texts that contain them (as often as the guess then does), as long as
    this helps; a short text weighs more, since one token is a larger part of it.

    >>> commonest_tokens(np.array([[2, 3, 2], [2, 2, 4], [2, 5, 0]])).tolist()
    [2, 2, 5]
    """
    lengths, wide = (texts != PADDING).sum(1), texts.shape[1]
    weights = 1 / (lengths + max(1.0, lengths.mean()))
    rows = np.sort(texts, 1)
    first = np.concatenate([rows[:, :1] != PADDING, (rows[:, 1:] != rows[:, :-1]) & (rows[:, 1:] != PADDING)], 1)
    shares = np.bincount(rows[first], np.broadcast_to(weights[:, None], rows.shape)[first])
    tokens = np.argsort(-shares, kind="stable")[:wide]
    tokens = tokens[shares[tokens] > 0]
    counts = np.stack([(texts == token).sum(1) for token in tokens], 1) if len(tokens) else np.zeros((len(texts), 0))
    gains = np.stack([weights @ (counts >= times) for times in range(1, wide + 1)], 1)  # [token, times]
    chosen = np.argsort(-gains.ravel(), kind="stable")[:wide]
    chosen = chosen[gains.ravel()[chosen] > 0]
    guess = np.full(wide, PADDING)
    if len(chosen):
        held = np.stack([counts[:, place // wide] > place % wide for place in chosen], 1)
        scores = 2 * held.cumsum(1) / (lengths[:, None] + np.arange(1, len(chosen) + 1))
        most = int(scores.mean(0).argmax()) + 1
        guess[:most] = tokens[chosen[:most] // wide]
    return guess
