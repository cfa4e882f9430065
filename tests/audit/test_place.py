"""`privkit place`: a run among registered settings, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.audit.report import entries_of, placed
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.app import app
from privkit.errors import RunFolderError, UsageError
from privkit.reports import registry
from privkit.reports.registry import registry_csv
from privkit.shared.interval import clopper_pearson
from privkit.shared.threat_models import INCLUDES
from tests.reports.test_registry import entry


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_run: AuditRun) -> Path:
    """A registry of two settings that are measured as the small run is."""
    like = entries_of(small_run.rows)[0]
    same = {"dataset": like.dataset, "victims": like.victims, "threat_model": like.threat_model}
    path = tmp_path / "registry.csv"
    path.write_text(
        registry_csv([entry("first", 0.0, 0.0, **same), entry("second", 1.0, 1.0, **same)]), encoding="utf-8"
    )
    monkeypatch.setattr(registry.read_registry, "__defaults__", (path,))
    return path


def test_a_run_has_a_place_and_the_command_says_it(copied: Path, registered: Path) -> None:
    places, remarks = placed(copied)
    assert places
    assert {one.peers for one in places} == {2}
    assert any("own records" in remark for remark in remarks)
    said = CliRunner().invoke(app, ["place", str(copied)])
    assert said.exit_code == 0
    assert places[0].sentence in " ".join(said.output.split())
    as_json = json.loads(CliRunner().invoke(app, ["place", str(copied), "--json"]).stdout)
    assert [one["setting"]["defense"] for one in as_json["places"]] == [one.setting.defense for one in places]


def test_what_nothing_registered_is_like_is_refused_with_what_is(copied: Path, registered: Path) -> None:
    registered.write_text(registry_csv([entry("first", 0.5, 0.5, dataset="cifar10")]), encoding="utf-8")
    with pytest.raises(UsageError, match=r"nothing comparable .* the registry cifar10 with 100 attacked records"):
        placed(copied)


def test_a_run_without_an_accuracy_is_refused_with_the_reason(
    copied: Path, registered: Path, small_run: AuditRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row.model_copy(update={"accuracy": None}) for row in small_run.rows]
    monkeypatch.setattr("privkit.run.records.finished_rows", lambda run: (None, rows))
    with pytest.raises(UsageError, match="has no accuracy, which a place needs"):
        placed(copied)


def test_an_adversary_with_candidates_has_no_place(
    copied: Path, registered: Path, small_run: AuditRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It links records that it has, and registered ones guess records that they lack."""
    rows = [row.model_copy(update={"auxiliary": "candidates"}) for row in small_run.rows]
    monkeypatch.setattr("privkit.run.records.finished_rows", lambda run: (None, rows))
    with pytest.raises(UsageError, match=r"holds the attacked records among its own.*--auxiliary disjoint"):
        placed(copied)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        placed(tmp_path)


def test_a_registered_adversary_who_may_do_more_identifies_no_less() -> None:
    lines = {(one.dataset, one.defense, one.seed, one.threat_model): one for one in registry.read_registry()}
    assert len(lines) > 400
    for one in lines.values():
        weaker = [lines.get((one.dataset, one.defense, one.seed, model)) for model in INCLUDES[one.threat_model]]
        assert one.identified == max(each.identified for each in weaker if each), one


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_registered_row_is_measured_again(tmp_path: Path) -> None:
    """By its command, with another machine's arithmetic: within the intervals of 100 victims and of 500 test images."""
    (line,) = (
        one
        for one in registry.read_registry()
        if (one.dataset, one.defense, one.threat_model, one.seed) == ("digits", "clip", "query", 0)
    )
    run = run_audit(defense="clip", attack=line.attack, seed=0, threads=1, out=tmp_path / "run")
    (again,) = (one for one in entries_of(run.rows) if one.threat_model == "query")
    assert (again.dataset, again.model, again.victims, again.own) == (line.dataset, line.model, 100, line.own)
    assert clopper_pearson(again.identified * 100, 100).high >= line.identified - 0.05
    assert again.accuracy == pytest.approx(line.accuracy, abs=0.06)
