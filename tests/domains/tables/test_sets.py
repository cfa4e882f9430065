"""Tables: the packaged ones, a user's own file, and what of it is refused."""

from pathlib import Path

import pytest
import torch

from privkit.domains.base import RecordPool
from privkit.domains.tables.domain import Tables
from privkit.domains.tables.sets import AutoMpg, BreastCancer, TableFile
from privkit.errors import DataError

CSV = "age,city,owns\n30,Rome,yes\n,Bonn,no\n50,Rome,no\n"


def opened(tmp_path: Path, content: str, label: str = "owns"):  # type: ignore[no-untyped-def]
    (tmp_path / "table.csv").write_bytes(content.encode(errors="surrogateescape"))
    return TableFile(label=label).open(tmp_path, download=False, train_images=1)


def test_packaged_tables() -> None:
    cancer = BreastCancer().open(None, download=False, train_images=1)
    assert isinstance(cancer.train, RecordPool)
    assert (len(cancer.train), cancer.classes, cancer.train.domain.shape) == (569, 2, (30,))
    cars = AutoMpg().open(None, download=False, train_images=1)
    assert isinstance(cars.train, RecordPool)
    assert (len(cars.train), cars.classes) == (392, 3)
    assert isinstance(cars.train.domain, Tables)
    assert cars.train.domain.sizes == (5, 13)
    assert cars.train.domain.shown(cars.train.x[:1])[0].startswith("mpg=18, displacement=307, ")
    assert torch.bincount(cars.train.y).tolist() == [68, 79, 245]  # Europe, Japan, USA


def test_a_users_table_has_dense_and_categorical_columns(tmp_path: Path) -> None:
    pools = opened(tmp_path, CSV)
    domain = pools.train.domain
    assert (domain.dense, domain.categorical, domain.values) == (("age",), ("city",), (("Bonn", "Rome"),))
    assert pools.train.x.tolist() == [[0.0, 1.0], [0.5, 0.0], [1.0, 1.0]]  # a missing age is the median
    assert pools.train.y.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a,b\n1,2\n", "no column 'owns'; name one of a, b"),
        ("a,owns\n1\n", "line 2 .* has 1 cells instead of 2"),
        ("a,owns\n1,yes\n2, \n", "line 3 .* has no owns; fill it in, or .* 1 of 2 rows that are good"),
        ("a,owns\n", "holds no row"),
        ("a,owns\n-1e308,yes\n1e308,no\n", "column a holds 1e\\+308, and 9e\\+307 is the most; use another unit"),
        ("owns\nyes\nno\n", "no column that is part of a record; add one"),
        ("", "no column 'owns'; begin it with a header"),
        ("a,owns\r1,yes\r", "cannot be read .*; save it as CSV, one row per line"),
        ("a,owns\n" + "1" * 140_000 + ",yes\n", "cannot be read .*; save it as CSV, one row per line"),
        ("\udce9,owns\n1,yes\n", "header of .* is not UTF-8 text; save the file as UTF-8"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        opened(tmp_path, content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cell", ["N/A", "inf", '"45,5"'])
def test_a_column_that_a_few_cells_make_categorical_is_named(tmp_path: Path, cell: str) -> None:
    pools = opened(tmp_path, f"{CSV}{cell},Oslo,yes\n")
    assert pools.train.domain.categorical == ("age", "city")
    (note,) = pools.notes
    assert note.startswith("the column 'age' is categorical: 1 of its 4 cells is not a number, such as ")
    assert not opened(tmp_path, "age,owns\nN/A,yes\n1,no\n").notes


def test_columns_that_are_named_are_no_part_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(CSV)
    for ignore in (["city"], "city"):
        pools = TableFile(label="owns", ignore=ignore).open(tmp_path, download=False, train_images=1)
        assert isinstance(pools.train, RecordPool)
        assert isinstance(pools.train.domain, Tables)
        assert (pools.train.domain.dense, pools.train.domain.categorical) == (("age",), ())
    with pytest.raises(DataError, match="no column 'town'; name one of age, city, owns with ignore=…"):
        TableFile(label="owns", ignore=["town"]).open(tmp_path, download=False, train_images=1)
    with pytest.raises(DataError, match="no column that is part of a record; add one or ignore fewer"):
        TableFile(label="owns", ignore=["age", "city"]).open(tmp_path, download=False, train_images=1)
    with pytest.raises(DataError, match="'owns' is both the label and ignored; name another column"):
        TableFile(label="owns", ignore=["owns"]).open(tmp_path, download=False, train_images=1)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_spreadsheets_delimiter_is_named(tmp_path: Path, delimiter: str) -> None:
    """Its header was said to be one column of that name, which could be the label."""
    with pytest.raises(DataError, match=r"has no column 'owns'; separate its cells by commas, not by '(;|\\t)', and"):
        opened(tmp_path, CSV.replace(",", delimiter))


def test_an_id_is_no_label(tmp_path: Path) -> None:
    """Each record had a class of its own, and the model learned nothing."""
    rows = "".join(f"{n % 4},{n}\n" for n in range(20))
    with pytest.raises(DataError, match="20 records have 20 different labels 'owns'; name a column of classes"):
        opened(tmp_path, f"age,owns\n{rows}")
    assert opened(tmp_path, f"owns,age\n{rows}").classes == 4


def test_a_byte_order_mark_is_part_of_no_name(tmp_path: Path) -> None:
    """Spreadsheets write one; the first column was then unknown."""
    assert opened(tmp_path, "\ufeff" + CSV).train.domain == opened(tmp_path, CSV).train.domain


def test_bad_rows_are_left_out_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"a,owns\n1,yes\n2\n\n3,\xff\n4,no\n")
    with pytest.raises(DataError, match=r"line 3 .* 2 of 4 rows that are good"):
        TableFile(label="owns").open(tmp_path, download=False, train_images=1)
    pools = TableFile(label="owns", skip_bad_rows=True).open(tmp_path, download=False, train_images=1)
    assert pools.train.targets().tolist() == [1, 0]
    assert pools.notes == (
        "2 of 4 rows of table.csv were left out as bad, the first because line 3 has 1 cells instead of 2",
    )
