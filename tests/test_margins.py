"""Margins of the tests: comparisons are noted with both sides, seeds are shifted, and thin ones come first."""

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator

from tests import margins

ROOT = Path(__file__).resolve().parents[1]
BODY = """
score = 0.59375
assert score > 0.6
assert 0.5 < score < torch.tensor(0.75) and rows == 3
assert all(one > 0.1 for one in (0.5, 0.25)), "the nearest is kept"
assert (torch.tensor([0.5, 0.125]) > 0.25).all()
assert score == pytest.approx(0.5, abs=0.125)
assert not score > 0.6 or score > 0.7
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("margins")


def test_what_assertions_demand_is_noted_and_passes() -> None:
    margins.noted.clear()
    code = compile(ast.fix_missing_locations(margins._Marked().visit(ast.parse(BODY))), "body", "exec")
    exec(code, {"__margin__": margins._note, "torch": torch, "pytest": pytest, "rows": 3})
    found = dict(margins.noted)
    margins.noted.clear()
    assert found == {
        "score > 0.6": [0.59375, ">", 0.6],
        "0.5 < score": [0.5, "<", 0.59375],
        "score < torch.tensor(0.75)": [0.59375, "<", 0.75],
        "one > 0.1": [0.25, ">", 0.1],
        "torch.tensor([0.5, 0.125]) > 0.25": [0.125, ">", 0.25],
        "score == pytest.approx(0.5, abs=0.125)": [0.59375, "==", 0.5, 0.125],
    }
    assert [margins.signed(sides) >= 0 for sides in found.values()] == [False, True, True, True, False, True]


def test_seeds_are_shifted_and_no_shift_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.rand(3, generator=Generator().manual_seed(5)), np.random.default_rng(5).random(3)
    for shift, same in ((0, True), (2, False)):
        monkeypatch.setattr(margins, "shift", shift)
        drawn, again = (torch.rand(3, generator=margins._Generator().manual_seed(5)) for _ in range(2))
        assert torch.equal(drawn, again)
        assert torch.equal(drawn, own[0]) == same
        assert np.array_equal(margins._default_rng(5).random(3), own[1]) == same
        assert np.array_equal(margins._default_rng([5, 1]).random(3), np.random.default_rng([5, 1]).random(3)) == same


def test_margins_are_counted_over_seeds_and_the_thinnest_comes_first(benchmark: Any) -> None:
    def line(numerics: str, shift: int, score: float, sure: float) -> dict[str, Any]:
        noted = {"score > 0.6": [score, ">", 0.6], "sure < 1": [sure, "<", 1.0], "4 > 3": [4.0, ">", 3.0]}
        return {"test": "t.py::test", "numerics": numerics, "shift": shift, "noted": noted}

    lines = [line("native", 0, 0.7, 0.1), line("avx2", 0, 0.5, 0.1), line("default", 0, 0.7, 0.1)]
    lines += [line("avx2", 1, 0.8, 0.2), line("default", 2, 0.9, 0.3)]
    thin, wide = benchmark.margins(lines)
    assert (thin.text, wide.text) == ("score > 0.6", "sure < 1")
    assert thin.deviations == pytest.approx(2.0)  # .7, .8 and .9, each seed once
    assert wide.deviations == pytest.approx(8.0)
    assert (thin.moves, wide.moves) == (True, False)
    assert list(benchmark.plan(4)) == [("native", 0), ("avx2", 0), ("default", 0), ("avx2", 1), ("default", 2),
                                       ("native", 3)]  # fmt: skip


def test_the_record_is_whole_and_its_table_is_committed(benchmark: Any) -> None:
    for text in benchmark.RECORD.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        assert {"test", "digest", "noted", "numerics", "shift", "commit", "date", "processor", "torch"} <= set(line)
        assert line["numerics"] in benchmark.NUMERICS
    assert benchmark.table() == benchmark.TABLE.read_text(encoding="utf-8")
