"""Datasets of texts: one that ships inside an installed package, and a user's own file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from privkit.constraints import Checked
from privkit.domains.base import Pools
from privkit.domains.official import need_root
from privkit.domains.rows import BadRow, good_rows, numbered_lines, utf8
from privkit.domains.tokens.reading import Labelled, Length, TextReading, Vocabulary, read_texts, text

KINDS = {
    "animal": (1_310_000, 2_666_500),
    "artifact": (2_666_500, 4_620_000),
    "food": (7_550_000, 7_935_000),
    "person": (9_604_000, 10_810_000),
    "plant": (11_530_000, 13_130_000),
}
"""Kind -> the range of WordNet 3.0 offsets that its nouns lie in: WordNet's file of nouns is ordered by kind."""


@dataclass(frozen=True, kw_only=True)
class Definitions(Checked):
    """20,000 definitions of English nouns; the label says what is defined: an animal, an artifact, food, …

    Attributes:
        length: tokens that are kept of each definition.
        vocabulary: number of ids.

    Source: WordNet 3.0 (Fellbaum 1998), as it ships in timm's list of ImageNet's classes.

    >>> pools = Definitions().open(None, download=False, train_images=10)
    >>> pools.classes, len(pools.train.domain.vocabulary)
    (5, 2000)
    """

    name: ClassVar[str] = "definitions"
    domain: ClassVar[str] = "tokens"

    length: Length = 16
    vocabulary: Vocabulary = 2000

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        return _definitions(self.length, self.vocabulary)


@cache
def _definitions(length: int, vocabulary: int) -> Pools:
    """The definitions, split once: a run opens its dataset several times."""
    import timm.data

    path = Path(timm.data.__file__).parent / "_info" / "imagenet_synset_to_definition.txt"
    texts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        synset, _, definition = line.partition("\t")
        kind = next((kind for kind, (low, high) in KINDS.items() if low <= int(synset[1:]) < high), None)
        if kind is not None:
            texts.append((kind, definition))
    return read_texts(texts, unit="words", length=length, vocabulary=vocabulary)


@dataclass(frozen=True, kw_only=True)
class TextFile(TextReading):
    """A user's texts: a file in the data root with one text a line, its label first, then a tab.

    Attributes:
        file: name of the file inside the data root, as it is or compressed by gzip (.gz); UTF-8.

    The other options are those of `TextReading`. Blank lines are left out.

    Source: the user's.
    """

    name: ClassVar[str] = "text_file"
    domain: ClassVar[str] = "tokens"

    file: str = "texts.tsv"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, self.file)
        lines = ((place, line) for place, line in numbered_lines(self.name, root, self.file) if line.strip())
        texts, notes = good_rows(self.name, root / self.file, lines, _labelled, skip_bad=self.skip_bad_rows)
        return self.read(self.name, root, texts, (), notes)


def _labelled(line: bytes) -> Labelled:
    """Label and text of a line."""
    label, tab, own = line.partition(b"\t")
    if not tab:
        raise BadRow("has no tab", "write label, tab, text")
    return utf8(label), text(own)
