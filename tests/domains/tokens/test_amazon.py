"""Amazon reviews: the official CSV files and the two other formats, whole and damaged."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from privkit.domains.tokens.texts import FOLDER, AmazonReviews
from privkit.errors import DataError, UsageError
from privkit.parts.registry import parse

TRAIN = ['"3","Fine","It is ""fine"", really."', '"5","","Great\\nstuff"', '"1","Bad","Broke."']


def opened(root: Path, **options: object) -> Any:
    spec = AmazonReviews(length=8, vocabulary=100, **options)  # type: ignore[arg-type]
    return spec.open(root, download=False, train_images=1)


def write(root: Path, train: list[str]) -> None:
    (root / FOLDER).mkdir(exist_ok=True)
    (root / FOLDER / "train.csv").write_text("\n".join(train) + "\n")
    (root / FOLDER / "test.csv").write_text('"1","Bad","Fine, not."\n"2","a","b"\n')


def test_official_files(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    pools = opened(tmp_path)
    assert (pools.classes, pools.notes) == (4, ())
    assert pools.train.domain.shown(pools.train.x) == ['fine it is " fine " , really', "great stuff", "bad broke ."]
    assert pools.train.targets().tolist() == [2, 3, 0]
    assert pools.test is not None
    assert pools.test.targets().tolist() == [0, 1]
    assert len(opened(tmp_path, rows=2).train) == 2
    with pytest.raises(UsageError, match="rows must be a whole number >= 1, got 0"):
        parse("datasets", "amazon_reviews:rows=0")


def test_other_formats_give_the_same_records(tmp_path: Path) -> None:
    reviews = [("3", "Fine", "It is, really."), ("1", "Bad", "Broke.")]
    files = {
        "old.json": [json.dumps({"overall": float(s), "summary": t, "reviewText": x}) for s, t, x in reviews],
        "new.jsonl": [json.dumps({"rating": int(s), "title": t, "text": x}) for s, t, x in reviews],
        "fast.txt": [f"__label__{s} {t} {x}" for s, t, x in reviews],
        "rows.csv": [f'"{s}","{t}","{x}"' for s, t, x in reviews],
    }
    for name, lines in files.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        pools = opened(tmp_path, file=f"{name}.gz")
        assert pools.train.domain.shown(pools.train.x) == ["fine it is , really .", "bad broke ."], name
        assert (pools.train.targets().tolist(), pools.test) == ([1, 0], None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('"3","title"', "has 2 fields instead of 3"),
        ('"3","title","text","more"', "has 4 fields instead of 3"),
        ('"3","title","te', "is not a row of CSV"),
        ("", "has 0 fields"),
        ('"6","title","text"', "has '6' stars; give each review 1 to 5 stars"),
        ('"3"," ",""', "holds no token"),
        ('{"overall": 3.0}', "is not a review in JSON"),
        ('{"overall": 3.0, "reviewText"', "is not a review in JSON"),
        ('{"overall": 2.5, "reviewText": "so so"}', "has '2.5' stars"),
        ('{"overall": [1], "reviewText": 7}', r"has '\[1\]' stars"),
        ("__label__9 text", "has '9' stars"),
    ],
)
def test_bad_lines_are_named_and_left_out_only_if_asked(tmp_path: Path, line: str, why: str) -> None:
    write(tmp_path, [*TRAIN, line])
    with pytest.raises(DataError, match=f"line 4 of .*train.csv {why}") as caught:
        opened(tmp_path)
    assert "to go on with the 3 of 4 rows that are good" in str(caught.value)
    pools = opened(tmp_path, skip_bad_rows=True)
    assert len(pools.train) == 3
    assert "1 of 4 rows of train.csv" in pools.notes[0]


def test_real_sentences(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "data/text/amazon_cells_labelled.txt").read_text().splitlines()
    pairs = [line.rpartition("\t") for line in lines if line.strip()]
    fast = [f"__label__{5 if label == '1' else 1} {text}" for text, _, label in pairs]
    (tmp_path / "cells.txt").write_text("\n".join(fast))
    pools = opened(tmp_path, file="cells.txt")
    assert (len(pools.train), pools.classes) == (1000, 2)
    assert pools.train.targets().sum() == 500
