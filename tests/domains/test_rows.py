"""Rows of text files: bad ones are named and counted, good ones are used beside them only if asked."""

import gzip
from pathlib import Path

import pytest

from privkit.domains.files import good_rows, numbered_lines, utf8
from privkit.errors import DataError

LINES = [("line 1", b"one"), ("line 2", b"\xff"), ("line 3", b"three"), ("line 4", b"\xfe")]


def test_one_bad_row_is_an_error_that_counts_the_good_ones() -> None:
    with pytest.raises(DataError) as caught:
        good_rows("set", Path("/data/file"), LINES, utf8, skip_bad=False)
    assert str(caught.value) == (
        "set: line 2 of /data/file is not UTF-8 text; save the file as UTF-8, or give --skip-bad-rows "
        "(skip_bad_rows=true) to go on with the 2 of 4 rows that are good"
    )


def test_good_rows_are_used_if_asked_and_a_sentence_says_how_many_were_left_out() -> None:
    assert good_rows("set", Path("/data/file"), LINES, utf8, skip_bad=True) == (
        ["one", "three"],
        ("2 of 4 rows of file were left out as bad, the first because line 2 is not UTF-8 text",),
    )
    assert good_rows("set", Path("/data/file"), LINES[:1], utf8, skip_bad=True) == (["one"], ())


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize(("rows", "why"), [([], "holds no row"), (LINES[1:2], "UTF-8; save the file as UTF-8$")])
def test_without_a_good_row_nothing_goes_on(rows: list[tuple[str, bytes]], why: str, skip_bad: bool) -> None:
    with pytest.raises(DataError, match=why.replace("UTF-8; ", "UTF-8 text; ")):
        good_rows("set", Path("/data/file"), rows, utf8, skip_bad=skip_bad)


def test_lines_have_their_numbers_and_no_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\r\n\ny")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x\r\n\ny"))
    for file in ("a.txt", "a.txt.gz"):
        assert [*numbered_lines("set", tmp_path, file)] == [("line 1", b"x"), ("line 2", b""), ("line 3", b"y")]
    assert [*numbered_lines("set", tmp_path, "a.txt", most=1)] == [("line 1", b"x")]


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"line\n" * 10_000)[:-20])
    with pytest.raises(DataError, match=r"set: .*a\.gz cannot be read .* put the whole file there"):
        [*numbered_lines("set", tmp_path, "a.gz")]
