"""Datasets of texts: one that ships inside an installed package, and a user's own file."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from privkit.constraints import Checked
from privkit.domains.base import Pools
from privkit.domains.official import check_files, need_root, one_sentence
from privkit.domains.tokens.reading import Length, Unit, Vocabulary, read_texts
from privkit.errors import DataError

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
        """Read the packaged list; see `DatasetSpec.open`."""
        return _definitions(self.length, self.vocabulary)


@cache
def _definitions(length: int, vocabulary: int) -> Pools:
    """The definitions, split once: a run opens its dataset several times."""
    import timm.data

    path = Path(timm.data.__file__).parent / "_info" / "imagenet_synset_to_definition.txt"
    texts, labels = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        synset, _, text = line.partition("\t")
        kind = next((kind for kind, (low, high) in KINDS.items() if low <= int(synset[1:]) < high), None)
        if kind is not None:
            texts.append(text)
            labels.append(kind)
    return read_texts(texts, labels, unit="words", length=length, vocabulary=vocabulary)


@dataclass(frozen=True, kw_only=True)
class TextFile(Checked):
    """A user's texts: a file in the data root with one text a line, its label first, then a tab.

    Attributes:
        file: name of the file inside the data root, as it is or compressed by gzip (.gz); UTF-8.
        unit: "words" or "characters".
        length: tokens that are kept of each text.
        vocabulary: most ids; rarer tokens are unknown. It is counted on all texts of the file, and taken as public.

    Source: the user's.
    """

    name: ClassVar[str] = "text_file"
    domain: ClassVar[str] = "tokens"

    file: str = "texts.tsv"
    unit: Unit = "words"
    length: Length = 32
    vocabulary: Vocabulary = 2000

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Read the file; see `DatasetSpec.open`."""
        root = need_root(self.name, root, self.file)
        texts, labels = [], []
        for number, line in enumerate(lines(self.name, root, self.file), 1):
            label, tab, text = line.partition("\t")
            if not tab:
                raise DataError(f"{self.name}: line {number} of {root / self.file} has no tab; write label, tab, text")
            texts.append(text)
            labels.append(label)
        if not texts:
            raise DataError(f"{self.name}: {root / self.file} is empty; write one text a line")
        return read_texts(texts, labels, unit=self.unit, length=self.length, vocabulary=self.vocabulary)


def lines(name: str, root: Path, file: str) -> list[str]:
    """Lines of a text file in the data root, blank ones left out.

    Args:
        name: of the dataset.
        root: the data root.
        file: its name there, without `..`.

    Raises:
        DataError: if it is missing, outside of the root or no text.
    """
    path, advice = root / file, "put a UTF-8 text file there, or name another with file=…"
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"{name}: {file} lies outside of the data root {root}; name a file inside it")
    check_files(name, root, [(file, None)], advice)
    with one_sentence(name, path, advice):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return [line for line in raw.decode("utf-8").splitlines() if line.strip()]
