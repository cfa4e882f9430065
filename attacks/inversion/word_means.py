"""From words to tokens: random texts, the mean token of each word, and a classifier of tokens."""

from __future__ import annotations

from math import ceil

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import distances
from privkit.attacks.base import NotApplicable, Query, View, given
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, check_rows
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.scores.tokens import PADDING
from privkit.torch_utils.out_of_memory import in_chunks

_DRAWN = 8  # occurrences of each word in drawn texts, since real texts hold most words once or twice
_ROUNDS = 3  # rounds of fitting words and places in turn
_QUIET = 4  # noise is measured in a quarter of the directions: those in which known tokens vary least
_LEAST_SCATTER = 1e-4
"""Added to the scatter about the means, as a share of the tokens' variance: without context, tokens do not scatter."""
_TABLE = 2**24  # most distances in memory
_LEAST = 1e-6  # least assumed noise (rounding), as a share of the tokens' variance


def released_tokens(attack: ImageAttack, observation: ImageObservation, *, fewer: bool = False) -> Tensor:
    """Check the released tokens of N texts, and return them, [N, T, D]; or [N, K, D] with K ≤ T if `fewer`.

    Raises:
        NotApplicable: if a release has no token for each word, or the adversary's texts fill no round or hold no word.
    """
    check_rows(attack, observation)
    own, batch = given(observation.auxiliary), observation.batch_size
    released = torch.cat([view.smashed for view in observation.views]).float()
    words = own.shape[1] if own.ndim == 2 else 0
    check_tokens(attack.name, released, min(words, released.shape[1]) if fewer else words)
    if len(own) < batch:
        raise NotApplicable(f"{attack.name} sends {batch} own texts a round, got {len(own)}")
    check_words(attack, own)
    return released


def check_tokens(attack: str, released: Tensor, words: int) -> None:
    """Raise `NotApplicable` if a release [N, ...] has no token [D] for each word of a text."""
    if released.ndim != 3 or released.shape[1] != words:
        shape = list(released.shape[1:]) if released.ndim > 2 else "one vector"
        raise NotApplicable(
            f"{attack} needs a token for each of the {words} words of a text, but a row's release is {shape}: cut a "
            "transformer behind its embedding or a block"
        )


def check_words(attack: ImageAttack, own: Tensor) -> None:
    """Raise `NotApplicable` if the adversary's texts hold no word."""
    if not (own != PADDING).any():
        raise NotApplicable(f"{attack.name} learns words from own texts, but these {len(own)} contain only padding")


def seen_share(view: View) -> Tensor | None:
    """How much of each token a view contains, [N, T] from 0 (masked) to 1; None if there are no public weights."""
    return None if view.weights is None else view.weights.sum(1).float().expand(-1, view.smashed.shape[1])


def text_tokens(
    query: Query, words: Tensor, texts: Tensor, batch: int, draws: Generator
) -> tuple[Tensor, Tensor, int, Tensor | None]:
    """Send texts through the clients, and return their tokens.

    Args:
        query: function that sends one round of texts.
        words: ids of the words; texts hold indices into this list.
        texts: M texts of T words that fill whole rounds, int64 [M, T].
        batch: texts per round.

    Returns:
        Tokens [M, T, D]; the index of the text of each row of tokens, int64 [M]; the number of rows in a message; and
        the visible share of each token (`seen_share`), [M, T] or None.
    """
    tokens, sent, shares, rows = [], [], [], batch
    for number, part in enumerate(texts.split(batch)):
        answer = query(words[part], draws)
        rows = rows_a_message(answer.view)
        tokens.append(answer.view.smashed.float())
        sent.append(number * batch + answer.members[:, 0])
        shares.append(seen_share(answer.view))
    seen = None if shares[0] is None else torch.cat([given(share) for share in shares])
    return torch.cat(tokens), torch.cat(sent), rows, seen


def drawn_texts(own: Tensor, words: int, padding: int, draws: Generator) -> Tensor:
    """Draw texts [M, T] of uniformly random words below `words`, with the lengths of the adversary's texts [N, T]."""
    there = own != padding
    count = ceil(_DRAWN * words / max(1.0, float(there.sum(1).float().mean())))
    like = torch.randint(len(own), (count,), generator=draws, device=own.device)
    drawn = torch.randint(words, (count, own.shape[1]), generator=draws, device=own.device)
    return torch.where(there[like], drawn, own[like])


def mean_tokens(tokens: Tensor, labels: Tensor, vectors: Tensor) -> Tensor:
    """Average the tokens [M, D] of each word, [words, D]; a word without tokens keeps its vector."""
    total = torch.zeros_like(vectors).index_add_(0, labels, tokens)
    count = labels.bincount(minlength=len(vectors)).unsqueeze(1)
    return torch.where(count > 0, total / count.clamp_min(1), vectors)


def counts_by_place(texts: Tensor, words: int) -> Tensor:
    """Count how often each word stands at each place of texts [N, T]: int64 [T, words]."""
    return torch.stack([there.bincount(minlength=words) for there in texts.T])


class WordMeans:
    """A model of released tokens: the mean of the token's word, plus a shift of its place, plus Gaussian scatter.

    All words have the same scatter.

    Args:
        tokens: noise-free tokens of M known texts of T words, [M, T, D].
        texts: the words of these texts, int64 [M, T].
        own: number of real texts, which come first; the others consist of random words.
        words: number of words in the vocabulary.

    Attributes:
        means: mean token of each word, [words, D].
        places: shift of a token at each place, [T, D].
        common: commonest word of each place in the adversary's texts, int64 [T]; 0 if there are none.
        written: cost of each word in nats (the negative logarithm of its frequency), [words].
        least: lower limit of the assumed noise variance.
    """

    def __init__(self, tokens: Tensor, texts: Tensor, own: int, words: int) -> None:
        self.places = torch.zeros_like(tokens[0])
        for _ in range(_ROUNDS):
            plain = (tokens - self.places).flatten(0, 1)
            self.means = mean_tokens(plain, texts.flatten(), plain.new_zeros(words, plain.shape[1]))
            self.places = (tokens - self.means[texts]).mean(0)
        apart = (tokens - self.places - self.means[texts]).flatten(0, 1)
        self._scatter = apart.T @ apart / len(apart)
        like = tokens[:own] if own else tokens
        spread = torch.cov(like.flatten(0, 1).T)
        self._quiet = torch.linalg.eigh(spread).eigenvectors[:, : max(1, len(spread) // _QUIET)]
        self._stirred = (like.flatten(0, 1) @ self._quiet).var(0).mean()
        self.least = _LEAST * float(spread.trace()) / len(spread)
        self._there = counts_by_place(texts[:own], words) if own else texts.new_ones(len(self.places), words)
        self.common = self._there.argmax(1)
        self.written = _nats(self._there.sum(0))

    def noise(self, released: Tensor) -> float:
        """Estimate the noise variance of released tokens [N, T, D]: the part that words and contexts do not explain."""
        stirred = (released.flatten(0, 1) @ self._quiet).var(0).mean()
        return max(self.least, float(stirred - self._stirred))

    def costs(self, tokens: Tensor, noise: float) -> Tensor:
        """The cost of each word for each of n tokens, in nats, [n, words]; the lowest cost marks the likeliest word.

        Args:
            tokens: tokens [n, D], without the shift of their place.
            noise: variance of the noise on each number.
        """
        white = self._white(noise)
        return distances(tokens @ white, self.means @ white) / 2 + self.written

    def costs_of_places(self, released: Tensor, words: Tensor, noise: float) -> Tensor:
        """Cost in nats of place s for token t of a row, [n, T, T] (by row, t, s), given the words, int64 [n, T]."""
        white = self._white(noise)
        there = distances((released - self.means[words]) @ white, self.places @ white) / 2
        return there + _nats(self._there, 1).T[words]

    def _white(self, noise: float) -> Tensor:
        return _inverse_root(self._scatter + noise * torch.eye(len(self._scatter), device=self._scatter.device))


def whitening(tokens: Tensor, means: Tensor) -> Tensor:
    """A matrix W [D, D] for which tokens · W [M, D] scatter equally in all directions around their words' means · W."""
    apart, own = tokens - means, torch.eye(tokens.shape[1], device=tokens.device)
    return _inverse_root(apart.T @ apart / len(apart) + _LEAST_SCATTER * tokens.var(0).mean() * own)


def _inverse_root(scatter: Tensor) -> Tensor:
    """A whitening matrix W [D, D] of a scatter S [D, D]: Wᵀ · S · W is the identity."""
    root, own = torch.linalg.cholesky(scatter), torch.eye(len(scatter), device=scatter.device)
    white: Tensor = torch.linalg.solve_triangular(root, own, upper=False).T
    return white


def _nats(counts: Tensor, dim: int = 0) -> Tensor:
    """Negative logarithms of the shares of counts along `dim`; a count of 0 is replaced by 1/2."""
    counts = counts.clamp_min(0.5)
    return counts.sum(dim, keepdim=True).log() - counts.log()


class Discriminant:
    """A linear classifier from tokens to words: the likeliest word if tokens scatter equally around each word's mean.

    Args:
        tokens: M tokens of known words, [M, D].
        labels: the words of these tokens, int64 [M].
        counts: how often each word occurs in the adversary's texts, [words].

    Source: Fisher 1936, linear discriminants.
    """

    def __init__(self, tokens: Tensor, labels: Tensor, counts: Tensor) -> None:
        means = mean_tokens(tokens, labels, tokens.new_zeros(len(counts), tokens.shape[1]))
        self._white = whitening(tokens, means[labels])
        self._means, self._prior = means @ self._white, counts.clamp_min(0.5).log()

    def name(self, released: Tensor) -> Tensor:
        """Find the likeliest word of each token: [N, T, D] -> int64 [N, T]."""
        whitened = released.flatten(0, 1) @ self._white

        def words(part: slice) -> Tensor:
            return (distances(whitened[part], self._means) / 2 - self._prior).argmin(1)

        return in_chunks(words, len(whitened), max(1, _TABLE // len(self._means))).view(released.shape[:2])

    def linear(self) -> tuple[Tensor, Tensor]:
        """The weights [words, D] and biases [words] of the words' logits, which are linear in a token."""
        return self._means @ self._white.T, self._prior - self._means.square().sum(1) / 2
