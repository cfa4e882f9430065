"""What a verdict looks like to CI systems."""

from xml.etree import ElementTree

from privkit.reports.ci import github, junit
from privkit.reports.gate import Gate
from privkit.reports.schema import PlannedCell
from privkit.reports.verdict import Verdict, judge
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
    assert failed == list(made_of.failures)
    assert len(failed) == int(suite.attrib["failures"]) == 4  # three accuracies and the failed cell's SSIM
    errors = {case.attrib["name"]: case[0].attrib["message"] for case in cases if case.find("error") is not None}
    assert errors == {
        "cell: odd, seed 0": "50 %\n\\x1b[31m<red>",
        "cell: late, seed 0": "it has no result; repeat the run's command",
    }
    assert suite.attrib["errors"] == "2"


def test_annotations_are_one_line_each() -> None:
    made_of = verdict()
    lines = github(made_of)
    assert len(lines) == len(made_of.failures) + 2
    assert all(line.startswith("::error title=privkit::") and "\n" not in line for line in lines)
    assert lines[-2].endswith("odd, seed 0: 50 %25%0A\\x1b[31m<red>")
    assert lines[-1].endswith("late, seed 0: missing")
