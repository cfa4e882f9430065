"""The wing of the papers: printed numbers, claims beside results, orderings judged on rows, figures, the command."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from privkit.cli.app import app
from privkit.errors import UsageError
from privkit.papers import PAPERS, orderings, paper
from privkit.papers.dp_cutmixsl import figures as budget_figures
from privkit.papers.dp_cutmixsl.mechanisms import Experiment
from privkit.papers.presets import preset_settings
from privkit.papers.values import printed, printed_values
from privkit.run.plan import plan
from privkit.settings.resolve import resolve

VERDICTS = {name: {one.claim: one.verdict for one in paper(name).comparisons()} for name in PAPERS}


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["papers", *arguments])


# printed numbers


@pytest.mark.parametrize("name", PAPERS)
def test_values_are_numbers_with_a_place(name: str) -> None:
    values = printed_values(name)
    places = [(value.table, value.row, value.column) for value in values]
    assert len(set(places)) == len(places)
    for value in values:
        assert all(places)
        assert value.value is not None or value.note
        assert value.line > 0
        assert value.value is None or "accuracy" not in value.unit or 0 <= value.value <= 100


@pytest.mark.parametrize("name", PAPERS)
def test_values_stand_on_their_line_of_the_paper(name: str, shared: Path) -> None:
    text = (shared / "papers" / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    with Path(str(files(f"privkit.papers.{name}"))).joinpath("values.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            line = text[int(row["line"]) - 1].replace(",", "").replace("\\times 10^{", "e").replace(" \\cdot 10^{", "e")
            for number in filter(None, (row["value"], row["spread"])):
                spellings = {number, number.removesuffix(".0")}
                assert row["table"] == "settings" or any(spelling in line for spelling in spellings), row


def test_an_unknown_place_is_an_error() -> None:
    with pytest.raises(KeyError, match="prints no number in Table 3, row 'SL', column 'x'"):
        printed("dp_cutmixsl", "Table 3", "SL", "x")


# claims


def test_verdicts() -> None:
    found = VERDICTS["dp_cutmixsl"]
    assert all(
        found[f"ε′ of Corollary 1 is smallest at the group size {symbol}"] == "fails" for symbol in ("k₂*", "k₃*")
    )
    assert found["Fig. 7: k₂* of DP-MixSL"] == found["Fig. 7: k₃* of DP-CutMixSL"] == "reproduced"
    found = VERDICTS["accurate_sl"]
    verdicts = {claim.split(":")[0]: verdict for claim, verdict in found.items() if claim.startswith("Theorem 3")}
    assert verdicts == {
        "Theorem 3.1 (i)": "holds",
        "Theorem 3.1 (ii)": "holds",
        "Theorem 3.3": "unproven",
        "Theorem 3.4": "fails",
        "Theorem 3.5": "holds",
        "Theorem 3.7": "unproven",
    }
    bounds = [claim for claim, verdict in found.items() if claim.startswith("Table 11") and verdict == "holds"]
    assert bounds == ["Table 11: MLP on IMDB, gaussian noise 0.7"]
    assert VERDICTS["patch_shuffling"]["Proposition 2: σ-privacy over all patches of the batch"] == "fails"
    unlike = {claim for claim, verdict in VERDICTS["cutmixsl"].items() if verdict != "reproduced"}
    claim = "accuracy gain of Patch CutMix over Mixup"
    payload = {f"upload payload reduction: {column}" for column in ("least", "most")}  # 50 and 80 %, not 20 and 50 %
    assert unlike == {f"{claim}: ViT-Tiny", f"{claim}: PiT-Tiny"} | payload  # 4.53 and 7.27 points
    assert len(VERDICTS["patch_splitnn"]) == 4


@pytest.mark.parametrize("name", PAPERS)
def test_only_what_equals_a_printed_number_is_reproduced(name: str) -> None:
    for one in paper(name).comparisons():
        assert one.verdict != "reproduced" or None not in (one.published, one.ours), one.claim


def test_a_claim_fails_only_where_its_number_is_below_the_truth_or_off_it() -> None:
    for one in paper("dp_cutmixsl").comparisons():
        if one.claim.startswith(("Theorem 1", "Corollary 1 for")) and one.verdict == "fails":
            assert one.published is not None
            assert one.ours is not None
            assert one.published < one.ours


# figures


def test_budget_pictures_draw_what_is_proven_and_published() -> None:
    figure = budget_figures.against_group((2, 5), drawn=True)
    lines = (np.asarray(line.get_ydata(), float) for line in figure.axes[0].get_lines())
    drawn = [line for line in lines if len(line) == 2]
    for name in ("dp_sl", "dp_mixsl", "dp_cutmixsl"):
        experiments = [Experiment(name=name, group=group, drawn=True) for group in (2, 5)]  # type: ignore[arg-type]
        for values in ([e.proven(1e-5).epsilon for e in experiments], [e.published(1e-5)[0] for e in experiments]):
            assert any(np.array_equal(line, values) for line in drawn)
    assert Experiment(name="dp_cutmixsl", group=2, drawn=True).proven(1e-5).epsilon == pytest.approx(337.57, abs=5e-3)
    assert Experiment(name="dp_mixsl", group=2).proven(1e-5).epsilon == pytest.approx(114.42, abs=5e-3)
    assert "drawn from Dir(2)" in Experiment(name="dp_mixsl", drawn=True).published(1e-5)[1]


@pytest.mark.slow
def test_the_command_draws_every_figure(tmp_path: Path) -> None:
    for name in ("accurate_sl", "cutmixsl", "dp_cutmixsl"):
        out = tmp_path / "new" / name
        done = command(name, "--figures", str(out))
        assert done.exit_code == 0, done.output
        expected = {f"{picture}.{kind}" for picture in paper(name).figures() for kind in ("png", "svg")}
        assert {path.name for path in out.iterdir()} == expected


# orderings


def rows(**accuracies: float) -> list[dict[str, Any]]:
    """Rows of PSL and SFL, two seeds each."""
    base = {"dataset": "cifar10", "model": "vit_micro:cut=embedding", "partition": "iid"}
    return [
        {
            **base,
            "defense": f"none:protocol={protocol}",
            "protocol": protocol,
            "seed": seed,
            "accuracy": value + seed / 9,
        }
        for protocol, value in accuracies.items()
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("psl", "verdict"), [(0.2, "ordering agrees"), (0.29331, "agrees"), (0.5, "reversed"), (0.4, "undecided")]
)
def test_an_ordering_is_judged_on_the_same_seeds(psl: float, verdict: str) -> None:
    given = rows(psl=psl, splitfed=0.4)
    given[0]["accuracy"] += 1e-3  # two seeds that differ a little
    judged = {
        one.ordering.claim: one
        for one in orderings.ordering_verdicts("dp_cutmixsl", orderings.measured("dp_cutmixsl", given))
    }
    assert judged["SFL > PSL"].verdict == verdict
    assert judged["CutMixSL > SFL"].verdict == "not run"


@pytest.mark.parametrize(
    ("mixed", "floors", "verdict"),
    [
        (0.10, (0.06, 0.06), "at the floor"),  # the decoder recovers nothing on either side
        (0.10, (0.09, 0.09), "ordering agrees"),
        (0.10, (None, None), "ordering agrees"),  # rows that do not say
        (0.05, (0.06, 0.06), "reversed"),
    ],
)
def test_two_errors_at_the_floor_say_nothing(mixed: float, floors: tuple[float | None, ...], verdict: str) -> None:
    given = [
        {**row, "attack": "black_box", "auxiliary": "training", "mse": mse + row["seed"] / 1000, "mean_image": floor}
        for name, mse in (("random_cutmix", mixed), ("none", 0.08))
        for row, floor in zip(rows(psl=0.2), floors, strict=True)
        for row in [{**row, "defense": name, "protocol": "psl" if name == "none" else "cutmixsl"}]
    ]
    given[0]["mse"] += 1e-4
    judged = {
        one.ordering.claim: one
        for one in orderings.ordering_verdicts("dp_cutmixsl", orderings.measured("dp_cutmixsl", given))
    }
    assert judged["CutMixSL > PSL, error of a decoder"].verdict == verdict


def test_rows_of_other_settings_are_no_rows_of_a_method() -> None:
    given = rows(psl=0.2)
    given[0]["partition"] = "dirichlet:alpha=0.1"
    given[1]["defense"] = "random_cutmix:protocol=psl"
    found = {one.method: dict(one.values) for one in orderings.measured("dp_cutmixsl", given)}
    assert found["PSL"] == {}
    assert list(found["PSL, α_D=0.1"]) == [0]


def test_two_runs_at_once_are_refused() -> None:
    given = rows(psl=0.2) + rows(psl=0.3)
    with pytest.raises(UsageError, match=r"PSL, seed 0, has accuracy 0\.2 in one row and 0\.3 in another"):
        orderings.measured("dp_cutmixsl", given)


def test_every_method_of_an_ordering_is_declared() -> None:
    judged = [one for name in PAPERS for one in orderings.on_record(name)]
    assert len(judged) == sum(len(orderings.orderings(name)) for name in PAPERS)
    assert {one.verdict for one in judged} <= set(get_args(orderings.OrderingVerdict))


def test_no_ordering_is_judged_whose_sides_are_both_at_the_floor() -> None:
    """The floor of an accuracy is that of constant guesses, .1 of ten classes; that of an error is the mean image's."""
    for name in PAPERS:
        found = {(one.method, one.quantity): one for one in orderings.measured(name, orderings.audit_rows())}
        for one in orderings.on_record(name):
            sides = [found[method, one.ordering.quantity] for method in (one.ordering.better, one.ordering.worse)]
            if one.verdict in ("not run", "at the floor"):
                continue
            if one.ordering.quantity == "accuracy":
                assert max(mean(side.values) for side in sides) > 0.12, one.ordering
            elif all(side.floors for side in sides):
                assert any(mean(side.values) < mean(side.floors) for side in sides), one.ordering


def test_every_ordering_was_run_and_at_most_15_are_undecided() -> None:
    verdicts = [one.verdict for name in PAPERS for one in orderings.on_record(name)]
    assert (len(verdicts), verdicts.count("not run")) == (71, 0)
    assert verdicts.count("undecided") <= 15


def mean(of_seed: Mapping[int, float]) -> float:
    return sum(of_seed.values()) / len(of_seed)


def test_a_published_difference_is_that_of_its_numbers() -> None:
    for name in PAPERS:
        for one in orderings.orderings(name):
            if one.numbers is not None:
                assert one.published(name) != 0
    (sfl,) = (one for one in orderings.orderings("dp_cutmixsl") if one.claim == "SFL > PSL")
    assert sfl.published("dp_cutmixsl") == pytest.approx((67.88 - 57.21) / 100)


def test_a_method_under_an_attack_is_one_of_that_attack_alone() -> None:
    row = {**rows(psl=0.2)[0], "protocol": "psl", "defense": "none", "attack": "black_box", "auxiliary": "training"}
    assert orderings.wanted("dp_cutmixsl", row) == ("mse",)
    assert orderings.wanted("dp_cutmixsl", {**row, "attack": "mean_image"}) == ("accuracy",)
    assert orderings.wanted("dp_cutmixsl", {**row, "dataset": "digits"}) == ()
    found = {(one.method, one.quantity): one for one in orderings.measured("dp_cutmixsl", [{**row, "mse": 0.1}])}
    assert dict(found["PSL under a decoder", "mse"].values) == {0: 0.1}


# the command


def test_the_list_names_every_paper() -> None:
    done = command("--json")
    assert [one["paper"] for one in json.loads(done.stdout)] == list(PAPERS)
    assert all(name in command().stdout for name in PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_is_printed(name: str) -> None:
    answer = json.loads(command(name, "--json").stdout)
    assert {one["claim"]: one["verdict"] for one in answer["claims"]} == VERDICTS[name]
    assert answer["paper"] == name
    assert paper(name).title in command(name).stdout


def test_a_table_is_printed() -> None:
    done = command("cutmixsl", "--table", "table 3")
    assert "0.0056" in done.stdout
    assert len(json.loads(command("cutmixsl", "--table", "Table 3", "--json").stdout)) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dp_cutmix"], "unknown paper 'dp_cutmix'; did you mean 'dp_cutmixsl'?"),
        (["cutmixsl", "--table", "Table 9"], "unknown table of cutmixsl 'Table 9'; did you mean 'Table"),
        (
            ["patch_splitnn", "--figures", "x"],
            "patch_splitnn has no figures; papers with figures: accurate_sl, cutmixsl, dp_cutmixsl, patch_shuffling",
        ),
        (["accurate_sl", "--results", "x"], "accurate_sl publishes no ordering that is judged here"),
        (["cutmixsl", "--results", "nothing"], "nothing cannot be read"),
        (["--figures", "x"], "--figures belongs to one paper: name it"),
    ],
)
def test_refusals(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)


def test_rows_of_another_dataset_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(rows(psl=0.1)[0] | {"dataset": "digits"}))
    done = command("dp_cutmixsl", "--results", str(file))
    assert f"no row of {file} belongs to a method of dp_cutmixsl: audit one of its experiments" in str(done.exception)


@pytest.mark.parametrize("line", ["{", "[1]", '{"accuracy": 1}'])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(rows(psl=0.1)[0])}\n{line}\n")
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 2, is not a row of an audit"):
        orderings.audit_rows(file)


# experiments

EXPERIMENTS = {f"{name}/{path.stem}": path for name in PAPERS for path in paper(name).experiments}


@pytest.mark.parametrize("path", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_an_experiment_is_an_audit(path: Path) -> None:
    """Names, options, protocols and sizes are read and checked as `privkit audit --config` does before any work."""
    config = resolve(preset_settings(path))
    cells = plan(config)
    assert len({cell.id for cell in cells}) == len(cells) >= 2
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.slow
def test_the_small_experiments_measure_every_method_of_the_orderings() -> None:
    """Rows of the small experiments are rows of the methods, so that their runs can be judged."""
    missing = {
        one.method for name in PAPERS for one in orderings.measured(name, _rows_of_experiments()) if not one.values
    }
    assert missing == set()


def _rows_of_experiments() -> list[dict[str, Any]]:
    """What each cell of the small experiments would say of itself, with one value for all."""
    return [
        {
            "defense": cell.defense.label,
            "protocol": part.protocol.label,
            "dataset": part.dataset.label,
            "model": part.model.label,
            "partition": part.partition.label,
            "seed": cell.seed,
            "attack": cell.attack.label,
            "auxiliary": part.auxiliary,
            "accuracy": 0.5,
            "mse": 0.1,
        }
        for name, path in EXPERIMENTS.items()
        if name.endswith("_small")
        for part in resolve(preset_settings(path)).parts
        for cell in plan(replace(part, also=()))
    ]
