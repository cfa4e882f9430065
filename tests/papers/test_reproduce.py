"""Tables of the papers measured anew: which cells they need, what stands beside them, and what is refused."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from privkit.audit.goals.goal import Timed
from privkit.cli.app import app
from privkit.errors import UsageError
from privkit.papers import paper
from privkit.papers import reproduce as module
from privkit.papers.orderings import Measured
from privkit.papers.presets import preset_settings
from privkit.papers.reproduce import needed_cells, reproduce
from privkit.papers.reproduced import Reproduced, committed, tiny_verdicts
from privkit.papers.values import printed
from privkit.run.plan import plan


def fake(one: module.Work, out: Path, progress: object = None) -> dict[str, Any]:
    """A cell's row without running it: mixing releases helps by .1, a seed by up to .02."""
    return {**one.row, "accuracy": 0.3 + 0.1 * one.row["defense"].startswith("random_cutmix") + 0.01 * one.row["seed"]}


@pytest.mark.slow
def test_a_tiny_table_takes_embedded_digits_and_keeps_the_methods_own_data() -> None:
    cells = needed_cells("cutmixsl", "Table 1", "tiny")
    assert {one.config.dataset.label for one in cells} == {"digits"}
    assert {one.row["dataset"] for one in cells} == {"cifar10"}
    assert {one.config.budget.private for one in cells} == {600}
    assert {one.config.model.label for one in cells} == {"vit_micro:cut=embedding", "cnn:cut=conv2"}  # for VGG-16
    assert {one.row["seed"] for one in cells} == {0, 1, 2}
    at_size = needed_cells("cutmixsl", "Table 1", "paper")
    assert {one.experiment for one in at_size} == {"cutmixsl/table_1"}
    assert {one.config.dataset.label for one in at_size} == {"cifar10"}


@cache
def cell() -> module.Work:
    """The first of a reduced experiment's cells, on digits and with another model."""
    path = next(path for path in paper("cutmixsl").experiments if path.stem == "table_2_small")
    changes = {**module._shrunk(preset_settings(path)), "model": "cnn:cut=conv2"}
    return next(module.work("cutmixsl/table_2_small", path, changes))


def test_a_row_keeps_the_methods_own_data_and_model_whatever_its_cell_takes() -> None:
    one = cell()
    assert (one.config.dataset.label, one.row["dataset"]) == ("digits", "cifar10")
    assert (one.config.model.label, one.row["model"]) == ("cnn:cut=conv2", "vit_micro:cut=embedding")


@pytest.mark.parametrize(
    ("status", "quantities", "has_a_row"),
    [
        ("done", ("accuracy",), True),
        ("not_applicable", ("accuracy",), True),  # which needs no attack
        ("not_applicable", ("accuracy", "mse"), False),
        ("error", ("accuracy",), False),
    ],
)
def test_a_cell_without_a_result_is_no_measurement(
    status: str, quantities: tuple[str, ...], has_a_row: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = SimpleNamespace(cell="c", status=status, reason="why", accuracy=SimpleNamespace(value=0.75))
    monkeypatch.setattr(module, "run_audit", lambda *given, **named: SimpleNamespace(rows=[row]))
    monkeypatch.setattr(module, "QUANTITIES", {"accuracy": lambda row: row.accuracy.value, "mse": lambda row: None})
    one = replace(cell(), quantities=quantities)
    if has_a_row:
        ran = {"dataset": "digits", "model": "cnn:cut=conv2"}  # in place of the method's own
        assert module.measure_cell(one, tmp_path) == {**one.row, "accuracy": 0.75, "ran": ran}
        return
    with pytest.raises(UsageError, match=f"c is {status}: why"):
        module.measure_cell(one, tmp_path)


@pytest.mark.slow
def test_measured_stands_beside_published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "measure_cell", fake)
    found = reproduce("cutmixsl", "Table 1", out=tmp_path)
    methods = {one.method: one for one in found.methods}
    assert found.published["PSL", "accuracy"] == printed("cutmixsl", "Table 1", "Parallel SL", "ViT-Tiny") / 100
    assert methods["PSL"].values == {0: 0.3, 1: 0.31, 2: 0.32}
    assert found.verdict(methods["PSL"]) == "other scale"
    verdicts = {(one.ordering.better, one.ordering.worse): one.verdict for one in found.orderings}
    assert verdicts["CutMixSL, α_M=6", "PSL + Mixup, α_M=6"] == "ordering agrees"  # tiny scale says nothing of numbers
    assert {one.ordering.source for one in found.orderings} == {"Table 1"}


def test_at_the_papers_scale_a_number_agrees_or_differs() -> None:
    published = {("PSL", "accuracy"): 0.31}
    shared: dict[str, Any] = {"paper": "cutmixsl", "table": "Table 1", "scale": "paper"}
    found = Reproduced(**shared, claims=(), methods=(), published=published, orderings=())

    def method(*values: float) -> Measured:
        return Measured(method="PSL", quantity="accuracy", values=dict(enumerate(values)))

    assert found.verdict(method(0.30, 0.31, 0.32)) == "agrees"
    assert found.verdict(method(0.50, 0.51, 0.52)) == "differs"
    assert found.verdict(method(0.31)) == ""  # no interval


@pytest.mark.slow
def test_effects_are_judged_on_the_cells_that_were_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scaled_is_better(one: module.Work, out: Path, progress: object = None) -> dict[str, Any]:
        return {**one.row, "accuracy": 0.3 + 0.2 * ("scaling" in one.row["defense"]) + 0.01 * one.row["seed"]}

    monkeypatch.setattr(module, "measure_cell", scaled_is_better)
    (claim,) = reproduce("accurate_sl", "Table 6", out=tmp_path).claims
    assert (claim.ours, claim.verdict) == (0.2, "sign agrees")
    cells = needed_cells("accurate_sl", "Table 6", "tiny")
    assert {one.row["experiment"] for one in cells} == {"table_6_small"}
    assert sum("noise_in_place" in one.row["defense"] for one in cells) == 6  # as it should be, and with the fault
    texts = needed_cells("accurate_sl", "Table 8", "tiny")
    assert {one.config.dataset.label for one in texts} == {"definitions"}  # which is embedded


@pytest.mark.slow
@pytest.mark.parametrize(("name", "table"), sorted(committed()))
def test_committed_tables_have_every_cell_once(name: str, table: str) -> None:
    rows = committed()[name, table]
    planned = [one.row for one in needed_cells(name, table, "tiny")]
    assert [{key: row[key] for key in planned[0]} for row in rows] == planned
    assert sum(row["seconds"] for row in rows) <= 600  # ten minutes: cells run one after another


def test_verdicts_at_tiny_scale_stand_beside_the_others() -> None:
    verdicts = tiny_verdicts("dp_cutmixsl")
    assert {source for source, _ in verdicts} == {table for name, table in committed() if name == "dp_cutmixsl"}
    shown = json.loads(CliRunner().invoke(app, ["papers", "dp_cutmixsl", "--json"]).stdout)["tiny"]
    assert {(one["source"], one["claim"]): one["verdict"] for one in shown} == verdicts
    assert "not run" not in verdicts.values()


@pytest.mark.parametrize(("table", "scale"), [("Table 3", "paper"), ("Table 10", "medium")])
def test_without_cells_no_shipped_verdict_is_shown_at_another_scale(table: str, scale: Any) -> None:
    for arguments in ([], ["--dry-run"]):
        ran = CliRunner().invoke(app, ["reproduce", "accurate_sl", table, "--scale", scale, *arguments])
        assert "can be judged at scale" in str(ran.exception)
        assert not ran.stdout


@pytest.mark.slow
def test_a_table_of_formulas_is_computed(tmp_path: Path) -> None:
    found = reproduce("accurate_sl", "Table 11", out=tmp_path)
    assert found.claims
    assert not found.methods
    assert not list(tmp_path.iterdir())


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("name", "table", "hint"),
    [
        ("cutmixsl", "Table 11", "unknown table of cutmixsl 'Table 11'; did you mean 'Table 1'"),
        ("cutmixsl", "settings", "an audit measures no number of cutmixsl, settings: These are settings"),
        ("patch_splitnn", "Table 6", "audit its experiment instead: .*table_6.toml"),
        ("cutmix", "Table 1", "did you mean 'cutmixsl'"),
    ],
)
def test_what_cannot_be_measured_says_why(name: str, table: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        reproduce(name, table)


@pytest.mark.slow
def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "measure_cell", fake)
    runner, arguments = CliRunner(), ["reproduce", "cutmixsl", "Table 1", "--out", str(tmp_path)]
    shown = runner.invoke(app, arguments)
    assert "other scale" in shown.stdout
    assert "only the orderings can be compared" in shown.stdout
    assert " of 27: " in shown.stderr
    answer = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)
    assert {"claims", "methods", "orderings"} < set(answer)
    monkeypatch.setattr(
        "privkit.cli.estimate._part",
        lambda part, *rest: [(cell, Timed(seconds=len(part.seeds), controls=0.25)) for cell in plan(part)],
    )
    *lines, told = runner.invoke(app, [*arguments, "--dry-run"]).stdout.splitlines()
    assert re.fullmatch(
        r"27 cells at scale tiny, about 88 s with controls on cpu, 1 threads; run folders .*/tiny", told
    )
    assert len(set(lines)) == len(lines) == 27
    assert all(re.search(r": about 3 s$", line) for line in lines)
    refused = runner.invoke(app, [*arguments, "--scale", "tini"])
    assert "did you mean 'tiny'" in str(refused.exception)
