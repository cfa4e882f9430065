"""Amazon reviews with one to five stars, in the formats in which they are published."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privkit.constraints import Count
from privkit.domains.base import Pools
from privkit.domains.official import need_root
from privkit.domains.rows import BadRow, good_rows, numbered_lines, utf8
from privkit.domains.tokens.reading import Labelled, Length, TextReading, Vocabulary
from privkit.errors import shortened

FOLDER = "amazon_review_full_csv"
_STARS = ("1", "2", "3", "4", "5")
_CURE = 'write "stars","title","text", a JSON object with rating and text, or __label__stars text'


@dataclass(frozen=True, kw_only=True)
class AmazonReviews(TextReading):
    """Amazon Reviews Full: product reviews, 3,000,000 + 650,000; the label is the number of stars, 1 to 5.

    Attributes:
        file: a file of reviews in the data root instead of the official train.csv and test.csv, as it is or compressed
            by gzip (.gz): JSON lines of McAuley's releases, or fastText's lines. It has no test part.
        rows: reviews that are read of each file, from the first.

    The other options are those of `TextReading`. accurate_sl trains ALBERT, whose tokenizer.json `tokenizer` names.

    Source: McAuley and Leskovec 2013; train.csv and test.csv by Zhang, Zhao and LeCun 2015; accurate_sl, Table 7.
    """

    name: ClassVar[str] = "amazon_reviews"
    domain: ClassVar[str] = "tokens"

    length: Length = 128
    vocabulary: Vocabulary = 20_000
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
    """Stars and text of a line in one of the three formats.

    Raises:
        BadRow: if it is in none of them.

    >>> _review(b'"4","Good","It works.\\\\nTwice."'), _review(b'{"overall": 2.0, "reviewText": "Broke."}')
    (('4', 'Good It works. Twice.'), ('2', 'Broke.'))
    """
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
    """A row of Zhang's files, in which a line break is written as a backslash and an n."""
    try:
        fields = next(csv.reader([row], strict=True), [])
    except csv.Error as error:
        raise BadRow(f"is no row of CSV ({error})", _CURE) from None
    if len(fields) != 3:
        raise BadRow(f"has {len(fields)} fields instead of 3", _CURE)
    stars, title, text = fields
    return stars, f"{title} {text}".replace("\\n", " ")


def _of_json(row: str) -> Labelled:
    """A review of McAuley's releases: of 2014 and 2018 with `overall`, of 2023 with `rating`."""
    try:
        fields = json.loads(row)
        stars = fields["overall"] if "overall" in fields else fields["rating"]
        title = fields.get("summary") or fields.get("title") or ""
        text = fields["reviewText"] if "reviewText" in fields else fields["text"]
    except (ValueError, KeyError, RecursionError):
        raise BadRow("is no review in JSON", _CURE) from None
    shown = f"{stars:g}" if isinstance(stars, int | float) else str(stars)
    return shown, f"{title} {text}"
