"""The sentence that stands first: its words follow the verdicts, its tone follows its words."""

from dataclasses import replace
from math import inf, log10
from typing import Any

import pytest

from privkit.reports.ci import junit
from privkit.reports.conclusion import Conclusion, conclusions
from privkit.reports.schema import Check, Row
from privkit.reports.tables import claim_text
from privkit.reports.threats import KnownOutcome, threat_verdicts
from privkit.reports.verdict import judge
from privkit.shared.certificate import Certificate
from privkit.shared.interval import Interval
from privkit.shared.limits import Limits
from tests.reports.made import made, metric
from tests.reports.test_threats import REGISTERED, attacked


def counted(attack: str, model: str, mse: float, share: float, **changes: Any) -> Row:
    """A row whose guesses identify a share of 100 records, where chance is at most a tenth."""
    row = attacked(
        attack, model, mse, counts={"auxiliary": 2000}, arrangement=("cut after block1", "one pass"), **changes
    )
    found = metric(share, share - 0.05, share + 0.05, worst=1, closer=True)
    row.recovered["unaligned"]["identified"] = replace(found, n=100)
    for floor in row.floors.values():
        floor["unaligned"]["identified"] = metric(0.04, 0.04, 0.1, worst=1, closer=True)
    return row


def accuracy(value: float) -> Interval:
    return Interval(value=value, low=value, high=value, n=500, method="m")


BARE = counted("black_box", "query", 0.01, 0.97, defense="none", accuracy=accuracy(0.88))


def concluded(*rows: Row) -> Conclusion:
    (found,) = conclusions(rows, threat_verdicts(rows, [], REGISTERED))
    return found


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_worse_undefended_model_flatters_no_defense(place: int) -> None:
    """One with a drawn frozen block is listed as an undefended one; the plain one is what a defense is held against."""
    worse = counted("black_box", "query", 0.05, 0.3, defense="none:frozen_block=true", accuracy=accuracy(0.55))
    rows = [counted("black_box", "query", 0.05, 0.6, accuracy=accuracy(0.54)), BARE]
    rows.insert(place, worse)
    assert concluded(*rows).sentence.endswith("(undefended: 97 by black_box), and accuracy falls from 0.88 to 0.54.")


def test_seeds_at_which_the_defense_ended_in_an_error_flatter_no_model() -> None:
    """Accuracies of the undefended model at other seeds stood beside the defense's."""
    others = [BARE.model_copy(update={"seed": seed, "accuracy": accuracy(0.3)}) for seed in (1, 2)]
    weak = counted("black_box", "query", 0.01, 0.3, defense="none", seed=1)
    lost = made(seed=1, status="error", reason="x", accuracy=None, recovered={}, threat_model="query")
    found = concluded(counted("black_box", "query", 0.05, 0.6, accuracy=accuracy(0.54)), lost, BARE, *others, weak)
    assert found.sentence.endswith("(undefended: 97 by black_box), and accuracy falls from 0.88 to 0.54.")


def test_a_mean_over_seeds_is_not_rounded_to_all_records() -> None:
    """50, 50 and 49 of 50 were told as 50 of 50."""
    rows = [counted("black_box", "query", 0.05, share, seed=seed) for seed, share in enumerate((1.0, 1.0, 0.99))]
    assert "images: 99.7 of 100 are identified on average from what crosses" in concluded(*rows).sentence
    assert "images: 100 of 100 are identified from what crosses" in concluded(*rows[:2]).sentence


def test_a_defense_that_falls_is_told_with_what_it_costs_and_where_it_stood() -> None:
    weak = counted("black_box", "query", 0.05, 0.6, accuracy=accuracy(0.54))
    found = concluded(weak, counted("jigsaw", "weights", 0.03, 0.87, queries=1052, accuracy=accuracy(0.54)), BARE)
    assert found.tone == "bad"
    assert found.sentence == (
        "batch_shuffle does not protect these images: 87 of 100 are identified from what crosses the wire "
        "(undefended: 97 by black_box), and accuracy falls from 0.88 to 0.54."
    )
    assert (
        found.models
        == "Falls under query, weights, many passes, weights and many passes. Not tried: passive, malicious."
    )
    assert found.arrangement == (
        "vit_micro on digits, cut after block1, one pass, 2,000 own images (disjoint), up to 1,052 rounds of queries"
    )


@pytest.mark.parametrize("source", [{"auxiliary": "candidates"}, {"auxiliary": "training", "attacked": "private"}])
def test_an_adversary_who_has_the_records_is_named_in_the_first_sentence(source: dict[str, str]) -> None:
    """It has to find them again, which is easier than to draw them."""
    found = concluded(*(row.model_copy(update=source) for row in (counted("black_box", "query", 0.05, 0.6), BARE)))
    assert "60 of 100 are identified from what crosses the wire, by an adversary who has them (undefe" in found.sentence
    assert "2,000 own images (the attacked ones among them)" in found.arrangement


def test_the_conclusion_counts_the_row_that_identifies_most_whether_it_came_closest_or_not() -> None:
    """One run said "7 of 100" above a sound row with 9, and above a start with all of them."""
    close, blurred = counted("black_box", "query", 0.04, 0.07), counted("white_box", "weights", 0.05, 0.09)
    assert "not protect these images: 9 of 100 are identified" in concluded(close, blurred, BARE).sentence
    failed = Check(name="fails_on_noise", passed=False, detail="", decisive=True)
    unsound = counted("jigsaw", "weights", 0.07, 0.5, checks=(failed,))
    assert "9 of 100" in concluded(close, blurred, unsound, BARE).sentence
    elsewhere = counted("fsha", "malicious", 0.07, 0.12)  # it does not fall there
    assert "9 of 100" in concluded(close, blurred, elsewhere, BARE).sentence
    start = {"unaligned": counted("white_box", "weights", 0.006, 1.0).recovered["unaligned"]}
    began = blurred.model_copy(update={"floors": {**blurred.floors, "zero_steps": start}})
    said = concluded(close, began, BARE).sentence
    assert "100 of 100 are identified from what crosses the wire by white_box, before its first step (" in said


def test_a_defense_that_falls_by_closeness_alone_is_told_by_how_much() -> None:
    """Seven of 100 are fewer than a guess by the label may identify, and are no reason for the verdict."""
    close = counted("black_box", "query", 0.04, 0.07, queries=40)
    assert concluded(close, BARE).sentence.partition("(class")[0] == (
        "batch_shuffle does not protect these images: 7 of 100 are identified from what crosses the wire (undefended: "
        "97 by black_box); black_box beats every guess without the release, with SSIM 0.300 [0.270, 0.330] (mean image "
        "0.180), MSE 0.0400 [0.0360, 0.0440] "
    )
    unlabeled = counted("black_box", "query", 0.04, 0.9, floors={})
    unlabeled.floors["mean_image"] = close.floors["mean_image"]
    assert " beats " not in concluded(unlabeled, BARE).sentence


def test_the_claim_of_an_attack_that_was_not_mounted_is_not_shown() -> None:
    claim = Certificate(kind="differential_privacy", statement="", epsilon=8.0, delta=1e-5)
    done = counted("black_box", "query", 0.04, 0.5, certificate=claim)
    more = done.model_copy(
        update={"attack": "union", "status": "not_applicable", "certificate": replace(claim, epsilon=20.0)}
    )
    assert concluded(done, more, BARE).claim == concluded(done, BARE).claim


def test_a_break_by_an_attack_that_failed_its_control_is_no_sentence_about_protection() -> None:
    failed = Check(name="wins_on_identity", passed=False, detail="", decisive=True)
    cheat = counted("mine:Cheat", "query", 0.001, 1.0, checks=(failed,), accuracy=accuracy(0.9))
    bare = cheat.model_copy(update={"defense": "none"})
    found = concluded(cheat, bare, counted("mine:Knn:k=3", "query", 0.01, 0.8, defense="none", accuracy=accuracy(0.9)))
    assert found.tone == "open"
    assert found.sentence == (
        "batch_shuffle falls only to mine:Cheat, which failed its control, so its guesses may come from elsewhere than "
        "the release: 100 of 100 are identified (undefended: 80 by mine:Knn); accuracy is 0.90 (undefended: 0.90)."
    )
    assert found.models.startswith("Falls to an attack that failed its control under query, weights, ")
    assert concluded(bare).sentence.startswith("Without a defense, records fall only to mine:Cheat, which failed its ")
    honest = concluded(cheat, counted("jigsaw", "query", 0.05, 0.4, accuracy=accuracy(0.9)), BARE)
    assert honest.sentence.startswith("batch_shuffle does not protect these images: 40 of 100 are identified from what")


@pytest.mark.parametrize(
    ("rows", "tone", "begins"),
    [
        (
            [counted("black_box", "query", 0.0699, 0.04), BARE],
            "good",
            "batch_shuffle holds against black_box, which wins on the undefended model: 4 of 100 are identified",
        ),
        (
            [counted("black_box", "query", 0.0635, 0.1), BARE],
            "open",
            "batch_shuffle gives away the class of these images, but no record to the attacks mounted here: 10 of 100",
        ),
        (
            [counted("black_box", "query", 0.0699, 0.04)],
            "open",
            "It is not shown whether batch_shuffle protects these images: the undefended model was not attacked",
        ),
        ([BARE], "bad", "Without a defense, 97 of 100 are identified from what crosses the wire; accuracy is 0.88."),
        (
            [counted("black_box", "query", 0.0699, 0.04), counted("white_box", "weights", 0.0699, 0.04), BARE],
            "open",
            "batch_shuffle holds against black_box, which wins on the undefended model",
        ),
    ],
)
def test_the_tone_follows_the_verdicts(rows: list[Row], tone: str, begins: str) -> None:
    """The last one holds under queries, and nothing is shown of weights."""
    found = concluded(*rows)
    assert found.sentence.startswith(begins)
    assert found.tone == tone


def test_rows_that_counted_nobody_are_told_by_their_measures() -> None:
    found = concluded(attacked("black_box", "query", 0.05))
    assert found.sentence.startswith("batch_shuffle does not protect these images: black_box reaches SSIM 0.300")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "It is not shown whether mine protects these images: no reconstruction attack was mounted."),
        (
            {"counts": {"auxiliary": 0}},
            "It is not shown whether mine protects these images: no reconstruction attack could be mounted: the "
            "recording holds no own images.",
        ),
        (
            {"status": "not_applicable", "reason": "it is too large"},
            "It is not shown whether mine protects these images: no reconstruction attack could be mounted: it is too "
            "large.",
        ),
        (
            {"defense": "none"},
            "It is not shown what the release of these images gives away without a defense: no reconstruction attack "
            "was mounted.",
        ),
    ],
)
def test_a_run_without_any_attack_on_records_has_a_conclusion_too(changes: dict[str, Any], said: str) -> None:
    """A recording without own records ended as clean, and no sentence said that nothing is shown."""
    row = made(**{"defense": "mine", "attack": "label_leak", "recovered": {}, "threat_model": "passive", **changes})
    found = concluded(row)
    assert (found.tone, found.sentence) == ("open", said)
    assert found.models.startswith("No number under query, weights, ")


def test_a_proven_claim_is_never_shown_below_the_certificate() -> None:
    """Rounded to the nearest, ε would be 1.23 and δ 1e-05: a stronger claim than what is proven."""
    certificate = Certificate(kind="differential_privacy", statement="", epsilon=1.234, delta=1.4e-5, standing="proven")
    assert claim_text(counted("black_box", "query", 0.05, 0.6, certificate=certificate)) == "proven: ε=1.24 at δ=2e-05"


def test_a_count_of_orders_is_never_shown_above_the_certificate() -> None:
    """Rounded to the nearest, 6 orders were 10^1."""
    for count, shown in ((6, "10^0"), (720, "10^2"), (1000, "10^3")):
        quantities = {"log10_permutations": log10(count)}
        certificate = Certificate(
            kind="permutation_count", statement="", standing="proven", quantities=quantities, epsilon=inf
        )
        row = counted("black_box", "query", 0.05, 0.6, certificate=certificate)
        assert claim_text(row) == f"proven: {shown} orders, no DP"


def test_a_defense_that_holds_with_a_reservation_is_not_green_and_the_conclusion_says_which() -> None:
    """The first line of a run was that the defense holds, in green, and the verdict added that images are recovered."""
    row = counted("black_box", "query", 0.0699, 0.04)
    seen = metric(0.002, 0.0018, 0.0022, worst=0.002, closer=False)
    mean = {"mse": metric(0.07, 0.06, 0.08, worst=0.07, closer=False)}
    floors = row.floors | {"mean_image": row.floors["mean_image"] | {"matched": mean}}
    matched = row.model_copy(update={"recovered": row.recovered | {"matched": {"mse": seen}}, "floors": floors})
    found = concluded(matched, BARE)
    assert found.tone == "open"
    assert found.sentence.startswith("batch_shuffle holds against black_box, which wins on the undefended model")
    assert found.sentence.endswith(
        "; but images are recovered, though not which is which: after matching, black_box has MSE 0.0020."
    )
    known = {"batch_shuffle": [KnownOutcome("jigsaw", "query", 0.9)]}
    (stronger,) = conclusions([row, BARE], threat_verdicts([row, BARE], [], REGISTERED, known))
    assert stronger.tone == "open"
    assert stronger.sentence.endswith(
        "; a stronger attack is known and was not mounted: jigsaw with SSIM 0.900 on digits."
    )


def test_a_conclusion_names_no_attack_that_fails_without_the_defense() -> None:
    weak = [counted("jigsaw", "query", 0.0699, 0.04, defense=name) for name in ("batch_shuffle", "none")]
    found = concluded(counted("black_box", "query", 0.0699, 0.04), BARE, *weak)
    assert found.sentence.startswith("batch_shuffle holds against black_box, which wins on the undefended model")


@pytest.mark.parametrize(("rate", "said"), [(0.995, True), (0.5, False)])
def test_a_proof_that_rules_out_nothing_is_said_to_be_of_no_use(rate: float, said: bool) -> None:
    certificate = Certificate(kind="differential_privacy", statement="", epsilon=60.0, delta=1e-5, standing="proven")
    limits = Limits(advantage=rate, false_positives=(0.0, 0.01, 1.0), true_positives=(0.0, rate, 1.0))
    row = counted("black_box", "query", 0.05, 0.6, certificate=certificate, limits=limits)
    assert claim_text(row) == "proven: ε=60 at δ=1e-05" + ", proves nothing of use" * said
    assert concluded(row).claim == claim_text(row)
    bare = row.model_copy(update={"limits": None})
    assert bare.remark == "proves nothing of use"
    unproven = replace(certificate, epsilon=inf)
    assert row.model_copy(update={"certificate": unproven}).remark == ""


def test_junit_has_the_verdicts() -> None:
    rows = [counted("black_box", "query", 0.05, 0.6), BARE]
    text = junit(judge([], rows, [], run="r"), threats=threat_verdicts(rows, [], REGISTERED))
    assert '<property name="batch_shuffle, query" value="falls to black_box: ' in text
    assert '<property name="batch_shuffle, weights" value="falls to black_box, as under query: ' in text


def test_the_claim_is_the_largest_epsilon_that_any_attack_made_the_records_spend() -> None:
    """An attack of eight passes sees more releases than the one that is named."""
    rows = []
    for attack, mse, share, epsilon in (("black_box", 0.01, 0.9, 60.0), ("jigsaw", 0.05, 0.4, 70.0)):
        certificate = Certificate(
            kind="differential_privacy", statement="", epsilon=epsilon, delta=1e-5, standing="proven"
        )
        rows.append(counted(attack, "query", mse, share, certificate=certificate))
    assert "ε=70 " in concluded(*rows, BARE).claim


def test_the_claim_is_the_smallest_number_of_orders_over_seeds() -> None:
    rows = []
    for attack, mse, share, digits in (("black_box", 0.01, 0.9, 1296.2), ("jigsaw", 0.05, 0.4, 1285.9)):
        counts = {"log10_permutations": digits}
        certificate = Certificate(kind="permutation_count", statement="", quantities=counts, standing="proven")
        rows.append(counted(attack, "query", mse, share, certificate=certificate))
    assert "10^1285 " in concluded(*rows, BARE).claim
