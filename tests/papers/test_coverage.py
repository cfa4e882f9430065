"""What became of every printed number: nothing is forgotten, and every entry is true."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.cli.app import app
from privkit.errors import UsageError
from privkit.papers import PAPERS
from privkit.papers.coverage import Coverage, CoverageEntry, configuration, coverage
from privkit.papers.orderings import needed
from privkit.papers.presets import overridden, preset_settings
from privkit.papers.values import printed_values
from privkit.run.plan import plan
from privkit.settings.resolve import resolve

ALL = {name: coverage(name) for name in PAPERS}


@pytest.mark.parametrize("name", PAPERS)
def test_no_printed_number_is_forgotten(name: str) -> None:
    assert ALL[name].missing() == ()
    assert sum(len(one.values) for one in ALL[name].covered()) == len(printed_values(name))


@pytest.mark.parametrize("name", PAPERS)
def test_an_entry_names_what_there_is(name: str) -> None:
    paper, tables = ALL[name], {value.table for value in printed_values(name)}
    for entry in paper.entries:
        assert entry.table not in tables or any(entry.matches(value) for value in printed_values(name)), entry
        for pattern in entry.claims:
            assert any(fnmatchcase(claim, pattern) for claim in paper.verdicts), pattern
        assert set(entry.methods) <= {method for method, _ in needed(name)}
        assert not entry.reason or (entry.reason[0].isupper() and entry.reason.endswith(".")), entry.reason


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", sorted(ALL, key=lambda name: len(coverage(str(name)).entries)))
def test_a_configured_experiment_is_an_audit(name: str) -> None:
    """Also with the settings that an entry replaces: `privkit audit --config … --dry-run` starts with the same plan."""
    distinct = {(entry.experiment, str(entry.settings)): entry for entry in ALL[name].entries if entry.experiment}
    for entry in distinct.values():
        assert len(plan(resolve(overridden(preset_settings(configuration(name, entry)), entry.settings)))) >= 2


def test_the_best_entry_counts() -> None:
    entries = (
        CoverageEntry(table="Table 3", reason="Too large."),
        CoverageEntry(table="Table 3", experiment="table_3"),
        CoverageEntry(table="Table 3", rows="PSL", columns="ViT-Tiny, CIFAR-10", methods=["PSL"]),
    )
    paper = replace(ALL["dp_cutmixsl"], entries=entries)
    found = {one.state: len(one.values) for one in paper.covered()}
    assert found == {"configured": 41, "reduced": 1}
    assert {value.table for value in paper.missing()} == {value.table for value in printed_values("dp_cutmixsl")} - {
        "Table 3"
    }


def test_what_was_not_run_is_not_measured() -> None:
    paper = Coverage(paper="dp_cutmixsl", entries=())
    assert paper.state(CoverageEntry(table="Table 3", methods=["PSL"])) == "reduced"
    assert paper.state(CoverageEntry(table="Table 3", methods=["PSL", "nobody"])) is None
    assert paper.state(CoverageEntry(table="Table 3", methods=["nobody"], experiment="table_3")) == "configured"
    assert paper.state(CoverageEntry(table="Table 1", claims=["Theorem 99*"])) is None


def test_a_claim_covers_only_the_numbers_that_it_compares() -> None:
    white_box = [one for one in ALL["patch_shuffling"].covered() if one.entry.table == "Table IV"]
    assert {value.column for one in white_box if one.state == "print" for value in one.values} == {"MSE", "PSNR"}
    costs = [one for one in ALL["patch_splitnn"].covered() if one.state == "print" and "MACs" in one.entry.columns]
    assert sorted(value.row for one in costs for value in one.values) == [
        "CIFAR, patch 16, stride 16",
        "CIFAR, patch 8, stride 8",
    ]


def test_a_run_of_another_quantity_is_no_run_of_this_number() -> None:
    """The digits behind Table I measure accuracy and error; its SSIM, PSNR, MCC and faces are configured."""
    of_table = [one for one in ALL["patch_shuffling"].covered() if one.entry.table == "Table I"]
    columns = {one.state: {value.column for value in one.values} for one in of_table if one.entry.rows == "SL"}
    assert columns["proxy"] == {"Acc", "MSE"}
    assert {"MCC", "SSIM", "PSNR"} <= columns["configured"]


def test_a_run_in_the_papers_setting_stands_on_a_page() -> None:
    pages = {entry.page for paper in ALL.values() for entry in paper.entries if entry.page}
    assert pages == {"labels.md"}
    assert [entry.page for entry in ALL["dp_cutmixsl"].entries if entry.unlike] == ["labels.md"]  # another training
    page = (Path(__file__).parents[2] / "docs" / "results" / "labels.md").read_text(encoding="utf-8")
    setup = "the digits 0 and 4 of MNIST. Two clients have 1,000 images each"
    assert setup in page
    assert {one.state for one in ALL["dp_cutmixsl"].covered() if one.entry.table == "Fig. 10"} == {"reduced"}


@pytest.mark.parametrize(
    ("name", "claim", "basis"),
    [
        ("cutmixsl", "accuracy gain of 10 clients over 2: SplitFed", "print"),
        ("patch_splitnn", "Tables 2 and 3: number of patches of 16 patterns", "formula"),
        ("patch_shuffling", "Table IV: PS withstands the white-box attack", "print"),
        ("accurate_sl", "Table 10, CNN on MNIST: noise*", "reduced"),
    ],
)
def test_a_claim_says_where_our_side_of_it_comes_from(name: str, claim: str, basis: str) -> None:
    assert ALL[name].state(CoverageEntry(table="any", claims=[claim])) == basis


def test_the_weakest_of_several_claims_counts() -> None:
    entry = CoverageEntry(table="Fig. 7", claims=["Fig. 7: k₃* of DP-CutMixSL"], methods=["CutMixSL"])
    paper = replace(ALL["dp_cutmixsl"], entries=())
    accuracy = next(value for value in printed_values("dp_cutmixsl") if value.unit == "% accuracy")
    clients = next(value for value in printed_values("dp_cutmixsl") if value.unit == "clients")
    assert paper.state(entry, accuracy) == "formula"
    assert paper.state(entry, clients) is None


def test_the_command_prints_counts() -> None:
    done = CliRunner().invoke(app, ["papers", "cutmixsl", "--coverage", "--json"])
    answer = json.loads(done.stdout)
    assert sum(answer["counts"].values()) == len(printed_values("cutmixsl"))
    assert "run at reduced size" in CliRunner().invoke(app, ["papers", "cutmixsl", "--coverage"]).stdout
    alone = CliRunner().invoke(app, ["papers", "--coverage"])
    assert isinstance(alone.exception, UsageError)
    assert "--coverage belongs to one paper" in str(alone.exception)


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(UsageError, match=r"cutmixsl has no experiment 'table_9'; it has figure_2"):
        configuration("cutmixsl", CoverageEntry(table="Table 3", experiment="table_9"))
