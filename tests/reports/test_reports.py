"""Tables from rows that a test makes up and from a real run."""

import csv
import io
import json
import re
from typing import get_args, get_type_hints

import pytest
from pydantic import ValidationError

from privkit.audit.run import AuditRun
from privkit.reports import answers, columns, tables
from privkit.reports.gate import Gate
from privkit.reports.schema import Metric, Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.strongest import strongest
from privkit.reports.verdict import judge
from privkit.shared.interval import Interval
from privkit.training import TrainingSpec
from tests.reports.made import made, metric


def test_rows_survive_json_and_refuse_unknown_keys(small_run: AuditRun) -> None:
    for row in small_run.rows:
        text = row.model_dump_json()
        assert Row.model_validate_json(text) == row
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        with pytest.raises(ValidationError):
            Row.model_validate_json(text[:-1] + ', "extra": 1}')
        assert row.certificate is not None
        assert row.certificate.epsilon == float("inf")


def test_a_row_holds_every_choice_of_the_kept_epoch() -> None:
    choices = get_args(get_type_hints(TrainingSpec)["keep"])
    assert choices == get_args(Row.model_fields["kept"].annotation)
    assert {Row.model_validate(made().model_dump() | {"kept": kept}).kept for kept in choices} == set(choices)


def parsed_markdown(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_same_numbers_in_every_format(small_run: AuditRun) -> None:
    rows = list(small_run.rows)
    shown = tables.table(rows)
    head, rule, *body = parsed_markdown(tables.table_markdown(shown))
    assert tuple(head) == shown.headers
    assert set(rule) == {"---"}
    assert [tuple(line) for line in body] == list(shown.rows)
    assert shown.floor == (False, False, True, True, True, True, True)
    ssim = rows[1].recovered["unaligned"]["ssim"]
    assert f"{ssim.value:.3f} [{ssim.low:.3f}, {ssim.high:.3f}]" in shown.rows[1]
    records = list(csv.DictReader(io.StringIO(columns.to_csv(rows))))
    assert [float(record["unaligned_ssim"]) for record in records] == [
        row.recovered["unaligned"]["ssim"].value for row in rows
    ]
    assert float(records[1]["floor_mean_image_unaligned_mse"]) == rows[1].floors["mean_image"]["unaligned"]["mse"].value
    assert float(records[1]["log10_permutations"]) > 1000
    assert records[1]["check_wins_on_identity"] == "True"


def test_a_start_is_no_floor() -> None:
    """An attack before its first step may know the client's segment: SSIM .857, shown as a start."""
    best = {"unaligned": {"ssim": metric(0.857, 0.8, 0.9, worst=0.9, closer=True)}}
    rows = [made(seed=seed, attack="white_box", floors={"zero_steps": best, "mean_image": best}) for seed in (0, 1)]
    firsts = {line[1]: line[0] for line in tables.table(rows).rows[1:3]}
    assert firsts == {"white_box on batch_shuffle before its first step": "start", "mean image": "floor"}
    assert {line[0] for line in tables.summary_table(over_seeds(rows), rows).rows} == {
        "batch_shuffle",
        "start",
        "floor",
    }
    header = columns.to_csv(rows).splitlines()[0]
    assert "start_unaligned_ssim" in header
    assert "zero_steps" not in header


def test_bits_of_an_order_are_shown_where_the_bound_says_something() -> None:
    """At its maximum a bound says nothing: rows of older runs have such numbers, too, and gates read them."""
    cells = []
    for left in (None, 5526.0, 5485.0):
        bits = {"bits_before": 5526.0, "bits_left": left, "direct": 0.926}
        told = {
            name: Interval(value=value, low=value, high=value, n=2, method="m") for name, value in bits.items() if value
        }
        shown = answers.orders_table([made(answers=told)])
        assert shown is not None
        cells.append(shown.rows[0][-1])
    assert cells == [tables.UNKNOWN, tables.UNKNOWN, "5485 of 5526"]
    assert "It is the order of a message if tokens move between images" in answers.ORDER_NOTE


def test_few_seeds_are_named_and_their_intervals_stay_in_range() -> None:
    rows = [made(seed=0, accuracy=Interval(value=0.29, low=0, high=1, n=9, method="m"))]
    rows.append(made(seed=1, accuracy=Interval(value=0.395, low=0, high=1, n=9, method="m")))
    summaries = over_seeds(rows)
    assert "2 seeds is wide" in tables.summary_note(summaries)
    assert "wide" not in tables.summary_note([summary.model_copy(update={"seeds": range(5)}) for summary in summaries])
    assert summaries[0].values["accuracy"].low > 0


def test_a_pair_without_numbers_of_two_seeds_stands_in_the_table_over_seeds() -> None:
    """A pair that is not applicable was left out without a word."""
    seeds = (0, 1)
    rows = [made(seed=seed, floors={"mean_image": made().recovered}) for seed in seeds]
    rows += [made(seed=seed, attack="knn", status="not_applicable", recovered={}) for seed in seeds]
    rows += [made(seed=0, attack="ridge"), made(seed=1, attack="ridge", status="error", recovered={})]
    (shown, _), *_ = answers.run_tables(rows)
    assert [line[:2] for line in shown.lines(floors=False)] == [
        ("batch_shuffle", attack) for attack in ("black_box", "knn", "ridge")
    ]
    assert [line[2:5] for line in shown.rows[1:3]] == [("0", "–", "not applicable"), ("1", "–", "error")]
    assert len(shown.lines(floors=True)) == 1


def test_latex_is_a_complete_tabular(small_run: AuditRun) -> None:
    text = tables.table_latex(tables.table(list(small_run.rows)))
    assert text.startswith(r"\begin{tabular}")
    assert text.count(r"\midrule") == 2
    columns = text.splitlines()[2].count("&")
    assert all(line.count("&") == columns for line in text.splitlines() if line.endswith(r"\\"))
    assert not re.search(r"(?<!\\)_", text)
    assert text.isascii()


def test_rows_without_numbers_say_why() -> None:
    failed = made(status="error", reason="RuntimeError: no", accuracy=None, recovered={})
    (line,) = tables.table([failed]).rows
    assert line[3:5] == (tables.UNKNOWN, "error")
    assert len(line) == len(tables.HEADERS)
    assert columns.to_csv([failed]).splitlines()[1].count("RuntimeError: no") == 1


@pytest.mark.parametrize(("name", "records"), [("rouge_1", "texts"), ("cells", "table rows"), ("ssim", "images")])
def test_scores_that_no_order_hides_stand_in_both_tables_whatever_the_records(name: str, records: str) -> None:
    def of(share: float) -> dict[str, Metric]:
        return {name: metric(share, share - 0.1, share + 0.1, worst=share, closer=True)}

    found = {"unaligned": of(0.125), "matched": of(0.875)}
    rows = [made(seed=seed, cell=f"c{seed}", recovered=found, records=records) for seed in (0, 1)]
    single, over = tables.table(rows), tables.summary_table(over_seeds(rows), rows)
    assert single.rows[0][single.headers.index("matched")] == "0.875"
    assert over.rows[0][over.headers.index("matched")] == "0.875 [0.804, 0.946]"


def test_a_defense_is_judged_by_its_strongest_attack() -> None:
    def attacked(attack: str, mse: float, **changes: object) -> Row:
        found = metric(mse, mse, mse, worst=mse, closer=False)
        return made(attack=attack, cell=attack, recovered={"unaligned": {"mse": found}, "matched": {}}, **changes)

    weak, strong, floor = attacked("black_box", 0.05), attacked("jigsaw", 0.02), attacked("mean_image", 0.01)
    failed = made(attack="white_box", status="error", reason="x", recovered={})
    other = attacked("black_box", 0.03, defense="mixup")
    found = strongest([weak, strong, floor, failed, other])
    assert [(entry.row.attack, entry.row.defense, entry.attacks) for entry in found] == [
        ("jigsaw", "batch_shuffle", 2),  # a constant guess needs no release, so it is no attack
        ("black_box", "mixup", 1),
    ]
    assert [entry.row.attack for entry in strongest([floor])] == ["mean_image"]
    assert strongest([failed]) == []


def test_seeds_are_told_apart() -> None:
    shown = tables.table([made(seed=0), made(seed=1)])
    assert [row[:3] for row in shown.rows] == [("batch_shuffle", "black_box", seed) for seed in ("0", "1")]
    summary = tables.summary_table(over_seeds([made(seed=0), made(seed=1)]), [])
    assert summary.rows[0][:4] == ("batch_shuffle", "black_box", "2", "0.900 [0.829, 0.935]")


def test_a_gate_that_failed_stays_failed_although_a_later_finding_on_the_same_row_meets_it() -> None:
    rows = [made(cell=model, attack=model, threat_model=model) for model in ("passive", "query")]
    verdict = judge([], rows, [Gate.parse("weights: accuracy>=0.1")], run="r")
    assert [check.met for check in verdict.checks if check.kind == "gate"] == [False, True, True]
    (first, second) = csv.DictReader(io.StringIO(columns.to_csv(rows, verdict)))
    assert [line["gate_weights: accuracy>=0.1"] for line in (first, second)] == ["False", "True"]
