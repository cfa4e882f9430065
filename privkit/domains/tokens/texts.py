"""Datasets of texts: WordNet definitions, names, Amazon reviews, and a user's own file."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from privkit.constraints import Checked, Count
from privkit.domains.base import Pools
from privkit.domains.files import BadRow, check_exists, good_rows, need_root, numbered_lines, utf8
from privkit.domains.tokens.reading import (
    Labelled,
    Length,
    TextReading,
    TextUnit,
    VocabularySize,
    decoded_text,
    read_texts,
)
from privkit.errors import DataError, shortened

_KINDS = {
    "animal": (1_310_000, 2_666_500),
    "artifact": (2_666_500, 4_620_000),
    "food": (7_550_000, 7_935_000),
    "person": (9_604_000, 10_810_000),
    "plant": (11_530_000, 13_130_000),
}
"""Kind -> the range of its nouns' offsets in WordNet 3.0, whose file of nouns is ordered by kind."""


@dataclass(frozen=True, kw_only=True)
class Definitions(Checked):
    """20,527 definitions of English nouns; the label is the kind of the defined thing: an animal, an artifact, food, …

    Attributes:
        length: number of tokens kept of each definition.
        vocabulary: largest number of ids; rarer words count as unknown.

    Source: WordNet 3.0 (Fellbaum 1998), as it ships in timm's list of ImageNet's classes.

    >>> pools = Definitions().open(None, download=False, train_images=10)
    >>> pools.classes, len(pools.train.domain.vocabulary)
    (5, 2000)
    """

    name: ClassVar[str] = "definitions"
    domain: ClassVar[str] = "tokens"

    length: Length = 16
    vocabulary: VocabularySize = 2000

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        return _definitions(self.length, self.vocabulary)


@cache
def _definitions(length: int, vocabulary: int) -> Pools:
    """The definitions as token sequences; cached, since a run opens its dataset several times."""
    import timm.data

    path = Path(timm.data.__file__).parent / "_info" / "imagenet_synset_to_definition.txt"
    texts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        synset, _, definition = line.partition("\t")
        kind = next((kind for kind, (low, high) in _KINDS.items() if low <= int(synset[1:]) < high), None)
        if kind is not None:
            texts.append((kind, definition))
    return read_texts(texts, unit="words", length=length, vocabulary=vocabulary)


@dataclass(frozen=True, kw_only=True)
class TextFile(TextReading):
    """A user's texts: a file in the data root with one text per line, in the form label, tab, text.

    Attributes:
        file: name of the file inside the data root, plain or gzip (.gz); UTF-8.

    The other options are those of `TextReading`. Blank lines are left out.

    Source: the user's.
    """

    name: ClassVar[str] = "text_file"

    file: str = "texts.tsv"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, self.file)
        lines = ((place, line) for place, line in numbered_lines(self.name, root, self.file) if line.strip())
        texts, notes = good_rows(self.name, root / self.file, lines, _labelled, skip_bad=self.skip_bad_rows)
        return self.read(self.name, root, texts, (), notes)


def _labelled(line: bytes) -> Labelled:
    label, tab, own = line.partition(b"\t")
    if not tab:
        raise BadRow("has no tab", "write label, tab, text")
    return utf8(label), decoded_text(own)


@dataclass(frozen=True, kw_only=True)
class Names(TextReading):
    """Some 20,000 surnames in 18 languages, with one file per language; the label is the language.

    The options are those of `TextReading`. There is no test part. Names are read in lower case.

    Source: Robertson, PyTorch tutorial "Classifying names with a character-level RNN"; accurate_sl, Table 1.
    """

    name: ClassVar[str] = "names"

    unit: TextUnit = "characters"
    length: Length = 20
    vocabulary: VocabularySize = 256

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, "data/names/*.txt")
        advice = "unpack https://download.pytorch.org/tutorial/data.zip in the data root"
        check_exists(self.name, root / "data/names", advice)
        names: list[Labelled] = []
        notes: tuple[str, ...] = ()
        files = sorted((root / "data/names").glob("*.txt"))
        if not files:
            raise DataError(f"{self.name}: {root / 'data/names'} holds no .txt file of a language; {advice}")
        for file in files:
            lines = numbered_lines(self.name, root, str(file.relative_to(root)))
            own, left_out = good_rows(self.name, file, lines, decoded_text, skip_bad=self.skip_bad_rows)
            names += [(file.stem, name.strip()) for name in own]
            notes += left_out
        return self.read(self.name, root, names, (), notes)


FOLDER = "amazon_review_full_csv"
_STARS = ("1", "2", "3", "4", "5")
_CURE = 'write "stars","title","text", a JSON object with rating and text, or __label__stars text'


@dataclass(frozen=True, kw_only=True)
class AmazonReviews(TextReading):
    """Amazon Reviews Full: 3,000,000 training and 650,000 test reviews of products; the label is 1 to 5 stars.

    Attributes:
        file: a plain or gzip (.gz) file of reviews in the data root, in McAuley's JSON lines or in fastText's format.
            It replaces the official train.csv and test.csv, and has no test part.
        rows: number of reviews read from the start of each file.

    The other options are those of `TextReading`. The paper accurate_sl trains ALBERT: to do the same, name ALBERT's
    tokenizer.json in `tokenizer`.

    Source: McAuley and Leskovec 2013; train.csv and test.csv by Zhang, Zhao and LeCun 2015; accurate_sl, Table 7.
    """

    name: ClassVar[str] = "amazon_reviews"

    length: Length = 128
    vocabulary: VocabularySize = 20_000
    file: str = ""
    rows: Count = 100_000

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, self.file or f"{FOLDER}/train.csv and test.csv")
        files = [self.file] if self.file else [f"{FOLDER}/train.csv", f"{FOLDER}/test.csv"]
        parts: list[list[Labelled]] = []
        notes: tuple[str, ...] = ()
        for file in files:
            lines = numbered_lines(self.name, root, file, most=self.rows)
            own, left_out = good_rows(self.name, root / file, lines, _review, skip_bad=self.skip_bad_rows)
            parts.append(own)
            notes += left_out
        return self.read(self.name, root, parts[0], parts[1] if len(parts) > 1 else (), notes)


def _review(line: bytes) -> Labelled:
    """Parse a line of JSON, fastText's format or the official CSV into stars and text; raises `BadRow` for others."""
    row = utf8(line)
    if row.startswith("{"):
        stars, text = _of_json(row)
    elif row.startswith("__label__"):
        stars, _, text = row.removeprefix("__label__").partition(" ")
    else:
        stars, text = _of_csv(row)
    if stars not in _STARS:
        raise BadRow(f"has {shortened(stars)} stars", "give each review 1 to 5 stars")
    if not text.strip():
        raise BadRow("holds no token", "delete it")
    return stars, text.strip()


def _of_csv(row: str) -> Labelled:
    """Parse a row of Zhang's files into stars and text; there, a backslash and n stand for a line break."""
    try:
        fields = next(csv.reader([row], strict=True), [])
    except csv.Error as error:
        raise BadRow(f"is not a row of CSV ({error})", _CURE) from None
    if len(fields) != 3:
        raise BadRow(f"has {len(fields)} fields instead of 3", _CURE)
    stars, title, text = fields
    return stars, f"{title} {text}".replace("\\n", " ")


def _of_json(row: str) -> Labelled:
    """Parse a line of McAuley's releases into stars (`overall` in 2014 and 2018, `rating` in 2023) and text."""
    try:
        fields = json.loads(row)
        stars = fields["overall"] if "overall" in fields else fields["rating"]
        title = fields.get("summary") or fields.get("title") or ""
        text = fields["reviewText"] if "reviewText" in fields else fields["text"]
    except (ValueError, KeyError, RecursionError):
        raise BadRow("is not a review in JSON", _CURE) from None
    shown = f"{stars:g}" if isinstance(stars, int | float) else str(stars)
    return shown, f"{title} {text}"
