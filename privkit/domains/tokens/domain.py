"""The domain of token sequences: checks, constant guesses, and scores of guesses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from privkit.attacks.scores.tokens import PADDING, commonest_tokens, rouge_1
from privkit.domains.domain import Domain, RecordValues, repeated_prints
from privkit.errors import DataError, UsageError
from privkit.shared.measures import TOKENS, Records

UNKNOWN_ID = 1  # the id of a token outside the vocabulary; id 0 is the padding at the end of a sequence
_ORDER = 1e-3  # weight of misplaced tokens; one word changes ROUGE-1 by more in texts of up to 1,000 words


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Implements `Domain` for texts: N sequences of T token ids are int64 [N, T], padded with id 0 at the end.

    `x != PADDING` is the mask of the real tokens of a batch `x`.

    Attributes:
        length: number T ≥ 1 of tokens in a sequence; longer texts are cut.
        vocabulary: the public list of tokens, such as words; entry i is the token with id i. Ids 0 and 1 stand for
            padding and for unknown tokens.
        separator: text between two tokens of a displayed sequence.

    >>> names = Tokens(length=4, vocabulary=("", "?", "a", "n"), separator="")
    >>> names.shown(torch.tensor([[2, 3, 3, 2], [2, 3, 0, 0]]))
    ['anna', 'an']
    """

    kind: ClassVar[Records] = TOKENS
    name: ClassVar[str] = TOKENS.name
    records: ClassVar[str] = TOKENS.noun

    length: int
    vocabulary: tuple[str, ...] = field(repr=False)
    separator: str = " "

    def __post_init__(self) -> None:
        if self.length < 1 or len(self.vocabulary) <= UNKNOWN_ID:
            raise ValueError(
                f"a text has a length >= 1, and a vocabulary begins with a token for padding and one for unknown "
                f"tokens; got length={self.length} and {len(self.vocabulary)} tokens"
            )

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    def check(self, x: Tensor) -> None:
        if x.ndim != 2 or x.dtype != torch.int64 or x.shape[1] != self.length:
            raise DataError(f"token sequences must be int64 [N, {self.length}], got {x.dtype} {list(x.shape)}")
        if len(x) and not 0 <= int(x.min()) <= int(x.max()) < len(self.vocabulary):
            raise DataError(
                f"token ids must lie in 0..{len(self.vocabulary) - 1}, got {int(x.min())}..{int(x.max())}; give "
                f"unknown tokens the id {UNKNOWN_ID}"
            )

    def zeros(self, count: int) -> Tensor:
        return torch.full((count, self.length), PADDING)

    def random(self, count: int, generator: Generator) -> Tensor:
        return torch.randint(UNKNOWN_ID, len(self.vocabulary), (count, self.length), generator=generator)

    def extremes(self, generator: Generator) -> Tensor:
        repeated = torch.linspace(UNKNOWN_ID, len(self.vocabulary) - 1, 8).long().unsqueeze(1).expand(-1, self.length)
        return torch.cat([self.zeros(1), repeated, self.random(8, generator)])

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        if not isinstance(given, Tokens):
            raise UsageError(f"{given.records} cannot stand in for token sequences; name auxiliary data of tokens")
        fitted = _ids(given, self).to(x.device)[x][:, : self.length]
        return torch.nn.functional.pad(fitted, (0, self.length - fitted.shape[1]), value=PADDING)

    def fingerprints(self, x: Tensor) -> list[bytes]:
        return [hashlib.sha256(ids.tobytes()).digest() for ids in x.cpu().contiguous().numpy()]

    def repeats(self, x: Tensor, known: Tensor, given: Domain) -> NDArray[np.bool_]:
        """Texts that agree in the tokens that both vocabularies have, up to the shorter length, count as the same."""
        if isinstance(given, Tokens) and given != self:
            read = self.fit(given.fit(known, self), given)  # `known` as the other dataset would have given it
            x, known = x[:, : given.length], read[:, : given.length]
        return repeated_prints(self.fingerprints(x), self.fingerprints(known))

    def warning(self, x: Tensor) -> str:
        known = x[x != PADDING]
        share = (known == UNKNOWN_ID).float().mean().item() if len(known) else 0.0
        if share <= 0.5:
            return ""
        return f"{100 * share:.0f} % of the tokens are unknown, so that every attack looks good; raise the vocabulary"

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        ids = auxiliary.cpu()
        tokens = torch.bincount(ids[ids != PADDING], minlength=len(self.vocabulary))
        places = torch.stack([torch.bincount(place, minlength=len(self.vocabulary)) for place in ids.unbind(1)])
        places[:, PADDING] = 0  # padding is no guess, even at a place where most sequences are padded
        return {
            "most_frequent_token": torch.full((self.length,), int(tokens.argmax())).to(auxiliary.device),
            "most_frequent_by_place": places.argmax(1).to(auxiliary.device),
            "commonest_tokens": torch.from_numpy(commonest_tokens(ids.numpy())).to(auxiliary.device),
        }

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, RecordValues]:
        """Score guessed text i against true text i, both [N, T]: a dictionary of values [N] in [0, 1], 1 for a perfect
        guess.

        "token_accuracy" is the share of right tokens and "exact" is 1 if all are right; both compare only the places of
        the true text's tokens. "rouge_1" measures common tokens and ignores their order, so shuffling a text does not
        change it. "rouge_l" measures the longest common subsequence.

        Source: Lin 2004, "ROUGE: a package for automatic evaluation of summaries", §2 and §3.2 (F-measures of common
        tokens and of the longest common subsequence, with equal weights of precision and recall).

        >>> names = Tokens(length=3, vocabulary=("", "?", "a", "b"))
        >>> found = names.scores(torch.tensor([[2, 3, 0]]), torch.tensor([[3, 3, 2]]))
        >>> {name: round(values.item(), 3) for name, values in found.items()}
        {'rouge_1': 0.8, 'token_accuracy': 0.5, 'rouge_l': 0.4, 'exact': 0.0}
        """
        a, b = truth.cpu().numpy(), guess.cpu().numpy()
        there = a != PADDING
        right = (a == b) & there
        tokens = np.maximum(there.sum(1), 1)
        both = there.sum(1) + (b != PADDING).sum(1)
        return {
            "rouge_1": rouge_1(a, b),
            "token_accuracy": right.sum(1) / tokens,
            "rouge_l": 2 * _common_subsequence(a, b) / np.maximum(both, 1),
            "exact": (right.sum(1) == there.sum(1)).astype(np.float64),
        }

    def distances(self, guess: Tensor, truth: Tensor) -> RecordValues:
        """Compute one minus the ROUGE-1 of each of G guesses, [G, T], and each of N true texts, [N, T]: float [G, N].
        The share of misplaced tokens, with a tiny weight, breaks ties.
        """
        a, b = truth.cpu().numpy(), guess.cpu().numpy()
        moved = np.stack([((a != one) & (a != PADDING)).mean(1) for one in b])
        return np.stack([1 - rouge_1(a, one[None]) for one in b]) + _ORDER * moved

    def shown(self, x: Tensor) -> list[str]:
        return [self.separator.join(self.vocabulary[i] for i in ids if i != PADDING) for ids in x.cpu().tolist()]


def _ids(given: Tokens, wanted: Tokens) -> Tensor:
    """The id of each token of the vocabulary `given` in the vocabulary `wanted`. Ids of padding and of unknown tokens
    stay, since their texts only serve to display them: "?" may also be a token with an id of its own.
    """
    special = UNKNOWN_ID + 1
    known = {token: number for number, token in enumerate(wanted.vocabulary) if number >= special}
    ids = [known.get(token, UNKNOWN_ID) for token in given.vocabulary[special:]]
    return torch.tensor([*range(special), *ids], dtype=torch.int64)


def _common_subsequence(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length [N] of the longest common subsequence of row i of `a` [N, T] and row i of `b` [N, S], without padding."""
    best = np.zeros((len(a), b.shape[1] + 1), dtype=np.int64)
    for token in a.T:
        same = (token[:, None] == b) & (b != PADDING)
        longer = np.maximum(best[:, 1:], best[:, :-1] + same)
        best = np.concatenate([best[:, :1], np.maximum.accumulate(longer, axis=1)], axis=1)
    return best[:, -1]
