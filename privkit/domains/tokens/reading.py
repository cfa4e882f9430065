"""Turns texts into token sequences: split, numbered by a vocabulary or a published tokenizer, cut and padded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from privkit.attacks.scores.tokens import PADDING
from privkit.constraints import Checked
from privkit.domains.base import TEST_ID_OFFSET, Pools, RecordPool
from privkit.domains.files import BadRow, file_inside, one_sentence, utf8
from privkit.domains.tokens.domain import UNKNOWN_ID, Tokens

_PADDING_NAMES = ("[PAD]", "<pad>")
_UNKNOWN_NAMES = ("[UNK]", "<unk>")


@dataclass(frozen=True, kw_only=True)
class _Subwords:
    """A Hugging Face tokenizer with new ids: 0 for padding, 1 for the unknown token, then the other tokens in order.
    ALBERT's ids have this order already, so its pretrained embedding fits.
    """

    tokenizer: Any  # a `tokenizers.Tokenizer`
    vocabulary: tuple[str, ...]  # the token of each new id; the first two are "" and "?"
    ids: NDArray[np.int64]  # the tokenizer's id -> the new id

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The new ids of each text, including special tokens, cut to at most `length` ids."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(length)
        return [self.ids[pieces.ids].tolist() for pieces in self.tokenizer.encode_batch(list(texts))]


def _read_tokenizer(name: str, root: Path, file: str) -> _Subwords:
    advice = "put a tokenizer.json of Hugging Face there, or name another with tokenizer=…"
    path = file_inside(name, root, file, advice)
    with one_sentence(name, path, advice):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
    by_id = sorted((number, token) for token, number in tokenizer.get_vocab(with_added_tokens=True).items())
    tokens = [token for _, token in by_id]
    ids = np.zeros(by_id[-1][0] + 1, dtype=np.int64)
    others = [number for number, token in by_id if token not in _PADDING_NAMES + _UNKNOWN_NAMES]
    ids[others] = np.arange(2, len(others) + 2)
    ids[[number for number, token in by_id if token in _UNKNOWN_NAMES]] = 1
    kept = [token for token in tokens if token not in _PADDING_NAMES + _UNKNOWN_NAMES]
    return _Subwords(tokenizer=tokenizer, vocabulary=("", "?", *kept), ids=ids)


TextUnit = Literal["words", "characters"]
Length = Annotated[int, Ge(1), Le(4096)]  # tokens that are kept of each text
VocabularySize = Annotated[int, Ge(3), "two ids are padding and unknown"]  # number of ids

_WORD = re.compile(r"[\w']+|[^\w\s]")

Labelled = tuple[str, str]  # the label of a text, and the text


def _split_text(text: str, unit: TextUnit) -> list[str]:
    return _WORD.findall(text.lower()) if unit == "words" else list(text.lower())


def decoded_text(raw: bytes) -> str:
    """Decode the bytes of a text; raises `BadRow` if it is empty or not UTF-8."""
    letters = utf8(raw)
    if not letters.strip():
        raise BadRow("holds no token", "delete it")
    return letters


def read_texts(
    train: Sequence[Labelled],
    test: Sequence[Labelled] = (),
    *,
    unit: TextUnit,
    length: int,
    vocabulary: int,
    notes: tuple[str, ...] = (),
) -> Pools:
    """Build a dataset of labelled texts, at least one of them for training; classes are numbered in alphabetical order.

    A token is a word or a character (`unit`). Ids 0 and 1 are padding and unknown tokens, and the most frequent tokens
    of the training texts get the other ids below `vocabulary`. The first `length` tokens of each text are kept.

    >>> pools = read_texts([("a", "anna"), ("b", "bo")], unit="characters", length=3, vocabulary=10)
    >>> pools.train.domain.vocabulary, pools.train.x.tolist()
    (('', '?', 'a', 'n', 'b', 'o'), [[2, 3, 3], [4, 5, 0]])
    """
    parts = [[_split_text(text, unit) for _, text in part] for part in (train, test)]
    counts = Counter(chain.from_iterable(parts[0]))
    known = sorted(counts, key=lambda token: (-counts[token], token))[: vocabulary - 2]
    number = {token: place for place, token in enumerate(known, 2)}
    domain = Tokens(length=length, vocabulary=("", "?", *known), separator=" " if unit == "words" else "")
    ids = [[[number.get(token, UNKNOWN_ID) for token in tokens[:length]] for tokens in part] for part in parts]
    return _numbered_texts(domain, ids, (train, test), notes)


def _numbered_texts(
    domain: Tokens,
    ids: Sequence[Sequence[Sequence[int]]],
    parts: Sequence[Sequence[Labelled]],
    notes: tuple[str, ...],
) -> Pools:
    classes = sorted({label for part in parts for label, _ in part})
    number = {label: place for place, label in enumerate(classes)}
    train, test = (
        RecordPool(
            x=_padded(texts, domain.length),
            y=torch.tensor([number[label] for label, _ in part], dtype=torch.int64),
            domain=domain,
            first_id=first_id,
        )
        for texts, part, first_id in zip(ids, parts, (0, TEST_ID_OFFSET), strict=True)
    )
    return Pools(train=train, test=test if len(test) else None, classes=len(classes), notes=notes)


def _padded(texts: Sequence[Sequence[int]], length: int) -> Tensor:
    x = np.full((len(texts), length), PADDING, dtype=np.int64)
    counts = np.array([len(ids) for ids in texts], dtype=np.int64)
    x[np.arange(length) < counts[:, None]] = list(chain.from_iterable(texts))
    return torch.from_numpy(x)


@dataclass(frozen=True, kw_only=True)
class TextReading(Checked):
    """Base of text datasets, with the options for reading texts.

    Attributes:
        unit: what one token is: "words" or "characters".
        length: number of tokens that are kept of each text.
        vocabulary: largest number of ids; rarer tokens count as unknown. The vocabulary comes from the training texts,
            and is taken as public.
        tokenizer: a Hugging Face `tokenizer.json` in the data root, such as ALBERT's. It replaces `unit` and
            `vocabulary`, and needs the package tokenizers. "" means none.
        skip_bad_rows: whether unusable rows (e.g. without text) are left out. An audit's results report their number.
    """

    domain: ClassVar[str] = "tokens"

    unit: TextUnit = "words"
    length: Length = 32
    vocabulary: VocabularySize = 2000
    tokenizer: str = ""
    skip_bad_rows: bool = False

    def read(
        self, name: str, root: Path, train: Sequence[Labelled], test: Sequence[Labelled], notes: tuple[str, ...]
    ) -> Pools:
        """Convert labelled texts to token sequences, as `read_texts` does; raises `DataError` for a bad tokenizer."""
        if not self.tokenizer:
            return read_texts(train, test, unit=self.unit, length=self.length, vocabulary=self.vocabulary, notes=notes)
        tokenizer = _read_tokenizer(name, root, self.tokenizer)
        domain = Tokens(length=self.length, vocabulary=tokenizer.vocabulary)
        ids = [tokenizer.encode([text for _, text in part], self.length) for part in (train, test)]
        return _numbered_texts(domain, ids, (train, test), notes)
