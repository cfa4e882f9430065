"""IMDB: the official folder and archive, whole and damaged, and real reviews."""

import csv
import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest

from privkit.domains.base import TEST_ID_OFFSET
from privkit.domains.tokens.imdb import ARCHIVE, Imdb
from privkit.errors import DataError

MANY = 40


def opened(root: Path, **options: object) -> Any:
    spec = Imdb(length=8, vocabulary=100, **options)  # type: ignore[arg-type]
    return spec.open(root, download=False, train_images=1)


def write(root: Path, count: int = 3) -> Path:
    """`count` reviews of each label in both parts, with their lists and files that nobody needs."""
    folder = root / "aclImdb"
    for part in ("train", "test"):
        for label, rating in (("neg", 2), ("pos", 9)):
            (folder / part / label).mkdir(parents=True)
            for number in range(count):
                review = f"a {label} film, number {number} of {part}"
                (folder / part / label / f"{number}_{rating}.txt").write_text(review)
            (folder / part / f"urls_{label}.txt").write_text("http://www.imdb.com/title/x\n" * count)
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_bytes(b"\xff")
    (folder / "README").write_text("Large Movie Review Dataset v1.0")
    return folder


def pack(folder: Path) -> Path:
    """The archive of the folder, which is then gone."""
    archive = folder.parent / ARCHIVE
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, "aclImdb")
    folder.rename(folder.parent / "elsewhere")
    return archive


def test_folder_and_archive_hold_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path)
    unpacked = opened(tmp_path)
    pack(folder)
    for pools in (unpacked, opened(tmp_path)):
        assert (pools.classes, pools.notes) == (2, ())
        assert pools.train.targets().tolist() == [0, 0, 0, 1, 1, 1]
        assert pools.train.domain.shown(pools.train.x)[4] == "a pos film , number 1 of train"
        assert pools.test is not None
        assert pools.test.domain.shown(pools.test.x)[0] == "a neg film , number 0 of ?"  # "test" is in no training text
        assert pools.test.take(pools.test.targets()[:1]).ids.tolist() == [TEST_ID_OFFSET]


def test_a_review_that_the_list_names_is_missed(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "train" / "pos" / "1_9.txt").unlink()
    with pytest.raises(DataError, match=r"review 1 of train/pos of .*aclImdb is missing; fetch .* the 5 of 6 rows"):
        opened(tmp_path)
    assert opened(tmp_path, skip_bad_rows=True).notes == (
        "1 of 6 rows of aclImdb were left out as bad, the first because review 1 of train/pos is missing",
    )


@pytest.mark.parametrize(("content", "why"), [(b"caf\xe9", "is not UTF-8 text"), (b" \n", "holds no token")])
def test_a_bad_review_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    (write(tmp_path) / "test" / "neg" / "2_2.txt").write_bytes(content)
    with pytest.raises(DataError, match=f"review 2 of test/neg of .* {why}"):
        opened(tmp_path)
    assert len(opened(tmp_path, skip_bad_rows=True).test or ()) == 5


def test_a_truncated_archive_is_refused_and_its_good_reviews_are_counted(tmp_path: Path) -> None:
    archive = pack(write(tmp_path, MANY))
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-12])  # all reviews are there, and the checksum is not
    with pytest.raises(DataError, match=rf"the end of .*{ARCHIVE} cannot be read.* the 80 of 81 rows that are good"):
        opened(tmp_path)
    pools = opened(tmp_path, skip_bad_rows=True)
    assert (len(pools.train), len(pools.test or ())) == (80, 80)
    assert f"1 of 81 rows of {ARCHIVE} were left out as bad" in pools.notes[0]
    archive.write_bytes(whole[: len(whole) // 3])
    for skip in (False, True):
        with pytest.raises(DataError, match=rf"{ARCHIVE} holds no review of \S+ \(cannot be read: .*fetch"):
            opened(tmp_path, skip_bad_rows=skip)
    archive.write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match="holds no review of train/neg"):
        opened(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{ARCHIVE} is missing, and so is the folder aclImdb; put .* --download"):
        opened(tmp_path)
    (tmp_path / "aclImdb").mkdir()
    with pytest.raises(DataError, match="aclImdb holds no review of train/neg; fetch"):
        opened(tmp_path)


def test_real_reviews(shared: Path, tmp_path: Path) -> None:
    with gzip.open(shared / "data/text/imdb_4k.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][::20]
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            (tmp_path / "aclImdb" / part / label).mkdir(parents=True)
    for number, row in enumerate(rows):
        label = "pos" if row["label"] == "1" else "neg"
        path = tmp_path / "aclImdb" / ("test" if number % 2 else "train") / label / f"{number}_{row['rating']}.txt"
        path.write_text(row["text"], encoding="utf-8")
    pools: Any = Imdb().open(tmp_path, download=False, train_images=1)
    assert pools.test is not None
    assert len(pools.train) + len(pools.test) == len(rows) == 200
    assert pools.train.domain.shape == (256,)
    assert not pools.train.domain.warning(pools.train.x)
