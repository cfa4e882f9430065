"""The reference values that ship with the package, with those of the tests: the reference tables, and all of them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from privkit.accountants.golden import Case, cases, read_cases
from tests.accountants.golden import auditing, gaussian, mixing, others, permutations, subsampling
from tests.papers import accurate_sl_reference, dp_cutmixsl_reference

AREAS = (auditing, gaussian, mixing, others, permutations, subsampling, accurate_sl_reference, dp_cutmixsl_reference)
ALL = (*cases(), *(case for area in AREAS for case in area.CASES))
CASES = {case.id: case for case in ALL}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name == "calib_da_rdp_eps8" else [])
        for name, case in CASES.items()
    ],
)
def test_reference_value(case: Case) -> None:
    passed, found = case.check()
    assert passed, f"{case.what}: {found!r}, expected {case.expected!r}"


def test_ids_are_unique() -> None:
    assert max(Counter(case.id for case in ALL).values()) == 1


def test_a_case_that_is_off_fails() -> None:
    off = Case(id="x", what="", compute=lambda: 1.001, expected=1.0, rel=1e-4)
    assert off.check() == (False, 1.001)
    assert not Case(id="x", what="", compute=lambda: float("nan"), expected=1.0, rel=1.0).check()[0]


def test_every_check_is_there_with_its_value_and_tolerance(shared: Path) -> None:
    for check in json.loads((shared / "checks.json").read_text()):
        case = CASES[check["id"]]
        assert case.expected == pytest.approx(check["expected"], rel=1e-15, abs=0)
        allowed = max(case.abs, case.rel * abs(case.expected))
        given = check["tolerance"] * (abs(check["expected"]) if check["tolerance_kind"] == "rel" else 1)
        assert allowed <= given * (1 + 1e-9), check["id"]


def test_every_oracle_is_there_with_its_value_and_tolerance(shared: Path) -> None:
    oracles = json.loads((shared / "oracles.json").read_text())["cases"]
    for oracle in oracles:
        case, expected = CASES[oracle["name"]], _value(oracle)
        assert case.expected == pytest.approx(expected, rel=1e-15, abs=0)
        assert max(case.abs, case.rel * abs(case.expected)) <= oracle["tolerance"]["rtol"] * abs(expected) * (1 + 1e-9)


def _value(oracle: dict[str, Any]) -> float:
    """The number of an oracle, which is named after its kind."""
    return float(oracle[oracle["kind"]])


def test_a_line_without_an_evaluator_is_an_error() -> None:
    with pytest.raises(KeyError, match="epsilon"):
        read_cases("privkit.accountants.golden", "cases.jsonl", {})
