"""What progress prints where there is no terminal."""

import json
import re
from io import StringIO
from math import nan

import pytest

from privkit.run import progress as module
from privkit.run.progress import Events, Lines, duration


def test_a_stage_is_counted_in_its_own_unit(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Lines()
    progress.stage("controls of black_box", unit="experiments")
    progress.step(1, 2)
    progress.step(2, 2)
    progress.step(1, 1)
    progress.stage("train none")
    progress.step(3, 3, 0.5)
    controls, one, training = capsys.readouterr().err.splitlines()
    assert controls.startswith("controls of black_box: 2 experiments, ")
    assert one.startswith("controls of black_box: 1 experiment, ")
    assert training.startswith("train none: 3 epochs, loss 0.5000, ")


def test_a_cell_is_counted_and_the_time_left_is_that_of_the_average_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    progress = Lines()
    progress.cell(3, 6, "none / black_box, seed 0")
    now[0] += 10
    progress.ended("done")
    progress.cell(4, 6, "b")
    now[0] += 90
    progress.ended("not_applicable")
    progress.cell(6, 6, "c")
    progress.ended("done")
    assert capsys.readouterr().err.splitlines() == [
        "cell 3 of 6: none / black_box, seed 0",
        "cell 3 of 6: none / black_box, seed 0: done in 10 s, about 30 s left",  # two cells are of an earlier command
        "cell 4 of 6: b",
        "cell 4 of 6: b: not applicable in 1 min 30 s, about 1 min 40 s left",
        "cell 6 of 6: c",
        "cell 6 of 6: c: done in 0 s",
    ]


def test_a_long_stage_is_heard_of_before_it_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    progress = Lines()
    progress.stage("train none")
    for epoch in range(1, 6):
        now[0] += 20
        progress.step(epoch, 9, 0.5)
    assert capsys.readouterr().err.splitlines() == [
        "train none: 2 of 9 epochs, loss 0.5000, 40.0 s",
        "train none: 4 of 9 epochs, loss 0.5000, 80.0 s",
    ]


def test_events_are_json_whatever_the_curve_holds(capsys: pytest.CaptureFixture[str]) -> None:
    events = Events()
    events.note("a\nb")
    events.step(1, 2, nan)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "note", "text": "a\nb"},
        {"event": "step", "done": 1, "total": 2, "value": "nan"},
    ]


def test_a_time_is_told_in_two_units() -> None:
    assert [duration(seconds) for seconds in (4.2, 75, 7300)] == ["4 s", "1 min 15 s", "2 h 1 min"]


def test_a_live_line_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with module.progress_display() as live:
        live.stage("train hushed:Hushed:sigma=2 [red]")
        live.note("hushed:Hushed:sigma=2 [red] is done")
    for shown in ("train hushed:Hushed:sigma=2 [red]", "hushed:Hushed:sigma=2 [red] is done"):
        assert shown in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.getvalue())
