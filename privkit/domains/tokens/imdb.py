"""The IMDB reviews, from the official archive or from its unpacked folder."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from privkit.domains.base import Pools
from privkit.domains.files import BadRow, advice_on_missing, good_rows, need_root, one_sentence, reason
from privkit.domains.tokens.reading import Labelled, Length, TextReading, VocabularySize, decoded_text
from privkit.errors import DataError

ARCHIVE = "aclImdb_v1.tar.gz"
_URL, MD5 = f"https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE}", "7c2ac02c03563afcf9b574c7e56c153a"
_AGAIN = "fetch the official archive again"
_LABELS = ("neg", "pos")
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_LISTED = re.compile(r"aclImdb/(train|test)/urls_(neg|pos)\.txt")


@dataclass(frozen=True, kw_only=True)
class Imdb(TextReading):
    """25,000 training and 25,000 test film reviews; the label says whether a review is positive.

    The options are those of `TextReading`. The paper accurate_sl reads 256 tokens of BERT's cased tokenizer: to do
    the same, put BERT's tokenizer.json into the data root and name it in `tokenizer`.

    Source: Maas et al. 2011; accurate_sl, Table 1.
    """

    name: ClassVar[str] = "imdb"

    length: Length = 256
    vocabulary: VocabularySize = 20_000

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, f"aclImdb/ or {ARCHIVE}")
        advice = advice_on_missing(download)
        folder, archive = root / "aclImdb", root / ARCHIVE
        place = folder if folder.is_dir() else archive
        with one_sentence(self.name, place, advice):
            if download and place == archive:
                from torchvision.datasets.utils import download_url

                download_url(_URL, str(root), md5=MD5)
            if place == archive and not archive.is_file():
                raise DataError(f"{self.name}: {archive} is missing, and so is the folder aclImdb; {advice}")
            files = _of_folder(folder) if place == folder else _of_archive(archive)
        if part := files.empty():
            why = f" ({files.damage})" if files.damage else ""
            raise DataError(f"{self.name}: {place} holds no review of {part}{why}; {_AGAIN}")
        (train, left_out), (test, also) = (
            good_rows(self.name, place, files.rows(part), _labelled, skip_bad=self.skip_bad_rows)
            for part in ("train", "test")
        )
        return self.read(self.name, root, train, test, left_out + also)


@dataclass(frozen=True, kw_only=True)
class _Files:
    # (part, label) -> number of the review -> its text
    reviews: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)
    # (part, label) -> number of reviews in the official list
    listed: dict[tuple[str, str], int] = field(default_factory=dict)
    damage: str = ""  # why the archive could not be read to its end; "" for an undamaged archive

    def add(self, name: str, content: bytes) -> None:
        if match := _REVIEW.fullmatch(name):
            self.reviews.setdefault((match[1], match[2]), {})[int(match[3])] = content
        elif match := _LISTED.fullmatch(name):
            self.listed[match[1], match[2]] = content.count(b"\n")

    def empty(self) -> str:
        """The name of a part and label that has no reviews; "" if every part and label has some."""
        parts = ((part, label) for part in ("train", "test") for label in _LABELS)
        return next(("/".join(part) for part in parts if not self.reviews.get(part)), "")

    def rows(self, part: str) -> Iterator[tuple[str, tuple[str, bytes | None]]]:
        """Yield (place, (label, text)) for each review of a part; the text is None if the review's file is missing. For
        a damaged archive, ("the end", (`damage`, None)) comes first.
        """
        if self.damage:
            yield "the end", (self.damage, None)
        for label in _LABELS:
            there = self.reviews[part, label]
            for number in sorted({*there, *range(self.listed.get((part, label), 0))}):
                yield f"review {number} of {part}/{label}", (label, there.get(number))


def _of_folder(folder: Path) -> _Files:
    files = _Files()
    for pattern in ("*/urls_*.txt", "*/neg/*.txt", "*/pos/*.txt"):
        for path in folder.glob(pattern):
            files.add(f"aclImdb/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return files


def _of_archive(path: Path) -> _Files:
    """Read the reviews of the archive, up to the point where it is damaged."""
    files = _Files()
    try:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
            for member in archive:
                if (content := archive.extractfile(member)) is not None:
                    files.add(member.name, content.read())
            while unpacked.read(1 << 20):  # to its end, where gzip compares the checksum
                pass
    except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
        return replace(files, damage=f"cannot be read: {reason(error)}")
    return files


def _labelled(row: tuple[str, bytes | None]) -> Labelled:
    label, content = row
    if content is None:
        raise BadRow("is missing" if label in _LABELS else label, _AGAIN)
    return label, decoded_text(content)
