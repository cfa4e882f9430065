"""Published tokenizers: their ids, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from privkit.domains.tokens.texts import TextFile
from privkit.errors import DataError

SPECIAL = ["[CLS]", "[SEP]"]


def write(root: Path, tokens: list[str], unknown: str) -> None:
    """A tokenizer of whole words in Hugging Face's format, and three texts."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    ids = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in SPECIAL}
    template = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template += [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": ids},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    }
    (root / "tokenizer.json").write_text(json.dumps(content))
    (root / "texts.tsv").write_text("good\tA good film\nbad\tbad bad bad film film film\ngood\tbrilliant\n")


def opened(root: Path) -> Any:
    return TextFile(tokenizer="tokenizer.json", length=6).open(root, download=False, train_images=1)


@pytest.mark.parametrize(
    ("tokens", "unknown"),
    [
        (["<pad>", "<unk>", "[CLS]", "[SEP]", "a", "bad", "film", "good"], "<unk>"),  # in ALBERT's order
        (["[PAD]", "[CLS]", "a", "[UNK]", "bad", "[SEP]", "good", "film"], "[UNK]"),
        (["[CLS]", "[SEP]", "a", "bad", "film", "good", "[UNK]"], "[UNK]"),  # without padding
    ],
)
def test_padding_is_zero_unknown_is_one_and_the_others_keep_their_order(
    tmp_path: Path, tokens: list[str], unknown: str
) -> None:
    write(tmp_path, tokens, unknown)
    pools = opened(tmp_path)
    domain = pools.train.domain
    kept = [token for token in tokens if token not in ("<pad>", "[PAD]", unknown)]
    assert domain.vocabulary == ("", "?", *kept)
    shown = ["[CLS] a good film [SEP]", "[CLS] bad bad bad film [SEP]", "[CLS] ? [SEP]"]
    assert domain.shown(pools.train.x) == shown
    assert (pools.train.x[2, 3:] == 0).all()
    if tokens[0] == "<pad>":
        assert pools.train.x[0].tolist() == [2, 4, 7, 6, 3, 0]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ["<pad>", "<unk>", *SPECIAL], "<unk>")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read .*; put a tokenizer\.json of Hugging Face"):
        opened(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json is missing; put"):
        opened(tmp_path)
    with pytest.raises(DataError, match="lies outside of the data root"):
        TextFile(tokenizer="../tokenizer.json").open(tmp_path, download=False, train_images=1)


def test_the_library_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["<pad>", "<unk>", *SPECIAL], "<unk>")
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # makes its import fail
    with pytest.raises(DataError, match=r"text_file needs one more package: pip install tokenizers$"):
        opened(tmp_path)
