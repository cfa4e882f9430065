"""What a verdict looks like to CI systems."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from privkit.cli.show import OutputOptions
from privkit.reports.ci import github, junit
from privkit.reports.gate import Gate
from privkit.reports.schema import PlannedCell
from privkit.reports.verdict import Verdict, judge
from privkit.run.records import seconds_of
from privkit.shared.interval import Interval
from tests.reports.made import made


def verdict() -> Verdict:
    """A cell that meets its gate, one that does not, one that failed with text of its own, and a missing one."""
    rows = [
        made(cell="a"),
        made(cell="b", attack="jigsaw"),
        made(cell="c", attack="odd", status="error", reason="50 %\n\x1b[31m<red>", recovered={}),
    ]
    planned = [
        PlannedCell(cell=cell, model="m", defense="batch_shuffle", attack=attack, seed=0)
        for cell, attack in (("a", "black_box"), ("b", "jigsaw"), ("c", "odd"), ("d", "late"))
    ]
    return judge(planned, rows, [Gate.parse("ssim<=0.4"), Gate.parse("accuracy>=0.85")], run="r")


def test_each_cell_check_and_gate_is_a_test_case() -> None:
    made_of = verdict()
    suite = ElementTree.fromstring(junit(made_of))
    cases = list(suite)
    assert len(cases) == int(suite.attrib["tests"]) == len(made_of.cells) + len(made_of.checks)
    failed = [case.find("failure").attrib["message"] for case in cases if case.find("failure") is not None]  # type: ignore[union-attr]
    assert tuple(dict.fromkeys(failed)) == made_of.failures
    assert len(failed) == int(suite.attrib["failures"]) == 4  # three accuracies and the failed cell's SSIM
    errors = {case.attrib["name"]: case[0].attrib["message"] for case in cases if case.find("error") is not None}
    assert errors == {
        "cell: odd, seed 0": "50 %\n\\x1b[31m<red>",
        "cell: late, seed 0": "it has no result; repeat the run's command",
    }
    assert suite.attrib["errors"] == "2"


def test_the_sentence_counts_gates_and_not_the_rows_that_they_judge() -> None:
    assert "; 0 of 2 gates met, 2 failed" in verdict().sentence


def test_the_cause_of_an_error_is_printed_with_the_failures(capsys: pytest.CaptureFixture[str]) -> None:
    OutputOptions(quiet=True).failures(verdict())
    assert "privkit: error: batch_shuffle / odd, seed 0: 50 %" in capsys.readouterr().err


def test_a_case_has_the_time_of_its_cell(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert seconds_of(tmp_path) is None
    log.write_text(
        "2026-01-01T00:00:00+00:00 start\n"  # stopped, and begun again
        "2026-01-02T00:00:00.250+00:00 start\n2026-01-02T00:00:01+00:00 ValueError\n  a trace\n"
        "2026-01-02T00:01:00.750+00:00 error\n"
    )
    assert seconds_of(tmp_path) == 60.5
    suite = ElementTree.fromstring(junit(verdict(), {"a": 60.5, "c": 0.25}))
    times = [case.attrib["time"] for case in suite]
    assert times[:4] == ["60.500", "0.000", "0.250", "0.000"]
    assert set(times[4:]) == {"0.000"}
    assert suite.attrib["time"] == "60.750"


def test_annotations_are_one_line_each() -> None:
    made_of = verdict()
    lines = github(made_of)
    assert len(lines) == len(made_of.failures) + 2
    assert all(line.startswith("::error title=privkit::") and "\n" not in line for line in lines)
    assert lines[-2].endswith("odd, seed 0: 50 %25%0A\\x1b[31m<red>")
    assert lines[-1].endswith("late, seed 0: missing")


def test_labels_under_other_names_meet_no_gate_on_them() -> None:
    """All labels were told apart, and each was called by another's name."""
    named = {"label_accuracy": Interval(value=0.0, low=0.0, high=0.04, n=100, method="m")}
    apart = {"cluster_accuracy": Interval(value=1.0, low=0.96, high=1.0, n=100, method="m")}
    gate = Gate.parse("label_accuracy<=0.3")
    assert gate.failures([made(attack="exploit", recovered={}, answers=named)]) == []
    (failure,) = gate.failures([made(attack="exploit", recovered={}, answers={**named, **apart})])
    assert "label_accuracy is 0.9600 at least, after the best renaming of labels" in failure
    chance = {"cluster_accuracy": Interval(value=0.25, low=0.1, high=0.4, n=100, method="m")}
    assert gate.failures([made(attack="exploit", recovered={}, answers={**named, **chance})]) == []
