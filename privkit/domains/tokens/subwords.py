"""Subwords of a published tokenizer: a `tokenizer.json`, as it lies beside the weights of Hugging Face's models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privkit.domains.official import file_inside, one_sentence

_PADDING_NAMES = ("[PAD]", "<pad>")
_UNKNOWN_NAMES = ("[UNK]", "<unk>")


@dataclass(frozen=True, kw_only=True)
class Subwords:
    """A tokenizer whose padding has id 0 and whose unknown token has id 1; the others keep their order.

    ALBERT's ids have this order already, so its pretrained embedding fits.

    Attributes:
        tokenizer: a `tokenizers.Tokenizer`.
        vocabulary: the token of each of our ids; the first two are "" and "?".
        ids: the tokenizer's id -> our id.
    """

    tokenizer: Any
    vocabulary: tuple[str, ...]
    ids: NDArray[np.int64]

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Our ids of each text, at most `length`, special tokens included."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(length)
        return [self.ids[pieces.ids].tolist() for pieces in self.tokenizer.encode_batch(list(texts))]


def read_tokenizer(name: str, root: Path, file: str) -> Subwords:
    """A tokenizer from the data root.

    Args:
        name: of the dataset.
        root: the data root.
        file: its path there, without `..`.

    Raises:
        DataError: if it is missing, outside of the root, or is no tokenizer; or if the package tokenizers is missing.
    """
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
    return Subwords(tokenizer=tokenizer, vocabulary=("", "?", *kept), ids=ids)
