"""Verdicts under threat models: what each word is earned by, from rows that a test makes up."""

from typing import Any

import pytest

from privkit.parts.threats import threats_of
from privkit.reports import tables
from privkit.reports.columns import CLAIM, DECLARATION
from privkit.reports.gate import Gate
from privkit.reports.schema import Check, Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.strongest import beats, counted, falls
from privkit.reports.threats import FAILED_CONTROL, OTHERS, KnownOutcome, ThreatVerdict, threat_verdicts, threats_table
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS
from tests.reports.made import made, metric

REGISTERED = {"query": ["black_box", "jigsaw"], "weights": ["white_box"], "malicious": ["fsha"], OTHERS: ["canaries"]}


def attacked(attack: str, model: str, mse: float, ssim: float = 0.3, **changes: object) -> Row:
    """A row whose interval is a tenth wide to both sides, over a mean image of MSE .07 and a class mean of .06."""

    def of(mean: float, high: float) -> dict[str, object]:
        return {
            "unaligned": {
                "mse": metric(mean, 0.9 * mean, 1.1 * mean, worst=mean, closer=False),
                "ssim": metric(high, 0.9 * high, 1.1 * high, worst=high, closer=True),
            }
        }

    floors = {"mean_image": of(0.07, 0.18), "class_mean": of(0.06, 0.17)}
    fields = {"recovered": of(mse, ssim), "floors": floors, "cell": f"{attack}{changes}"}
    return made(attack=attack, threat_model=model, **{**fields, **changes})


def alone(*rows: Row, known: dict[str, list[KnownOutcome]] | None = None) -> dict[str, ThreatVerdict]:
    """The verdicts on these rows and no others."""
    return {
        one.threat_model: one
        for one in threat_verdicts(rows, over_seeds([counted(row) for row in rows]), REGISTERED, known or {})
    }


def judged(*rows: Row) -> dict[str, ThreatVerdict]:
    """The verdicts on these rows, whose attacks win on the undefended model."""
    won = [attacked(row.attack, row.threat_model, 0.01, 0.9, defense="none", seed=row.seed) for row in rows]
    return alone(*rows, *won)


def test_models_include_their_own_and_nest_where_that_is_true() -> None:
    assert all(INCLUDES[model][0] == model for model in THREAT_MODELS)
    assert all("passive" in included for included in INCLUDES.values())
    assert "weights" not in INCLUDES["many_passes"]
    assert "many_passes" not in INCLUDES["weights"]
    both = {model for model in THREAT_MODELS if {"weights", "many_passes"} <= set(INCLUDES[model])}
    assert both == {"weights_and_many_passes"}
    alone = judged(attacked("white_box:passes=8", "weights_and_many_passes", 0.01))
    assert alone["weights_and_many_passes"].sentence.startswith("falls to white_box:passes=8: ")
    assert {alone[model].outcome for model in ("weights", "many_passes")} == {"not_tried"}


def test_a_defense_falls_to_the_strongest_attack_that_the_adversary_could_mount() -> None:
    found = judged(
        attacked("black_box", "query", 0.05),
        attacked("jigsaw", "query", 0.054, 0.4, queries=1052),
        attacked("fsha", "malicious", 0.09),
    )
    assert found["query"].sentence == (
        "falls to jigsaw: SSIM 0.400 [0.360, 0.440] (mean image 0.180), MSE 0.0540 [0.0486, 0.0594] "
        "(class mean 0.0600); 1,052 rounds of queries"
    )
    assert found["query"].against == ("black_box",)
    assert found["query"].untried == ()
    assert found["weights"].sentence.startswith("falls to jigsaw, as under query: ")
    assert found["weights"].untried == ("white_box",)
    assert found["weights_and_many_passes"].sentence.startswith("falls to jigsaw, as under query: ")
    held = "holds against fsha, which wins on the undefended model: SSIM 0.300"
    assert found["malicious"].sentence.startswith(held)
    assert (found["passive"].outcome, found["passive"].sentence) == ("not_tried", "not tried")
    assert found[OTHERS].untried == ("canaries",)


@pytest.mark.parametrize(
    ("bare", "told"), [((0, 1, 2), "undefended 0.90"), ((0, 2), "undefended 0.90 in 2 of 3 seeds")]
)
def test_a_mean_of_fewer_undefended_models_says_so(bare: tuple[int, ...], told: str) -> None:
    """Where an attack won with a seed, it need not meet the undefended model with that seed."""

    def of(seed: int, share: float, **changes: Any) -> Row:
        row = attacked("black_box", "query", 0.05, seed=seed, **changes)
        found = {**row.recovered["unaligned"], "identified": metric(share, share, share, worst=0.0, closer=True)}
        return row.model_copy(update={"recovered": {"unaligned": found}})

    rows = [of(seed, 0.5) for seed in range(3)]
    found = alone(*rows, *(of(seed, 0.9, defense="none") for seed in bare))["query"]
    assert found.measured.endswith(f"({told})")
    assert found.undefended == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("mse", "outcome"), [(0.0699, "holds"), (0.0637, "holds"), (0.0635, "class"), (0.0546, "class"), (0.0545, "falls")]
)
def test_the_whole_interval_decides(mse: float, outcome: str) -> None:
    row = attacked("black_box", "query", mse)
    assert judged(row)["query"].outcome == outcome
    assert falls(row) == (outcome == "falls")


@pytest.mark.parametrize(("mse", "low", "outcome"), [(0.0599, 0.0001, "falls"), (0.05, -0.0001, "holds")])
def test_the_differences_of_the_same_records_decide_where_a_row_has_them(mse: float, low: float, outcome: str) -> None:
    """Rows of older runs have none."""
    ahead = {
        name: {"mse": metric(floor - mse, low, 0.04, worst=0.05, closer=True)}
        for name, floor in (("mean_image", 0.07), ("class_mean", 0.06))
    }
    row = attacked("black_box", "query", mse, ahead=ahead)
    assert judged(row)["query"].outcome == outcome
    assert falls(row) == (outcome == "falls")
    told = judged(row)["query"].sentence.endswith("[0.0001, 0.0400], compared record by record")
    assert told == (outcome == "falls")
    older = Row.model_validate(row.model_dump(exclude={"ahead"}))
    assert older.ahead == {}
    assert falls(older) != falls(row)


def test_what_does_not_apply_or_failed_or_cannot_be_trusted_is_no_verdict() -> None:
    forbidden = attacked("jigsaw", "query", 0.05, status="not_applicable", reason="no queries", recovered={}, floors={})
    broken = attacked("white_box", "weights", 0.05, status="error", reason="boom", recovered={}, floors={})
    weak = Check(name="wins_on_identity", passed=False, detail="no", decisive=True)
    untrusted = attacked("fsha", "malicious", 0.09, checks=(weak,))
    found = judged(forbidden, broken, untrusted, attacked("sdar", "passive", 0.08))
    assert found["query"].sentence == "not possible: no queries"
    assert found["weights"].sentence == "no sound number: white_box ended in an error"
    assert found["malicious"].sentence == "no sound number: fsha failed its control"
    assert found["weights"].outcome == found["malicious"].outcome == "no_number"
    assert found["passive"].outcome == "holds"
    beside = judged(broken, attacked("mine:Bad", "query", 0.09, checks=(weak,)), attacked("black_box", "query", 0.08))
    assert beside["weights"].against == ("black_box",)


def test_a_break_by_an_attack_that_failed_its_control_says_so_and_a_sound_one_comes_first() -> None:
    """One read the private images from memory, and the first sentence of its run was that the defense protects none."""
    weak = Check(name="wins_on_identity", passed=False, detail="no", decisive=True)
    cheat, honest = attacked("mine:Cheat", "query", 0.01, 0.9, checks=(weak,)), attacked("jigsaw", "query", 0.05)
    alone_ = judged(cheat)["query"]
    assert alone_.uncontrolled
    assert alone_.remarks[0] == f"mine:Cheat {FAILED_CONTROL}"
    assert alone_.sentence.startswith("falls to mine:Cheat: SSIM 0.900")
    both = judged(cheat, honest)["query"]
    assert not both.uncontrolled
    assert (both.attack, both.against) == ("jigsaw", ())
    assert both.remarks == ("no sound number: mine:Cheat failed its control",)
    seeds = [attacked("jigsaw", "query", 0.05), attacked("jigsaw", "query", 0.05, seed=1, checks=(weak,))]
    assert not judged(*seeds)["query"].uncontrolled
    assert judged(*seeds)["query"].remarks == ("no sound number: jigsaw failed its control in 1 of 2 seeds",)


def test_a_failed_attack_that_was_not_given_what_made_the_release_shows_nothing() -> None:
    """What an attack on a recording knows of the lower segment may be another one's; what recovers, recovers."""
    doubt = "the recorded lower segment does not reproduce the release"
    blind = attacked("white_box", "weights", 0.09, doubt=doubt)
    found = judged(blind, attacked("sdar", "passive", 0.08))
    assert found["weights"].outcome == "not_shown"
    assert found["weights"].sentence.startswith(f"not shown: {doubt}; white_box: SSIM 0.300")
    assert found["passive"].outcome == "holds"
    assert judged(attacked("white_box", "weights", 0.05, doubt=doubt))["weights"].outcome == "falls"
    both = judged(blind, attacked("other", "weights", 0.08))["weights"]
    assert both.sentence.startswith("holds against other, which wins on the undefended model")


def test_a_refuted_claim_says_nothing_about_an_attack_s_numbers() -> None:
    for name in (CLAIM, DECLARATION):
        refuted = Check(name=name, passed=False, detail="no", decisive=True)
        assert judged(attacked("black_box", "query", 0.09, checks=(refuted,)))["query"].outcome == "holds"


def test_a_defense_does_not_hold_in_silence_against_attacks_that_failed() -> None:
    held = attacked("black_box", "query", 0.07, 0.18)
    lost: dict[str, Any] = {"status": "error", "recovered": {}, "floors": {}}
    found = judged(held, attacked("jigsaw", "query", 0.0, reason="boom", **lost))["query"]
    assert found.outcome == "holds"
    assert found.sentence.endswith("; no sound number: jigsaw ended in an error")
    assert found.remarks == ("no sound number: jigsaw ended in an error",)
    assert found.measured.startswith("SSIM 0.180 [0.162, 0.198]")
    weak = Check(name="wins_on_identity", passed=False, detail="no", decisive=True)
    assert judged(held, attacked("jigsaw", "query", 0.08, checks=(weak,)))["query"].sentence.endswith(
        ": jigsaw failed its control"
    )
    two = [attacked("jigsaw", "query", 0.08, seed=0), attacked("jigsaw", "query", 0.08, seed=1, checks=(weak,))]
    assert judged(*two)["query"].sentence == "no sound number: jigsaw failed its control in 1 of 2 seeds"
    seeds = [attacked("jigsaw", "query", 0.08, seed=0), attacked("jigsaw", "query", 0.0, seed=1, **lost)]
    assert judged(held, *seeds)["query"].sentence.endswith(
        "; no sound number: jigsaw ended in an error in 1 of 2 seeds"
    )


@pytest.mark.parametrize(("best", "floor", "told"), [(0.98, 0.5, True), (0.98, 0.99, False), (0.8, 0.5, False)])
def test_a_defense_does_not_hold_in_silence_where_one_image_is_recovered(best: float, floor: float, told: bool) -> None:
    """The mean is no better than a constant, and yet one guess is the image; a constant may be one by chance."""
    row = attacked("jigsaw", "query", 0.09, 0.1)
    row.recovered["unaligned"]["ssim"] = metric(0.1, 0.05, 0.15, worst=best, closer=True)
    row.floors["mean_image"]["unaligned"]["ssim"] = metric(0.18, 0.18, 0.18, worst=floor, closer=True)
    found = judged(row)["query"]
    remark = "but at least one image is recovered: the best guess of jigsaw has SSIM 0.98"
    assert found.outcome == "holds"
    assert found.remarks == ((remark,) if told else ())
    assert found.sentence.endswith(f"; {remark}") == told


def test_images_that_were_recovered_in_another_order_are_told() -> None:
    """As of a mixup with secret groups: the attack gets every image, and cannot say whose it is.

    The whole interval must lie below half of the mean image's error, .035: of .034 its upper end does not.
    """
    row = attacked("unmix", "many_passes", 0.12)
    for error, told in ((0.001, True), (0.034, False), (0.06, False)):  # .034: only its upper limit is too large
        matched = {"mse": metric(error, 0.9 * error, 1.1 * error, worst=error, closer=False)}
        mean = row.floors["mean_image"]["unaligned"]
        floors = row.floors | {"mean_image": {"unaligned": mean, "matched": mean}}
        other = row.model_copy(update={"recovered": row.recovered | {"matched": matched}, "floors": floors})
        sentence = judged(other)["many_passes"].sentence
        assert sentence.startswith("holds against unmix")
        assert sentence.endswith(f"though not which is which: after matching, unmix has MSE {error:.4f}") == told


@pytest.mark.parametrize(("cells", "told"), [(1.0, True), (0.9, True), (0.6, False)])
def test_table_rows_that_were_recovered_in_another_order_are_told(cells: float, told: bool) -> None:
    """A constant row has 40 % of the cells: to have half as many wrong, 70 % must be right, by the whole interval."""

    def of(share: float) -> dict[str, object]:
        return {"cells": metric(share, 0.9 * share, min(1.0, 1.1 * share), worst=share, closer=True)}

    floors = {name: {"unaligned": of(0.4), "matched": of(0.4)} for name in ("column_mean", "class_mean")}
    fields = {"recovered": {"unaligned": of(0.1), "matched": of(cells)}, "floors": floors, "records": "table rows"}
    row = made(attack="black_box", threat_model="query", **fields)
    won = row.model_copy(update={"defense": "none", "recovered": {"unaligned": of(1.0), "matched": of(1.0)}})
    sentence = alone(row, won)["query"].sentence
    assert sentence.startswith("holds against black_box")
    remark = f"but table rows are recovered, though not which is which: after matching, black_box has cells {cells:.3f}"
    assert sentence.endswith(remark) == told


@pytest.mark.parametrize(("own", "outcome"), [(90, "class"), (2_000, "falls"), (0, "falls")])
def test_what_few_own_records_explain_is_no_record(own: int, outcome: str) -> None:
    """Five classes among 50 records: a mean of 18 explains .003 of its error .06, and one of 400 explains .0001."""
    row = attacked("ridge", "query", 0.058, counts={"auxiliary": own} if own else {})
    for name, difference in (("class_mean", 0.002), ("mean_image", 0.01)):
        row.ahead[name] = {"mse": metric(difference, 0.5 * difference, 2 * difference, worst=difference, closer=True)}
        row.floors[name]["unaligned"]["identified"] = metric(0.1, 0.1, 0.1, worst=1.0, closer=True)
    assert (beats(row, "class_mean"), beats(row, "mean_image")) == (outcome == "falls", True)
    assert judged(row)["query"].outcome == outcome


TWIN = attacked("black_box", "query", 0.01, 0.9, defense="none")
FAILS = attacked("black_box", "query", 0.069, defense="none")
UNLEARNED = Check(name="learned", passed=False, detail="no", decisive=False)
LEARNING = Check(name="converged", passed=False, detail="no", decisive=False)


@pytest.mark.parametrize(
    ("twin", "checks", "why"),
    [
        ([], (), "the undefended model was not attacked"),
        (
            [attacked("black_box", "query", 0, defense="none", status="error", recovered={}, floors={})],
            (),
            "not attacked",
        ),
        ([TWIN.model_copy(update={"seed": 1})], (), "the undefended model was not attacked"),
        ([TWIN.model_copy(update={"protocol": "other"})], (), "the undefended model was not attacked"),
        ([TWIN.model_copy(update={"attack": "jigsaw"})], (), "the undefended model was not attacked"),
        ([FAILS], (), "the attack fails on the undefended model as well"),
        ([TWIN.model_copy(update={"checks": (UNLEARNED,)})], (), "the undefended model is not shown to have learned"),
        ([TWIN], (LEARNING,), "the attack was still learning"),
        ([TWIN], (), ""),
    ],
)
@pytest.mark.parametrize("mse", [0.0699, 0.0635])
def test_holding_and_the_class_alone_need_an_attack_with_power(
    twin: list[Row], checks: tuple[Check, ...], why: str, mse: float
) -> None:
    """The second error beats the mean image and not the class mean."""
    found = alone(attacked("black_box", "query", mse, checks=checks), *twin)["query"]
    if not why:
        assert found.outcome == ("class" if mse < 0.069 else "holds")
        return
    assert found.outcome == "not_shown"
    assert found.sentence.startswith("not shown: ")
    assert why in found.sentence
    assert ("black_box gives away the class" in found.remarks) == (mse < 0.069)
    winning = attacked("black_box", "query", 0.05, checks=checks)
    assert alone(winning, *twin)["query"].outcome == "falls"  # what is recovered needs no twin


def test_the_class_alone_is_its_own_word() -> None:
    found = judged(attacked("black_box", "query", 0.0635), attacked("white_box", "weights", 0.08))
    start = "gives away the class only, to black_box; no record to black_box, which wins on the undefended model: SSIM"
    assert found["query"].sentence.startswith(start)
    assert found["weights"].outcome == "class"


@pytest.mark.parametrize("mse", [0.03, 0.05, 0.0599, 0.0635, 0.0699, 0.09])
def test_the_undefended_model_never_holds(mse: float) -> None:
    rows = [attacked(name, model, mse, defense="none") for name, model in (("black_box", "query"), ("a", "weights"))]
    for one in alone(*rows).values():
        assert one.outcome in ("falls", "not_shown", "not_tried")
    falls_at = 1.1 * mse < 0.06
    assert (alone(*rows)["query"].outcome == "falls") == falls_at
    assert ("the attack fails on the undefended model;" in alone(*rows)["query"].sentence) != falls_at


@pytest.mark.parametrize(("share", "low", "outcome"), [(0.3, 0.21, "falls"), (0.12, 0.06, "holds")])
def test_sharp_guesses_that_identify_records_give_them_away_whatever_their_error(
    share: float, low: float, outcome: str
) -> None:
    """The most that a guess by the label reaches is a record of each class, here a tenth."""
    row = attacked("jigsaw", "query", 0.09)
    row.recovered["unaligned"]["identified"] = metric(share, low, share + 0.1, worst=1, closer=True)
    for floor in row.floors.values():
        floor["unaligned"]["identified"] = metric(0.04, 0.04, 0.1, worst=1, closer=True)
    found = judged(row)["query"]
    assert found.outcome == outcome
    assert f"identified {share:.2f} [{low:.2f}, {share + 0.1:.2f}] (mean image 0.04" in found.sentence
    assert found.identified is not None
    assert found.identified.value == share


def test_a_stronger_attack_that_the_table_knows_is_named_with_its_figure() -> None:
    known = {"batch_shuffle": [KnownOutcome("jigsaw", "query", 0.678), KnownOutcome("white_box", "weights", 0.9)]}
    held, won = attacked("black_box", "query", 0.0699), attacked("black_box", "query", 0.05)
    found = alone(held, TWIN, known=known)["query"]
    assert found.outcome == "holds"
    assert found.remarks == ("a stronger attack is known and was not mounted: jigsaw with SSIM 0.678 on digits",)
    both = attacked("jigsaw", "query", 0.0699), attacked("jigsaw", "query", 0.01, 0.9, defense="none")
    assert alone(held, TWIN, *both, known=known)["query"].remarks == ()
    assert alone(won, TWIN, known=known)["query"].remarks == ()


def test_rows_without_the_class_mean_say_what_they_were_compared_with() -> None:
    row = attacked("black_box", "query", 0.0599)
    older = row.model_copy(update={"floors": {"mean_image": row.floors["mean_image"]}})
    assert judged(older)["query"].remarks == ("compared with constant guesses alone",)


def test_attacks_on_labels_say_nothing_of_what_images_looked_like() -> None:
    asked: dict[str, Any] = {
        "recovered": {},
        "floors": {},
        "status": "not_applicable",
        "reason": "canaries are for noise",
    }
    for status in ("not_applicable", "error"):
        found = judged(
            attacked("black_box", "query", 0.07), attacked("canaries", "malicious", 0.0, **{**asked, "status": status})
        )
        assert (found["malicious"].outcome, found["malicious"].sentence) == ("not_tried", "not tried")


def test_one_seed_that_falls_is_a_fall_and_means_are_shown() -> None:
    rows = [attacked("jigsaw", "query", mse, seed=seed) for seed, mse in enumerate((0.02, 0.03, 0.08))]
    sentence = judged(*rows)["query"].sentence
    assert sentence.startswith("falls to jigsaw in 2 of 3 seeds: SSIM 0.300")
    assert f"MSE {0.13 / 3:.4f}" in sentence


def test_a_gate_is_judged_by_the_strongest_of_all_threat_models() -> None:
    rows = [attacked("jigsaw", "query", 0.05, 0.3), attacked("white_box", "weights", 0.02, 0.6)]
    (failure,) = Gate.parse("ssim<=0.5").failures(rows)
    assert failure.startswith("batch_shuffle / white_box")
    assert Gate.parse("ssim<=0.5").failures(rows[:1]) == []


def test_the_undefended_model_has_a_verdict_only_if_it_is_alone() -> None:
    rows = [attacked("black_box", "query", 0.02, defense=defense) for defense in ("none", "mixup")]
    assert {one.defense for one in threats_of(rows)} == {"mixup"}
    assert {one.defense for one in threats_of(rows[:1])} == {"none"}


def test_older_rows_and_rows_of_other_questions_have_no_verdict() -> None:
    assert threats_of([attacked("black_box", "", 0.02)]) == []
    assert threats_table(threats_of([])) is None


def test_a_measure_that_nobody_declared_decides_in_rows_that_have_it_alone() -> None:
    """As of a plug-in's records: their first measure is shown by its name."""
    value, guess = (metric(mean, mean - 1, mean + 1, worst=mean, closer=True) for mean in (18.0, -3.0))
    sides: dict[str, Any] = {
        "recovered": {"unaligned": {"si_snr": value}},
        "floors": {"silence": {"unaligned": {"si_snr": guess}}},
    }
    row = attacked("black_box", "query", 0.0, **sides)
    found = judged(row)["query"]
    assert found.sentence == (
        "falls to black_box: si_snr 18.000 [17.000, 19.000] (silence -3.000); compared with constant guesses alone"
    )
    assert tables.table([row]).headers[4] == "si_snr"
    assert tables.table([row]).rows[0][4] == "18.000 [17.000, 19.000]"
