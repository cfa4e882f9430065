"""Texts as token sequences: split, numbered by a vocabulary, cut and padded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le

from privkit.domains.base import Pools, RecordPool
from privkit.domains.tokens.domain import PADDING, UNKNOWN, Tokens
from privkit.errors import DataError

Unit = Literal["words", "characters"]
Length = Annotated[int, Ge(1), Le(4096)]
"""Tokens that are kept of each text."""
Vocabulary = Annotated[int, Ge(3), "two ids are padding and unknown"]
"""Number of ids."""

WORD = re.compile(r"[\w']+|[^\w\s]")


def split_text(text: str, unit: Unit) -> list[str]:
    """The tokens of a text in lower case.

    Args:
        text: any.
        unit: "words" (punctuation marks are tokens of their own) or "characters".

    >>> split_text("Not bad!", "words")
    ['not', 'bad', '!']
    """
    return WORD.findall(text.lower()) if unit == "words" else list(text.lower())


def read_texts(texts: Sequence[str], labels: Sequence[str], *, unit: Unit, length: int, vocabulary: int) -> Pools:
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
