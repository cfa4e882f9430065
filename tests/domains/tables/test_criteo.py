"""Criteo: rows of the official format, whole and damaged, and 200 real ones."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privkit.domains.tables.sets import Criteo
from privkit.errors import DataError, UsageError
from privkit.parts.registry import parse


def row(label: str = "0", *, counts: dict[int, str] | None = None, words: dict[int, str] | None = None) -> str:
    """A row whose count i is i and whose category i is i in hex, but those given."""
    numbers = [(counts or {}).get(i, str(i)) for i in range(1, 14)]
    categories = [(words or {}).get(i, f"{i:08x}") for i in range(1, 27)]
    return "\t".join([label, *numbers, *categories])


def opened(root: Path, lines: list[str], **options: object) -> Any:
    (root / "train.txt").write_text("".join(line + "\n" for line in lines))
    return Criteo(**options).open(root, download=False, train_images=1)  # type: ignore[arg-type]


def test_counts_are_dense_and_words_are_categories(tmp_path: Path) -> None:
    rows = [row("1", counts={1: "-2"}), row(counts={1: "6"}, words={3: "ffffffff"}), row(counts={1: ""}, words={3: ""})]
    pools = opened(tmp_path, rows, scale="linear")
    domain = pools.train.domain
    assert (len(domain.dense), len(domain.categorical), pools.classes, pools.test) == (13, 26, 2, None)
    assert domain.ranges[0] == (-2, 6)
    assert pools.train.x[:, 0].tolist() == [0, 1, 0.5]  # the missing count is the median of -2 and 6
    assert domain.values[2] == ("", "00000003", "ffffffff")
    assert pools.train.x[:, 13 + 2].tolist() == [1, 2, 0]
    assert pools.train.targets().tolist() == [1, 0, 0]


def test_counts_are_long_tailed_so_their_logarithm_is_taken(tmp_path: Path) -> None:
    pools = opened(tmp_path, [row("1", counts={1: "-2"}), row(counts={1: "0"}), row(counts={1: "99"})])
    domain = pools.train.domain
    assert domain.dense[0] == "log I1"
    assert domain.ranges[0] == pytest.approx((0, np.log(100)))
    assert pools.train.x[:, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row() + "\tmore", "has 41 fields instead of 40"),
        (row().rpartition("\t")[0], "has 39 fields instead of 40"),
        ("", "has 1 fields instead of 40"),
        (row("2"), "has '2' in field 1"),
        (row(""), "has '' in field 1"),
        (row(counts={2: "1.5"}), "has '1.5' in field 3"),
        (row(counts={13: "many"}), "has 'many' in field 14"),
        (row(words={1: "68FD1E64"}), "has '68FD1E64' in field 15"),
        (row(words={26: "68fd1e6"}), "has '68fd1e6' in field 40"),
        ("caf\udce9", "is not UTF-8 text"),
    ],
)
def test_bad_rows_are_named_and_left_out_only_if_asked(tmp_path: Path, bad: str, why: str) -> None:
    content = "\n".join([row("1"), bad, row()]).encode("utf-8", "surrogateescape")
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=rf"line 2 of .*train.txt.gz {why}; .*2 of 3 rows that are good"):
        Criteo(file="train.txt.gz").open(tmp_path, download=False, train_images=1)
    pools = Criteo(file="train.txt.gz", skip_bad_rows=True).open(tmp_path, download=False, train_images=1)
    assert len(pools.train) == 2
    assert "1 of 3 rows of train.txt.gz were left out as bad" in pools.notes[0]


def test_only_the_first_rows_are_read(tmp_path: Path) -> None:
    rows = [row("1"), row(), "no row"]
    assert len(opened(tmp_path, rows, rows=2).train) == 2
    with pytest.raises(UsageError, match="rows must be a whole number >= 1, got 0"):
        parse("datasets", "criteo:rows=0")


def test_real_rows(shared: Path, tmp_path: Path) -> None:
    with (shared / "data/text/criteo_sample.txt").open(newline="") as file:
        _, *rows = csv.reader(file)
    official = ["\t".join([r[0], *(c and str(int(float(c))) for c in r[1:14]), *r[14:]]) for r in rows]
    pools = opened(tmp_path, official)
    assert len(pools.train) == 200
    assert pools.train.targets().sum() == 49
    batch = pools.train.take(np.arange(200))
    assert bool(((batch.x[:, :13] >= 0) & (batch.x[:, :13] <= 1)).all())
    words = batch.domain.shown(batch.x[:1])[0]
    assert "C1=05db9164" in words
    assert torch.equal(batch.y, torch.tensor([int(r[0]) for r in rows]))
