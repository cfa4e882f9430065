"""Texts as token sequences: split, numbered by a vocabulary, cut and padded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import torch

from privkit.domains.base import Pools, RecordPool
from privkit.domains.tokens.domain import PADDING, UNKNOWN, Tokens
from privkit.errors import DataError

UNITS = ("words", "characters")
WORD = re.compile(r"[\w']+|[^\w\s]")


def split_text(text: str, unit: str) -> list[str]:
    """The tokens of a text in lower case.

    Args:
        text: any.
        unit: "words" (punctuation marks are tokens of their own) or "characters".

    >>> split_text("Not bad!", "words")
    ['not', 'bad', '!']
    """
    return WORD.findall(text.lower()) if unit == "words" else list(text.lower())


def read_texts(texts: Sequence[str], labels: Sequence[str], *, unit: str, length: int, vocabulary: int) -> Pools:
    """A dataset of labelled texts.

    Args:
        texts: N ≥ 1.
        labels: the class of each; classes are numbered in alphabetical order.
        unit: see `split_text`.
        length: T, tokens that are kept of each text.
        vocabulary: most ids; the most frequent tokens get one, and ties are broken alphabetically.

    Raises:
        DataError: if a text holds no token.

    >>> pools = read_texts(["anna", "bo"], ["a", "b"], unit="characters", length=3, vocabulary=10)
    >>> pools.train.domain.vocabulary, pools.train.x.tolist()
    (('', '?', 'a', 'n', 'b', 'o'), [[2, 3, 3], [4, 5, 0]])
    """
    tokens = [split_text(text, unit) for text in texts]
    empty = [number for number, found in enumerate(tokens, 1) if not found]
    if empty:
        raise DataError(f"text {empty[0]} holds no token; leave it out")
    counts = Counter(token for found in tokens for token in found)
    known = sorted(counts, key=lambda token: (-counts[token], token))[: vocabulary - 2]
    domain = Tokens(length=length, vocabulary=("", "?", *known), separator=" " if unit == "words" else "")
    number = {token: place for place, token in enumerate(known, 2)}
    x = torch.full((len(texts), length), PADDING)
    for row, found in zip(x, tokens, strict=True):
        kept = found[:length]
        row[: len(kept)] = torch.tensor([number.get(token, UNKNOWN) for token in kept])
    classes = sorted(set(labels))
    y = torch.tensor([classes.index(label) for label in labels])
    return Pools(train=RecordPool(x=x, y=y, domain=domain), test=None, classes=len(classes))


def check_reading(unit: str, length: int, vocabulary: int) -> None:
    """Refuse options that give no token sequences.

    Raises:
        ValueError: with what is allowed.
    """
    if unit not in UNITS:
        raise ValueError(f"unit must be words or characters, got {unit!r}")
    if not 1 <= length <= 4096:
        raise ValueError(f"length must be a whole number of tokens from 1 to 4096, got {length}")
    if vocabulary < 3:
        raise ValueError(f"vocabulary must be a whole number >= 3 (two ids are padding and unknown), got {vocabulary}")
