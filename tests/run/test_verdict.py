"""What `verdict.json`, the report, its tables, `privkit report` and the exit code say of one run: the same."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from privkit.audit.report import build
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.show import OutputOptions
from privkit.errors import DamagedFile, UnfinishedRun
from privkit.files.sealed import opened
from privkit.reports.gate import Gate
from privkit.reports.schema import Check
from privkit.reports.verdict import judge
from privkit.run.records import read_manifest, read_verdict, verdict_of
from privkit.run.verify import examine
from tests.reports.made import made

Cli = Callable[..., CompletedProcess[str]]

NOTHING = "no model is shown to have learned its task, so no defense is shown to hold"
"""What is said of the budget smoke, whose models are trained for one epoch."""


def again(folder: Path, **settings: Any) -> AuditRun:
    return run_audit(defense="batch_shuffle", dataset="tiny_digits", budget="smoke", threads=1, out=folder, **settings)


def said(folder: Path) -> tuple[str, str, list[dict[str, str]], str]:
    """Page, Markdown, CSV and LaTeX of a report."""
    tables = folder / "report" / "tables"
    page, markdown = (folder / "report" / "index.html").read_text(), (tables / "audit.md").read_text()
    records = list(csv.DictReader(io.StringIO((tables / "audit.csv").read_text())))
    return page, markdown, records, (tables / "audit.tex").read_text()


def cut(folder: Path, run: AuditRun) -> None:
    """Leave the run as a kill after its first cell does."""
    shutil.rmtree(folder / "cells" / run.rows[1].cell)
    results = folder / "results.jsonl"
    results.write_text(results.read_text().splitlines()[0] + "\n")


def test_a_verdict_in_other_words_is_the_same_and_another_decision_is_not(small_run: AuditRun) -> None:
    verdict = small_run.verdict
    worded = verdict.checks[0].model_copy(update={"sentence": "as an older version said"})
    turned = worded.model_copy(update={"met": False})
    for check, same in ((worded, True), (turned, False)):
        other = verdict.model_copy(update={"sentence": "in other words", "checks": (check, *verdict.checks[1:])})
        assert (other.decided == verdict.decided) is same


def test_a_run_without_a_failure(small_run: AuditRun) -> None:
    fields = opened((small_run.folder / "verdict.json").read_bytes())
    assert (fields["outcome"], fields["exit_code"], fields["failures"]) == ("empty", 0, [])
    assert [cell["status"] for cell in fields["cells"]] == ["done", "done"]
    kinds = [check["kind"] for check in fields["checks"]]
    assert (kinds.count("control"), kinds.count("number")) == (4, 2)
    assert all(check["met"] for check in fields["checks"])
    assert small_run.verdict.sentence == f"empty: 2 of 2 cells finished; 6 of 6 decisive checks met; {NOTHING}"
    for text in said(small_run.folder)[:2]:
        assert "2 of 2 cells finished" in text


def test_a_failed_gate_is_told_everywhere_and_by_the_report_too(copied: Path, privkit_cli: Cli) -> None:
    run = again(copied, gate=["ssim<=0.01", "accuracy>=0.01"])
    assert run.exit_code == 1
    (failure,) = run.failures
    assert "the gate requires <= 0.01" in failure
    page, markdown, records, latex = said(copied)
    assert '<section class="state failed"' in page
    assert failure.replace("<", "&lt;") in page
    assert page.index('id="verdict"') < page.index('class="cards"')
    assert "failed: 2 of 2 cells finished; 6 of 6 decisive checks met; 1 of 2 gates met, 1 failed" in markdown
    assert latex.startswith("% Verdict: failed")
    assert [record["gate_ssim<=0.01"] for record in records] == ["", "False"]
    done = privkit_cli("report", str(copied))
    assert done.returncode == 1
    assert "run: failed: " in done.stdout
    assert done.stderr.splitlines() == [f"privkit: gate failed: {failure}"]
    assert opened((copied / "verdict.json").read_bytes())["gates"] == ["ssim<=0.01", "accuracy>=0.01"]
    (copied / "verdict.json").unlink()
    assert privkit_cli("report", str(copied), "--quiet").returncode == 1  # the gates of the last command still count
    assert examine(copied).faults == []
    build(copied, gates=[Gate.parse("ssim<=0.01")])
    assert dict(examine(copied).faults)["verdict.json"].startswith("lacks the gate accuracy>=0.01 of the run's last")


def test_an_unfinished_run_is_no_success(copied: Path, small_run: AuditRun, privkit_cli: Cli) -> None:
    cut(copied, small_run)
    done = privkit_cli("report", str(copied))
    assert done.returncode == 3
    sentence = (
        "unfinished: 1 of 2 cells finished; 1 missing (batch_shuffle / black_box, seed 0); repeat the run's command to "
        "go on; 3 of 3 decisive checks met"
    )
    assert f"run: {sentence}" in done.stdout
    assert done.stderr == f"privkit: {sentence}\n"
    page, markdown, records, _ = said(copied)
    assert '<section class="state unfinished"' in page
    assert sentence.partition(": ")[2].replace("'", "&#39;") in page
    assert "unfinished: 1 of 2" in markdown
    assert [record["status"] for record in records] == ["done", "missing"]
    assert again(copied).verdict.outcome == "empty"


def test_a_run_that_is_killed_leaves_its_verdict_so_far(
    copied: Path, small_run: AuditRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(copied, small_run)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privkit.audit.worker.run_cell", killed)
    with pytest.raises(KeyboardInterrupt) as caught:
        again(copied, gate="ssim<=0.01")
    (note,) = caught.value.__notes__
    assert (
        "keeps 1 of 2 cells and the last epochs of the one that was running; go on with the same call and out=" in note
    )
    manifest = read_manifest(copied)
    assert manifest is not None
    found = read_verdict(copied, manifest)
    assert found is not None
    assert (found.outcome, found.gates) == ("unfinished", ("ssim<=0.01",))
    assert [check.met for check in found.checks if check.kind == "gate"] == [None]
    monkeypatch.undo()
    build(copied)
    assert read_verdict(copied, manifest).gates == ("ssim<=0.01",)  # type: ignore[union-attr]


def test_a_run_without_a_finished_cell(copied: Path, privkit_cli: Cli) -> None:
    (copied / "results.jsonl").unlink()
    with pytest.raises(UnfinishedRun, match="holds no finished cell; repeat the run's command") as caught:
        build(copied)
    assert caught.value.exit_code == 3


def test_errors_come_before_gates_and_what_waits_is_open(small_run: AuditRun) -> None:
    manifest = read_manifest(small_run.folder)
    assert manifest is not None
    none, batch = small_run.rows
    gate = [Gate.parse("ssim<=0.01")]
    crashed = batch.model_copy(update={"status": "error", "reason": "x", "recovered": {}, "checks": ()})
    verdict = verdict_of(manifest, [none, crashed], gate)
    assert (verdict.outcome, verdict.exit_code) == ("errored", 3)
    assert "1 errored (batch_shuffle / black_box, seed 0)" in verdict.sentence
    assert verdict.failures == ("batch_shuffle / black_box, seed 0: ssim is not a number, the gate requires <= 0.01",)
    refused = batch.model_copy(update={"status": "not_applicable", "reason": "y", "recovered": {}, "checks": ()})
    verdict = verdict_of(manifest, [none, refused], [])
    assert (verdict.outcome, verdict.exit_code) == ("failed", 1)
    two = manifest.model_copy(
        update={"cells": (*manifest.cells, manifest.cells[1].model_copy(update={"cell": "other", "attack": "jigsaw"}))}
    )
    verdict = verdict_of(two, [none, refused], gate)
    assert (verdict.outcome, verdict.failures) == ("unfinished", ())  # the other attack may give a number yet
    assert [check.met for check in verdict.checks if check.cell == ""] == [True, None]


def test_a_damaged_verdict_is_named(copied: Path) -> None:
    path = copied / "verdict.json"
    path.write_text(path.read_text().replace('"empty"', '"empyt"', 1))
    with pytest.raises(DamagedFile, match=r"verdict\.json is damaged"):
        build(copied)
    assert json.loads(path.read_text())["outcome"] == "empyt"
    assert again(copied).exit_code == 0


def test_a_run_that_shows_nothing_is_not_clean(small_run: AuditRun) -> None:
    """Its models are at chance; of a run that trains longer that is a failure, and so are attacks that never apply."""
    manifest = read_manifest(small_run.folder)
    assert manifest is not None
    budget = manifest.config["budget"]
    assert isinstance(budget, dict)
    longer = manifest.model_copy(update={"config": {**manifest.config, "budget": {**budget, "epochs": 4}}})
    found = verdict_of(longer, small_run.rows, [])
    assert (found.outcome, found.exit_code, found.failures) == ("failed", 1, (NOTHING,))
    learned = Check(name="learned", passed=True, detail="", decisive=False)
    rows = [small_run.rows[0].model_copy(update={"checks": (learned,)}), small_run.rows[1]]
    assert verdict_of(longer, rows, []).outcome == "clean"
    silent = {**manifest.config, "protocol": {"name": "alone", "upper": "own"}}
    mute = manifest.model_copy(update={"config": silent})
    refused = [row.model_copy(update={"status": "not_applicable", "checks": ()}) for row in small_run.rows]
    rows = [row.model_copy(update={"protocol": "alone"}) for row in refused]
    found = verdict_of(mute, rows, [])
    assert (found.outcome, found.exit_code, found.failures) == ("empty", 0, ())  # clients that send nothing on purpose
    assert "no attack was applicable, so that nothing is known of any defense" in found.sentence


def test_each_failure_is_told_by_its_kind_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    weak = Check(name="wins_on_identity", passed=False, detail="it lost", decisive=True)
    planned = made(checks=(weak,), seed=3)
    OutputOptions().failures(judge([], [planned], [Gate.parse("ssim<=0.01")], run="r"))
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"privkit: control failed, seed 3: {planned.defense} / {planned.attack}: it lost"
    assert told[1].startswith(f"privkit: gate failed: {planned.defense} / {planned.attack}, seed 3: ssim is ")
