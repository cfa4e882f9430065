"""Texts: the packaged ones, a user's own file, and what of it is refused."""

import gzip
from pathlib import Path

import pytest

from privkit.domains.base import RecordPool
from privkit.domains.tokens.texts import Definitions, TextFile
from privkit.errors import DataError, PrivkitError, UsageError
from privkit.parts.registry import parse

LINES = "Irish\tO'Neal\nGerman\tMüller\n\nIrish\tBrady\n"


def opened(tmp_path: Path, content: bytes, **options: object) -> object:
    (tmp_path / "texts.tsv").write_bytes(content)
    return TextFile(**options).open(tmp_path, download=False, train_images=1)  # type: ignore[arg-type]


def test_definitions_are_read_with_their_kinds() -> None:
    pools = Definitions(length=8, vocabulary=100).open(None, download=False, train_images=1)
    assert pools.classes == 5
    assert isinstance(pools.train, RecordPool)
    assert pools.train.x.shape == (len(pools.train), 8)
    assert int(pools.train.x.max()) == 99
    assert (pools.train.x[:, 0] != 0).all()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_users_texts(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    name = "texts.tsv.gz" if pack is gzip.compress else "texts.tsv"
    (tmp_path / name).write_bytes(pack(LINES.encode()))
    pools = TextFile(file=name, unit="characters", length=6).open(tmp_path, download=False, train_images=1)
    assert isinstance(pools.train, RecordPool)
    assert pools.train.domain.shown(pools.train.x) == ["o'neal", "müller", "brady"]
    assert pools.train.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no tab here\n", "line 1 .* has no tab"),
        (b"", "holds no row"),
        (b"a\tb\n\na\t\n", "line 3 .* holds no token"),
        (
            b"a\tb\na\t\xff\n",
            "line 2 .* is not UTF-8 text; .* --skip-bad-rows .* to go on with the 1 of 2 rows",
        ),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        opened(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_file_outside_of_the_root_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "texts.tsv").write_text(LINES)
    with pytest.raises(DataError, match="outside of the data root"):
        TextFile(file="../texts.tsv").open(tmp_path / "inside", download=False, train_images=1)
    with pytest.raises(DataError, match="is missing"):
        TextFile(file="other.tsv").open(tmp_path, download=False, train_images=1)
    with pytest.raises(DataError, match="needs a data root"):
        TextFile().open(None, download=False, train_images=1)


@pytest.mark.parametrize("option", ["unit=letters", "length=0", "length=5000", "vocabulary=2"])
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option.split("=")[0]):
        parse("datasets", f"text_file:{option}")


def test_errors_are_privkits_own() -> None:
    assert issubclass(DataError, PrivkitError)
