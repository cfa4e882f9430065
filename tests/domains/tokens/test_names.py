"""Names: the official folder, whole and damaged, and real names of 18 languages."""

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from privkit.domains.tokens.texts import Names
from privkit.errors import DataError

FILES = {"Irish": "O'Neal\nBrady\n", "German": "Müller\n", "Polish": "Nowak\nWójcik"}


def write(root: Path, files: dict[str, str]) -> Path:
    folder = root / "data" / "names"
    folder.mkdir(parents=True)
    for language, names in files.items():
        (folder / f"{language}.txt").write_text(names, encoding="utf-8")
    return folder


def test_every_file_is_a_language(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    pools: Any = Names().open(tmp_path, download=False, train_images=1)
    assert (pools.classes, pools.test, pools.notes) == (3, None, ())
    assert pools.train.domain.shown(pools.train.x) == ["müller", "o'neal", "brady", "nowak", "wójcik"]
    assert pools.train.targets().tolist() == [0, 1, 1, 2, 2]  # German, Irish, Polish
    assert pools.train.domain.shape == (20,)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"Ivanov\n\nPetrov\n", r"line 2 of .*Russian\.txt holds no token; delete it, .* 2 of 3 rows"),
        (b"Ivanov\n \t\n", r"line 2 of .*Russian\.txt holds no token"),
        (b"Ivanov\nIvanovi\xe6\n", r"line 2 of .*Russian\.txt is not UTF-8 text"),
    ],
)
def test_empty_names_and_other_encodings_are_named(tmp_path: Path, content: bytes, why: str) -> None:
    (write(tmp_path, FILES) / "Russian.txt").write_bytes(content)
    with pytest.raises(DataError, match=why):
        Names().open(tmp_path, download=False, train_images=1)
    pools: Any = Names(skip_bad_rows=True).open(tmp_path, download=False, train_images=1)
    assert pools.classes == 4
    assert "of Russian.txt were left out" in pools.notes[0]


def test_missing_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data/names is missing; unpack"):
        Names().open(tmp_path, download=False, train_images=1)
    folder = write(tmp_path, {})
    with pytest.raises(DataError, match=r"holds no \.txt file of a language; unpack"):
        Names().open(tmp_path, download=False, train_images=1)
    (folder / "Irish.txt").write_text("")
    with pytest.raises(DataError, match=r"Irish\.txt holds no row"):
        Names().open(tmp_path, download=False, train_images=1)


def test_real_names(shared: Path, tmp_path: Path) -> None:
    with gzip.open(shared / "data/text/names_18lang.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [*csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    languages = sorted({language for language, _ in rows})
    write(tmp_path, {own: "\n".join(name for language, name in rows if language == own) for own in languages})
    pools: Any = Names().open(tmp_path, download=False, train_images=1)
    assert (pools.classes, len(pools.train)) == (18, 20_050)
    shown = pools.train.domain.shown(pools.train.x)
    expected = [name.strip().lower()[:20] for own in languages for language, name in rows if language == own]
    assert shown == expected
