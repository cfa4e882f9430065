"""Gates: what a condition may name, at which end of an interval it is judged, and what never passes."""

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from privkit.audit.run import AuditRun
from privkit.errors import UsageError
from privkit.reports.answers import answers_table
from privkit.reports.columns import BY_PATTERN, CLAIM, GATED, SHORT, assumed, flat_record, numbers
from privkit.reports.gate import EXEMPT, Gate, GateError
from privkit.reports.schema import Check, Metric, Row
from privkit.reports.verdict import judge
from privkit.settings.values import as_gates
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.interval import Interval
from privkit.shared.limits import Limits
from privkit.shared.measures import ANSWERS, OF_RECORDS
from tests.reports.made import made, metric


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("ssim<=0.4", True),  # the whole interval [0.2, 0.4] meets it
        ("ssim<=0.39", False),
        ("unaligned_ssim<0.4", False),
        ("ssim >= 0.2", True),
        ("accuracy>0.8", False),
        ("accuracy>=0.8", True),
        ("unaligned_ssim_worst<=0.8", True),
        ("unaligned_ssim_worst<0.8", False),
    ],
)
def test_conditions_hold_at_the_end_that_is_worse_for_the_defense(text: str, met: bool) -> None:
    assert (Gate.parse(text).failures([made()]) == []) is met


def test_a_missing_number_or_nan_never_meets_a_condition() -> None:
    nan = metric(float("nan"), 0, 0, worst=0, closer=True)
    empty, unknown = made(recovered={}), made(recovered={"unaligned": {"ssim": nan}})
    for row in (empty, unknown):
        for comparison in ("<=", ">=", "<", ">"):
            assert Gate.parse(f"ssim{comparison}0.5").failures([row])


def test_the_claim_of_an_attack_that_was_not_mounted_is_not_judged() -> None:
    """It counts the passes that this attack would have read."""
    claim = Certificate(kind="differential_privacy", statement="", epsilon=8.0, delta=1e-5)
    more = made(attack="union", status="not_applicable", reason="x", certificate=replace(claim, epsilon=20.0))
    gate = Gate.parse("epsilon<=9")
    assert gate.failures([made(certificate=claim), more]) == []
    assert len(gate.failures([more])) == 1


def test_an_answer_that_no_attack_gave_fails_in_one_sentence() -> None:
    failures = Gate.parse("auc<=0.6").failures([made(), made(attack="jigsaw")])
    assert set(failures) == {"batch_shuffle, seed 0: no attack gave auc, the gate requires <= 0.6"}


def test_the_undefended_baseline_is_exempt() -> None:
    rows = [made(defense="none"), made(defense="none:frozen_block=true")]
    assert Gate.parse("ssim<=0.01").failures(rows) == []


def with_floors(**floors: float) -> Row:
    """SSIM .3 recovered, MSE .05, beside constant guesses with the given metrics."""

    def metrics(ssim: float, mse: float) -> dict[str, Metric]:
        values = {"ssim": (ssim, True), "mse": (mse, False)}
        return {
            name: metric(value, value, value, worst=value, closer=closer) for name, (value, closer) in values.items()
        }

    return made(
        recovered={"unaligned": metrics(0.3, 0.05), "matched": {}},
        floors={"mean_image": {"unaligned": metrics(floors["ssim"], floors["mse"]), "matched": {}}},
    )


def test_an_attack_that_does_worse_than_a_constant_guess_meets_no_gate_for_it() -> None:
    row = with_floors(ssim=0.6, mse=0.02)
    (failure,) = Gate.parse("ssim<=0.4").failures([row])
    assert "ssim is 0.6000 for the mean auxiliary image, a guess that needs no release" in failure
    assert "the attack has 0.3000" in failure
    assert Gate.parse("mse>=0.04").failures([row])
    assert not Gate.parse("ssim<=0.6").failures([row])
    assert not Gate.parse("ssim>=0.2").failures([row])  # asks that the attack works: floors have no say
    assert not Gate.parse("ssim<=0.4").failures([with_floors(ssim=0.2, mse=0.02)])


def test_what_an_attack_began_from_must_meet_a_gate_too() -> None:
    """A table said "start: SSIM 0.775, identified 1.00" above a met gate."""
    row = with_floors(ssim=0.1, mse=0.9)
    row.floors["zero_steps"] = {"unaligned": {"ssim": metric(0.775, 0.763, 0.787, worst=0.87, closer=True)}}
    (failure,) = Gate.parse("ssim<=0.4").failures([row])
    assert "ssim is 0.7750 and at most 0.7870 (95 % interval) before the attack's first step (the finished" in failure
    assert not Gate.parse("ssim<=0.8").failures([row])
    assert Gate.parse("unaligned_ssim_worst<=0.86").failures([row])
    assert not Gate.parse("mse>=0.04").failures([row])  # which the start has no number of


def test_an_attack_that_was_not_given_what_made_the_release_meets_no_gate_for_what_it_may_recover() -> None:
    row = with_floors(ssim=0.2, mse=0.02).model_copy(update={"doubt": "it is another segment"})
    (failure,) = Gate.parse("ssim<=0.4").failures([row])
    assert failure.endswith("the gate requires <= 0.4; but it is not shown: it is another segment")
    assert not Gate.parse("ssim>=0.2").failures([row])


@pytest.mark.parametrize(
    "text", ["", "ssim", "ssim=0.4", "ssim<=", "ssim<=x", "ssim<=1e", "ssim<=1e999", "psnr!=3", "SSIM<=1"]
)
def test_conditions_that_cannot_be_read(text: str) -> None:
    with pytest.raises(GateError, match="write column, comparison and number"):
        Gate.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("loss<1", "no column is 'loss'"),
        ("sim<=0.4", "did you mean 'ssim' or 'f_sim'"),
        ("sim<=0.4", "(docs/how-to/gates.md lists all columns)"),
        ("epsilom<=8", "did you mean 'epsilon'?"),
        ("tpr@.05<=.1", "at 1 % false positives alone; write tpr"),
    ],
)
def test_unknown_columns_are_refused_with_the_nearest_one(text: str, hint: str) -> None:
    with pytest.raises(GateError, match=re.escape(hint)):
        Gate.parse(text)


def test_the_page_of_gates_lists_all_columns() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "gates.md").read_text("utf-8")
    listed = page.partition("All columns: ")[2].partition(".\n")[0]
    first, behind = GATED.index(f"unaligned_{next(iter(OF_RECORDS))}"), GATED.index(next(iter(ANSWERS)))
    assert re.findall("`([a-z_0-9]+)`", listed) == [*GATED[:first], *GATED[behind:]]


def attacked(model: str, ssim: float, **changes: object) -> Row:
    """An attack of one threat model."""
    found = metric(ssim, ssim, ssim, worst=ssim, closer=True)
    return made(attack=model, cell=model, threat_model=model, recovered={"unaligned": {"ssim": found}}, **changes)


def test_a_gate_may_be_about_one_threat_model_and_what_its_adversary_can_mount() -> None:
    rows = [attacked("passive", 0.2), attacked("query", 0.4), attacked("weights", 0.8), attacked("many_passes", 0.5)]
    judged = {
        text: [sentence.partition(",")[0] for sentence in Gate.parse(text).failures(rows)]
        for text in ("ssim<=.45", "query: ssim<=.45", "weights:ssim<=.3", "many passes: ssim <= .5", "passive: ssim<.2")
    }
    assert judged == {
        "ssim<=.45": ["batch_shuffle / weights", "batch_shuffle / many_passes"],
        "query: ssim<=.45": [],
        "weights:ssim<=.3": ["batch_shuffle / query", "batch_shuffle / weights"],
        "many passes: ssim <= .5": [],
        "passive: ssim<.2": ["batch_shuffle / passive"],
    }


def test_a_weaker_adversary_s_attack_that_wins_counts_for_a_gate_as_for_a_verdict() -> None:
    won = attacked(
        "query", 0.6, floors={"mean_image": {"unaligned": {"ssim": metric(0.2, 0.2, 0.2, worst=0.2, closer=True)}}}
    )
    (failure,) = Gate.parse("weights: ssim<=.5").failures([won])
    assert failure.startswith("batch_shuffle / query, seed 0: ssim is 0.6")
    assert Gate.parse("weights: ssim<=.8").failures([won]) == []


def test_an_attack_that_fails_on_the_undefended_model_meets_no_gate_on_what_it_may_recover() -> None:
    floor = {"mean_image": {"unaligned": {"ssim": metric(0.25, 0.25, 0.25, worst=0.25, closer=True)}}}
    failed, powerless = (attacked("query", 0.2, floors=floor, defense=name) for name in ("batch_shuffle", "none"))
    won = attacked("query", 0.9, floors=floor, defense="none")
    (failure,) = Gate.parse("ssim<=.5").failures([failed, powerless])
    assert failure.endswith("but it is not shown: the attack fails on the undefended model as well")
    assert Gate.parse("ssim<=.5").failures([failed, won]) == []
    assert Gate.parse("ssim<=.5").failures([failed]) == []


def test_a_defense_on_which_only_constant_guesses_were_mounted_meets_no_gate_on_what_may_be_recovered() -> None:
    """A build with `--attack mean_image` was green beside the sentence "no reconstruction attack was mounted"."""
    guess, attack = made(attack="mean_image", cell="mean_image"), made(attack="black_box", cell="black_box")
    (failure,) = Gate.parse("ssim<=0.4").failures([guess])
    assert failure.endswith("but it is not shown: only a guess that needs no release gave this number; mount an attack")
    assert Gate.parse("ssim<=0.4").failures([guess, attack]) == []
    assert Gate.parse("ssim>=0.2").failures([guess]) == []
    waits = Gate.parse("ssim<=0.4").findings([guess], {(guess.defense, guess.seed)})
    assert [met for _, met, _ in waits] == [None]  # an attack may still give it
    refused = attack.model_copy(update={"status": "not_applicable", "reason": "no lower", "recovered": {}})
    assert Gate.parse("ssim<=0.4").failures([guess, refused])


def test_an_attack_that_failed_its_control_meets_no_gate_on_what_it_may_recover() -> None:
    weak = Check(name="wins_on_identity", passed=False, detail="it lost", decisive=True)
    row = attacked("weights", 0.2).model_copy(update={"checks": (weak,)})
    (failure,) = Gate.parse("weights: ssim<=.9").failures([row])
    assert failure.endswith("but it is not shown: the attack failed its control experiment")
    assert Gate.parse("ssim>=.1").failures([row]) == []  # asks that the attack works


def test_a_threat_model_that_was_not_tried_meets_no_gate() -> None:
    rows = [attacked("passive", 0.2), attacked("query", 0.2, seed=1)]
    assert Gate.parse("weights: ssim<=.9").failures(rows) == [
        "batch_shuffle, seed 0: no attack with weights gave ssim, the gate requires <= 0.9",
        "batch_shuffle, seed 1: no attack with weights gave ssim, the gate requires <= 0.9",
    ]
    ((_, met, _),) = Gate.parse("weights: ssim<=.9").findings(rows[:1], {("batch_shuffle", 0)})[:1]
    assert met is None  # its cell may still come
    with pytest.raises(GateError, match="no threat model is 'weight'; did you mean 'weights'"):
        Gate.parse("weight: ssim<=.9")
    assert str(Gate.parse("many passes:ssim<.5")) == "many_passes: ssim<0.5"


def canaries(**changes: object) -> Row:
    """A row of canaries: AUC below 1/2, a rate of true positives, a proven ε of 8 and a lower bound of 2."""
    bound = EmpiricalBound(
        epsilon=2.0,
        delta=1e-5,
        confidence=0.95,
        canaries=9,
        inserted=4,
        threshold=None,
        method="m",
        assumptions=(),
        source="s",
    )
    fields: dict[str, object] = {
        "recovered": {},
        "answers": {
            "auc": Interval(value=0.3, low=0.2, high=0.45, n=9, method="m"),
            "tpr_at_1_percent": Interval(value=0.02, low=0.01, high=0.07, n=9, method="m"),
        },
        "certificate": Certificate(kind="differential_privacy", statement="", epsilon=8.0, delta=1e-5),
        "limits": Limits(advantage=0.5, false_positives=(0.0, 0.01, 1.0), true_positives=(0.0, 0.25, 1.0)),
        "empirical_bound": bound,
    }
    return made(**{**fields, **changes})


def test_an_empirical_epsilon_says_what_it_assumes_wherever_it_stands() -> None:
    """In the table, in a gate's sentence and in the columns; a bound of any mechanism has nothing to say."""
    free = canaries()
    assert free.empirical_bound is not None
    bound = replace(free.empirical_bound, claimed=1.5)
    of_any, of_one = (canaries(empirical_bound=replace(bound, assumed=family)) for family in ("", "a Gaussian curve"))
    table = answers_table([free, of_any, of_one])
    assert table is not None
    assert [row[-2:] for row in table.rows] == [
        ("2 at δ=1e-05", "nothing"),
        ("2 at δ=1e-05", "1.5, refuted"),
        ("2 at δ=1e-05, assumed: a Gaussian curve", "1.5, refuted"),
    ]
    fine = answers_table([canaries(empirical_bound=replace(bound, claimed=1.2341, delta=1.4678e-5))])
    assert fine is not None
    assert fine.rows[0][-2:] == ("2 at δ=1.46e-05", "1.24, refuted")  # a lower bound is rounded down, a claim up
    gate = Gate.parse("empirical_epsilon<=1")
    assert ["(assumed: a Gaussian curve), the gate requires" in text for text in gate.failures([of_any, of_one])] == [
        False,
        True,
    ]
    assert flat_record(of_one)["empirical_assumed"] == "a Gaussian curve"
    assert assumed("empirical_epsilon", [of_any, of_one]) == " (assumed: nothing; a Gaussian curve)"
    assert assumed("empirical_epsilon", [of_any]) == ""


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("epsilon<=8", True),
        ("epsilon<8", False),
        ("empirical_epsilon<=2", True),
        ("empirical_epsilon<=1.9", False),
        ("auc<=0.8", True),  # 1 - 0.2: an AUC below 1/2 leaks as one above it does
        ("auc<=0.75", False),
        ("tpr<=.07", True),
        ("tpr@.01<=.06", False),
        ("proven_tpr_at_1_percent<=.25", True),
        ("proven_advantage<.5", False),
    ],
)
def test_what_is_proven_and_told_has_gates(text: str, met: bool) -> None:
    assert (Gate.parse(text).failures([canaries()]) == []) is met


@pytest.mark.parametrize("name", ["epsilon", "proven_advantage", "proven_tpr_at_1_percent"])
def test_a_claim_on_labels_meets_no_gate_on_the_release(name: str) -> None:
    proven = Certificate(kind="differential_privacy", statement="", epsilon=0.1, delta=1e-5, covers="labels")
    rows = [canaries(certificate=proven)]
    assert Gate.parse(f"{name}<=1").failures(rows)
    assert not Gate.parse(f"{name}_of_labels<=1").failures(rows)


def test_what_is_not_proven_of_the_release_meets_no_gate_on_epsilon() -> None:
    claimed = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5)
    for certificate in (
        None,
        Certificate(kind="nothing", statement=""),
        replace(claimed, covers="labels"),
        replace(claimed, sound=False, objection="a formula that is not a bound"),
    ):
        assert Gate.parse("epsilon<=8").failures([canaries(certificate=certificate)])
    labels = canaries(certificate=replace(claimed, covers="labels"))
    assert not Gate.parse("epsilon_of_labels<=1").failures([labels])


def test_a_run_without_a_defended_number_fails_its_gate() -> None:
    verdict = judge([], [made(defense="none")], [Gate.parse("ssim<=0.9")], run="r")
    assert verdict.exit_code == 1
    assert verdict.failures == ("ssim<=0.9: no defended cell has a number",)
    named = judge([], [made(defense="none", notes=(EXEMPT,))], [Gate.parse("ssim<=.9")], run="r")
    assert named.failures == (f"ssim<=0.9: no defended cell has a number ({EXEMPT})",)


def test_a_number_of_the_defense_fails_once_whatever_attacks_were_mounted() -> None:
    """Ten attacks on one model gave ten failures of its accuracy, and GitHub shows ten annotations a step."""
    rows = [made(attack=attack, cell=attack) for attack in ("black_box", "jigsaw")]
    verdict = judge([], rows, [Gate.parse("accuracy>=.95"), Gate.parse("ssim<=.1")], run="r")
    assert [failure.partition(":")[0] for failure in verdict.failures] == [
        "batch_shuffle, seed 0",
        "batch_shuffle / black_box, seed 0",
        "batch_shuffle / jigsaw, seed 0",
    ]
    assert [check.cell for check in verdict.checks if check.kind == "gate"] == ["black_box", "jigsaw"] * 2


@pytest.mark.parametrize(
    ("gates", "refused"),
    [
        (("ssim<=0.4", "ssim>=0.6"), True),
        (("ssim<=0.4", "accuracy>=.5", "weights: unaligned_ssim>=0.6"), True),
        (("ssim<0.4", "ssim>=0.4"), True),
        (("ssim<=0.4", "ssim>=0.4"), False),
        (("query: ssim<=0.4", "weights: ssim>=0.6"), False),
        (("ssim<=0.4", "psnr>=0.6"), False),
    ],
)
def test_gates_that_no_number_meets_together_are_refused(gates: tuple[str, ...], refused: bool) -> None:
    if not refused:
        assert len(as_gates(gates)) == len(gates)
        return
    with pytest.raises(UsageError, match=r"the gates ssim<.*0\.4 and .*ssim>=0\.[46] contradict each other"):
        as_gates(gates)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("identified<=10", "identified lies in 0 to 1; write a bound in this range, such as 0.1 for 10 %"),
        ("accuracy>=80", "such as 0.8 for 80 %"),
        ("unaligned_ssim_worst<=40", "unaligned_ssim_worst lies in -1 to 1; write a bound"),
        ("weights: matched_cells<=1.01", "matched_cells lies in 0 to 1"),
        ("tpr<=-0.1", "tpr lies in 0 to 1; write a bound in this range"),
        ("mse>=-1", "mse lies in 0 to"),
        ("auc<=0.4", "auc lies in 0.5 to 1; write a bound"),
        ("auc<0.5", "auc lies in 0.5 to 1"),
        ("identified>1", "identified lies in 0 to 1"),
    ],
)
def test_a_bound_that_no_number_or_every_number_meets_is_refused(text: str, hint: str) -> None:
    with pytest.raises(GateError, match=re.escape(hint)):
        Gate.parse(text)


@pytest.mark.parametrize(
    "text", ["ssim<=-1", "auc<=.5", "identified<=1", "psnr<=20", "bits_left>=40", "epsilon<=0", "own_x<=4"]
)
def test_a_bound_at_the_end_of_a_range_is_allowed(text: str) -> None:
    assert str(Gate.parse(text)).startswith(text.partition("=")[0])


def test_every_measured_number_of_a_run_has_a_gate(small_run: AuditRun) -> None:
    gated = {SHORT.get(name, name) for name in GATED}
    for row in (*small_run.rows, canaries()):
        own = {name for name in numbers(row) if not name.startswith(("floor_", "start_"))}
        assert own <= gated
        assert numbers(row)["accuracy"]
    assert numbers(small_run.rows[0])["epsilon"] == inf


def test_a_declared_epsilon_meets_no_gate_of_a_proven_one() -> None:
    claim = Certificate(kind="differential_privacy", statement="", epsilon=8.0, delta=1e-5).declared("they say so")
    rows = [canaries(certificate=claim)]
    ((_, met, sentence),) = Gate.parse("epsilon<=9").findings(rows)
    assert not met
    assert "epsilon is not a number (it is declared, not proven: declared_epsilon is 8.0000)" in sentence
    assert not Gate.parse("proven_advantage<=.9").failures([canaries()])
    large = canaries(certificate=replace(claim, epsilon=60258000.6922))
    assert "declared_epsilon is 6.0258e+07, the" in Gate.parse("declared_epsilon<=8").failures([large])[0]
    assert "declared_advantage is 0.5000" in Gate.parse("proven_advantage<=.9").failures(rows)[0]
    assert not Gate.parse("declared_epsilon<=9").failures(rows)
    assert Gate.parse("declared_epsilon<=9").failures([canaries()])


@pytest.mark.parametrize(("rows", "told"), [(1, ""), (15, "by chance in up to 54 % of runs")])
def test_a_refuted_claim_says_how_many_rows_test_one(rows: int, told: str) -> None:
    """15 tests at 95 % of true claims that are attained failed 47 % of simulated runs."""
    check = Check(name=CLAIM, passed=True, detail="ε >= 9 refutes the claim", decisive=True)
    tested = [canaries(cell=str(number), seed=number, checks=(check,)) for number in range(rows)]
    tested[0] = tested[0].model_copy(update={"checks": (check.model_copy(update={"passed": False}),)})
    verdict = judge([], tested, [], run="r")
    (sentence,) = verdict.failures
    assert verdict.exit_code == 1
    assert sentence.endswith("repeat it with other seeds") == bool(told)
    assert told in sentence


def test_a_gate_on_recovery_is_not_met_by_images_of_a_wrong_contrast() -> None:
    found = metric(0.02, 0.0, 0.07, worst=1.0, closer=True)
    row = made(recovered={"unaligned": {"identified": found}, "matched": {}})
    shown = Check(name=BY_PATTERN, passed=False, detail="50 of 50 images are identified by correlation", decisive=False)
    assert not (gate := Gate.parse("identified<=.2")).failures([row])
    assert "50 of 50 images are identified" in gate.failures([row.model_copy(update={"checks": (shown,)})])[0]
