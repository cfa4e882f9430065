"""The page of vertical splits: each attack and defense of SecretFlow's matrix has a line, and each part is measured."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from privkit.parts.registry import parse

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NINE = {"exploit", "fia", "fsha", "grad_lia", "lia", "norm", "replace", "replay", "batch_lia"}
SIX = {"no_defense", "de_identification", "fed_pass", "grad_avg", "mid", "mixup"}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("vertical_page")


def test_the_mapping_covers_the_matrix(page: Any) -> None:
    cells = page.lines("cells")
    assert len(cells) == 84
    for kind, names in (("attacks", NINE), ("defenses", SIX)):
        found = page.lines(kind)
        assert {line[kind[:-1]] for line in found} == names
        assert {line["match"] for line in found} <= {"same", "nearest", "none"}
        assert all((line["match"] == "none") == (not line["privkit"]) for line in found)
    assert {attack for cell in cells for attack in cell["attacks"].split()} == NINE
    assert {cell["defense"] for cell in cells} == SIX
    assert {cell["dataset"] for cell in cells} == {line["dataset"] for line in page.lines("datasets")}


def test_what_stands_for_its_parts_is_measured(page: Any) -> None:
    for kind, tried in (("attacks", page.ATTACKS), ("defenses", page.DEFENSES)):
        ours = {part for line in page.lines(kind) for part in line["privkit"].split()}
        assert ours <= {part for parts in tried.values() for part in parts}
        for part in ours:
            assert parse(kind, part)


def test_every_supported_cell_is_counted_once(page: Any) -> None:
    (_, total), rows = page.counted()
    assert sum(int(count) for _, count in rows) == int(total)
    assert int(total) == sum(len(cell["attacks"].split()) for cell in page.lines("cells"))
    assert page.fate({"defense": "mid", "dataset": "bank"}, "norm") == "a command runs it"
    assert page.fate({"defense": "mid", "dataset": "bank"}, "fia") == "a command runs the nearest parts"
    assert page.fate({"defense": "mid", "dataset": "bank"}, "replay") == "attacks integrity"
    assert page.fate({"defense": "mid", "dataset": "bank"}, "fsha") == "`fsha` reads images only"
    assert page.fate({"defense": "mid", "dataset": "mnist"}, "fsha") == "a command runs it"


def test_a_cell_is_a_mean_over_seeds_or_the_reason_why_there_is_none(page: Any) -> None:
    runs = [{"status": "done", "auc": value} for value in (0.5, 0.6, 0.7)]
    assert page.said(runs, ("ssim", "auc")).startswith("0.60 [")
    refused = {"status": "not_applicable", "reason": "ridge reconstructs images, and these records are table rows"}
    assert page.said([refused], ("ssim",)) == "images only"


def test_split_parts_stands_where_messages_leave_the_client(page: Any) -> None:
    chains = [page.chained(one) for one in ("none", "mixup", "max_norm", "information_bottleneck")]
    assert chains == [
        "split_parts",
        "mixup+split_parts@mixer",
        "split_parts+max_norm",
        "information_bottleneck+split_parts",
    ]
    for defense in page.DEFENSES["party"]:
        assert parse("defenses", page.chained(defense))
