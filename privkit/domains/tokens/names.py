"""Names of people in 18 languages, which a network tells apart by their characters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privkit.domains.base import Pools
from privkit.domains.official import check_folder, need_root
from privkit.domains.rows import good_rows, numbered_lines
from privkit.domains.tokens.reading import Labelled, Length, TextReading, Unit, Vocabulary, text
from privkit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Names(TextReading):
    """Some 20,000 surnames of 18 languages, one file of names a language; the label is the language.

    The options are those of `TextReading`. There is no test part. Names are read in lower case.

    Source: Robertson, PyTorch tutorial "Classifying names with a character-level RNN"; accurate_sl, Table 1.
    """

    name: ClassVar[str] = "names"
    domain: ClassVar[str] = "tokens"

    unit: Unit = "characters"
    length: Length = 20
    vocabulary: Vocabulary = 256

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, "data/names/*.txt")
        advice = "unpack https://download.pytorch.org/tutorial/data.zip in the data root"
        check_folder(self.name, root / "data/names", advice)
        names: list[Labelled] = []
        notes: tuple[str, ...] = ()
        files = sorted((root / "data/names").glob("*.txt"))
        if not files:
            raise DataError(f"{self.name}: {root / 'data/names'} holds no .txt file of a language; {advice}")
        for file in files:
            lines = numbered_lines(self.name, root, str(file.relative_to(root)))
            own, left_out = good_rows(self.name, file, lines, text, skip_bad=self.skip_bad_rows)
            names += [(file.stem, name.strip()) for name in own]
            notes += left_out
        return self.read(self.name, root, names, (), notes)
