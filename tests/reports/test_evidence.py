"""Evidence: no word that a verdict or a row did not earn, and no word on the page that the record lacks."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from privkit.recording.schema import FILE
from privkit.reports import evidence_schema
from privkit.reports.columns import CLAIM, DECLARATION, START
from privkit.reports.escape import markup
from privkit.reports.evidence import evidence
from privkit.reports.evidence_schema import COVERED, NOT_COVERED, Claim, Evidence, MeasuredDefense, page
from privkit.reports.schema import Check, Frozen, Manifest, Metric, PlannedCell, Provenance, Row
from privkit.reports.threats import threat_verdicts
from privkit.reports.verdict import judge
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.interval import Interval, clopper_pearson
from tests.reports.grids import SHIFTY
from tests.reports.made import made, metric
from tests.reports.test_threats import REGISTERED, attacked

ROOT = Path(__file__).resolve().parents[2]
EVIL = f"x{SHIFTY}</script>\n\x1b]0;t\x07\u202e&amp;\"'"
PROOF = Certificate(
    kind="differential_privacy",
    statement="(ε = 2, δ = 1e-05)-differential privacy of one record",
    epsilon=2.0000000001,
    delta=1e-5,
    relation="replace_one",
    unit="record",
    method="exact Gaussian profile",
    assumptions=("whoever mixes is trusted",),
    source="Theorem 8",
)
FAILED = Check(name="wins_on_identity", passed=False, detail="on the image itself it has lost", decisive=True)


def counted(attack: str, model: str, mse: float, hits: float, **changes: Any) -> Row:
    """A row whose guesses identify so many of 50 records."""
    row = attacked(attack, model, mse, **changes)
    row.recovered["unaligned"]["identified"] = Metric(
        **vars(clopper_pearson(hits, 50)), worst=1.0, higher_is_closer=True
    )
    for floor in row.floors.values():
        floor["unaligned"]["identified"] = metric(0.02, 0.02, 0.5, worst=1, closer=True)
    return row


def scored(attack: str, low: float, high: float, **changes: Any) -> Row:
    """A row of an attack that tells two kinds apart."""
    auc = Interval(value=(low + high) / 2, low=low, high=high, n=100, method="DeLong")
    return made(attack=attack, recovered={}, answers={"auc": auc}, cell=f"{attack}{changes}", **changes)


def of(*rows: Row) -> Evidence:
    """The evidence of a run of these rows."""
    cells = tuple(
        PlannedCell(cell=row.cell, model="m", defense=row.defense, attack=row.attack, seed=row.seed) for row in rows
    )
    manifest = Manifest(
        privkit="0.1.0",
        created="2026-01-01T00:00:00+00:00",
        argv=("privkit", "audit"),
        config={},
        fingerprint="f",
        threads=1,
        seeds=(0,),
        cells=cells,
    )
    found = evidence(rows, threat_verdicts(rows, [], REGISTERED), manifest, judge(cells, rows, [], run="f"), {"a": "b"})
    return Evidence.model_validate_json(found.model_dump_json())


def under(found: Evidence, model: str) -> MeasuredDefense:
    (one,) = (one for one in found.measured if one.threat_model == model)
    return one


def claim(found: Evidence) -> Claim:
    (one,) = found.claims
    return one


def requirement(found: Evidence, end: str) -> tuple[str, tuple[str, ...]]:
    (one,) = (one for one in found.requirements if one.heading.endswith(end))
    return one.coverage, one.rows


def texts(value: object) -> set[str]:
    """Every text of a JSON value, and the keys of tables of checksums."""
    if isinstance(value, dict):
        return set().union(*map(texts, value.values()))
    return set().union(*map(texts, value)) if isinstance(value, list) else {value} if isinstance(value, str) else set()


class Words(HTMLParser):
    """The texts of a page, without its style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip() and self.tags[-1][0] != "style":
            self.found.append(data.strip())


def everything() -> Evidence:
    """Evidence with something in every field."""
    bare = counted("black_box", "query", 0.01, 40, defense="none")
    bound = EmpiricalBound(
        epsilon=3,
        delta=1e-5,
        confidence=0.95,
        canaries=9,
        inserted=5,
        threshold=None,
        method="m",
        assumptions=(),
        source="s",
        statement="ε >= 3",
    )
    rows = [
        counted("black_box", "query", 0.03, 20, defense=EVIL, certificate=PROOF, doubt="it lacks a segment"),
        counted("white_box", "weights", 0.02, 30, defense=EVIL, certificate=PROOF, checks=(FAILED,)),
        scored("member_inference", 0.4, 0.6, defense=EVIL, certificate=PROOF),
        scored("canaries", 0.7, 0.9, defense=EVIL, certificate=PROOF, empirical_bound=bound, checks=(FAILED,)),
        attacked("fsha", "malicious", 1, defense=EVIL, certificate=None, status="error", reason=EVIL, recovered={}),
        bare,
    ]
    return of(*rows)


def test_the_page_says_exactly_what_the_record_says() -> None:
    found = everything()
    record, shown = json.loads(found.model_dump_json()), Words(page(found)).found
    shapes = [one for one in vars(evidence_schema).values() if isinstance(one, type) and issubclass(one, Frozen)]
    fields = [field for shape in shapes for field in shape.model_fields.values() if field.title]
    frame = {text for field in fields for text in (field.title, field.description)}
    keys = {*found.records, *(key for one in found.origins for key in one.made_of)}
    said = {markup(text).strip() for text in texts(record) | keys}
    assert set(shown) <= said | frame | {"Claim:", "No row."}
    whole = "\n".join(shown) + " ".join(
        str(value) for _, attributes in Words(page(found)).tags for value in attributes.values()
    )
    machine = {one.outcome for one in found.measured} | {one.threat_model for one in found.measured}
    assert {text for text in said if text not in whole} <= machine
    (first,) = found.conclusions
    assert {markup(text) for text in (first.sentence, first.models, first.arrangement, first.claim)} <= set(shown)
    assert "ε >= 3" in shown


def test_the_page_loads_nothing_runs_nothing_and_escapes_every_name() -> None:
    text = page(everything())
    tags = Words(text).tags
    assert not {"script", "img", "link", "iframe", "a"} & {tag for tag, _ in tags}
    assert not re.search(r"url\(|@import|https?:", text)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert SHIFTY not in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "&lt;/script&gt;" in text


def test_the_share_is_that_of_the_attack_that_identifies_most_with_the_interval_of_its_row() -> None:
    strong = counted("black_box", "query", 0.05, 35)
    found = under(of(counted("jigsaw", "query", 0.03, 20, ssim=0.9), strong), "query")
    (share,) = found.identified
    assert found.sentence.startswith("falls to jigsaw")
    assert (share.attack, share.count, share.of, share.candidates) == ("black_box", 35, 50, 50)
    assert share.share == clopper_pearson(35, 50)
    assert share.sentence == (
        "35 of 50 images among 50 candidates by black_box, seed 0: 0.700 [0.554, 0.821], 95 % Clopper–Pearson; "
        "the best guess without the release reaches 0.020"
    )


def test_a_count_with_ties_is_told_with_one_decimal() -> None:
    (share,) = under(of(counted("black_box", "query", 0.05, 10.702778)), "query").identified
    assert share.sentence.startswith("10.7 of 50 images among 50 candidates by black_box")
    assert share.count == 10.702778


def test_a_threat_model_counts_the_attacks_that_its_adversary_could_mount_and_no_others() -> None:
    found = of(counted("black_box", "query", 0.03, 20), counted("fsha", "malicious", 0.02, 40))
    by_model = {one.threat_model: [share.attack for share in one.identified] for one in found.measured}
    assert by_model == {
        **{model: ["black_box"] for model in ("query", "weights", "many_passes", "weights_and_many_passes")},
        "malicious": ["fsha"],
    }


def test_every_seed_has_its_own_share() -> None:
    seeds = [counted("black_box", "query", 0.03, hits, seed=seed) for seed, hits in enumerate((10, 20))]
    assert [(one.seed, one.count) for one in under(of(*seeds), "query").identified] == [(0, 10), (1, 20)]


def test_an_attack_that_failed_its_controls_is_told_with_its_failure_and_covers_nothing() -> None:
    found = of(counted("black_box", "query", 0.065, 14, checks=(FAILED,)))
    (share,) = under(found, "query").identified
    assert not share.counted
    assert share.sentence.endswith(
        "the verdict does not rest on this attack; its control failed: on the image itself it has lost"
    )
    assert under(found, "query").sentence == "no sound number: black_box failed its control"
    assert found.conclusions[0].sentence.startswith(
        "Nothing is shown about batch_shuffle: black_box failed its control"
    )
    assert found.audited.exit_code == 1
    assert requirement(found, "objective") == (NOT_COVERED, ())


def test_a_break_by_an_attack_that_failed_its_control_is_told_with_that_failure() -> None:
    found = of(counted("mine:Cheat", "query", 0.01, 50, checks=(FAILED,)))
    (share,) = under(found, "query").identified
    assert (share.counted, share.sentence.endswith("; its control failed: on the image itself it has lost")) == (
        True,
        True,
    )
    assert "failed its control, so its guesses may come from elsewhere" in found.conclusions[0].sentence


def test_a_sound_share_comes_before_a_larger_one_that_failed_its_controls() -> None:
    wins = counted("black_box", "query", 0.01, 45, defense="none")
    found = of(counted("black_box", "query", 0.07, 3), counted("jigsaw", "query", 0.08, 9, checks=(FAILED,)), wins)
    assert [(one.attack, one.counted) for one in under(found, "query").identified] == [
        ("black_box", True),
        ("jigsaw", False),
    ]
    smaller = of(counted("black_box", "query", 0.07, 3), counted("jigsaw", "query", 0.08, 2, checks=(FAILED,)), wins)
    assert [one.attack for one in under(smaller, "query").identified] == ["black_box"]


def test_an_own_start_is_no_guess_without_the_release() -> None:
    row = counted("white_box", "weights", 0.03, 20)
    row.floors["zero_steps"] = {"unaligned": {"identified": metric(0.9, 0.9, 0.9, worst=1, closer=True)}}
    (share,) = under(of(row), "weights").identified
    assert share.sentence.endswith("the best guess without the release reaches 0.020")


NOTHING = Certificate(kind="nothing", statement="nothing is proven: the smashed data leave the client as they are")
ORDERS = Certificate(kind="permutation_count", statement="10^13 orders", quantities={"log10_permutations": 13.0})


@pytest.mark.parametrize(
    ("certificate", "standing"), [(NOTHING, "nothing"), (ORDERS, "proven"), (None, "not recorded")]
)
def test_without_a_proven_epsilon_the_evidence_says_so_plainly(certificate: Certificate | None, standing: str) -> None:
    found = of(counted("black_box", "query", 0.03, 20, certificate=certificate))
    assert claim(found).standing == standing
    assert claim(found).privacy == "no differential privacy is proven, and none is declared"
    assert (claim(found).epsilon, claim(found).unit, claim(found).composition) == (None, "", "")
    assert requirement(found, ".4") == (NOT_COVERED, ())


def test_a_proven_epsilon_is_told_unrounded_in_the_terms_of_nist() -> None:
    one = claim(found := of(counted("black_box", "query", 0.03, 20, certificate=PROOF)))
    assert one.privacy == "proven: ε = 2.0000000001 at δ = 1e-05; no lower bound is known"
    assert (one.unit, one.adjacency, one.composition, one.assumptions) == (
        "one record",
        "replace-one",
        "exact Gaussian profile (Theorem 8)",
        ("whoever mixes is trusted",),
    )
    assert requirement(found, ".4") == (COVERED, (f"batch_shuffle, of what crosses the cut: {one.privacy}",))


def test_what_is_declared_refuted_or_no_bound_is_never_called_proven() -> None:
    refuted = Check(name=CLAIM, passed=False, detail="ε >= 9 refutes the claimed ε = 2", decisive=True)
    unsound = Certificate(**{**vars(PROOF), "sound": False, "objection": "the sensitivity is wrong"})
    cases: dict[str, dict[str, Any]] = {
        "declared": {"certificate": PROOF.declared("its author says so")},
        "refuted": {"certificate": PROOF, "checks": (refuted,)},
        "no proof": {"certificate": unsound},
    }
    for standing, changes in cases.items():
        found = of(counted("black_box", "query", 0.03, 20, **changes))
        assert claim(found).standing == standing
        assert claim(found).privacy.startswith(f"{standing}: ε = 2.0000000001")
        assert (requirement(found, ".4")[0] == COVERED) == (standing == "declared")
        assert found.conclusions[0].claim.startswith(standing)
    assert claim(of(counted("b", "query", 0.03, 20, **cases["refuted"]))).objections == (refuted.detail,)
    assert claim(of(counted("b", "query", 0.03, 20, **cases["no proof"]))).objections == ("the sensitivity is wrong",)


def test_a_refuted_declaration_without_an_epsilon_is_never_told_as_nothing_declared() -> None:
    """The first card said that none is declared, and the claim below it that what is declared was refuted."""
    nothing = Certificate(kind="nothing", statement="nothing is proven: the noise is another one", standing="declared")
    refuted = Check(name=DECLARATION, passed=False, detail=nothing.statement, decisive=True)
    found = of(counted("black_box", "query", 0.03, 20, certificate=nothing, checks=(refuted,)))
    assert claim(found).standing == "refuted"
    assert found.conclusions[0].claim == claim(found).privacy
    assert claim(found).privacy == (
        "refuted: what is declared contradicts what was measured, so no differential privacy is proven"
    )


def test_canaries_refute_every_claim_of_their_defense() -> None:
    refuted = Check(name=CLAIM, passed=False, detail="ε >= 9 refutes the claimed ε = 2", decisive=True)
    other = Certificate(**{**vars(PROOF), "epsilon": 1.0})
    found = of(
        counted("black_box", "query", 0.03, 20, certificate=other),
        scored("canaries", 0.8, 0.9, certificate=PROOF, checks=(refuted,)),
        counted("black_box", "query", 0.03, 20, certificate=PROOF, defense="masking"),
    )
    assert [(one.defense, one.epsilon, one.standing) for one in found.claims] == [
        ("batch_shuffle", 1.0, "refuted"),
        ("batch_shuffle", 2.0000000001, "refuted"),
        ("masking", 2.0000000001, "proven"),
    ]
    assert "proven" not in found.conclusions[0].claim


def test_an_epsilon_of_no_use_and_one_of_labels_say_so() -> None:
    loose = Certificate(**{**vars(PROOF), "epsilon": 50.0, "covers": "labels"})
    assert claim(of(counted("b", "query", 0.03, 20, certificate=loose))).privacy == (
        "proven: ε = 50.0 at δ = 1e-05 of the labels alone; no lower bound is known; proves nothing of use"
    )


def test_what_was_not_tried_is_listed_with_the_cells_that_gave_no_number() -> None:
    error = attacked("fsha", "malicious", 1, status="error", reason="it broke", recovered={})
    found = {
        one.heading: (one.reason, one.attacks) for one in of(counted("black_box", "query", 0.03, 20), error).untried
    }
    assert found["batch_shuffle: query"] == ("", ("jigsaw",))
    assert found["batch_shuffle: weights"] == ("", ("white_box",))
    assert found["batch_shuffle: passive"] == ("not tried", ())
    assert found["batch_shuffle: malicious"] == ("no sound number: fsha ended in an error", ())
    assert found["batch_shuffle: labels, members, canaries"] == ("", ("canaries",))
    assert found["batch_shuffle / fsha, seed 0"] == ("error: it broke", ())


def test_a_run_of_canaries_alone_does_not_look_as_if_all_had_been_tried() -> None:
    found = of(scored("canaries", 0.4, 0.6))
    assert found.measured == ()
    assert [one.sentence for one in found.conclusions] == [
        "It is not shown whether batch_shuffle protects these images: no reconstruction attack was mounted."
    ]
    assert [(one.heading, one.reason) for one in found.untried] == [
        ("batch_shuffle: all threat models", "no attack on the records themselves gave a number")
    ]
    assert requirement(found, ".5") == (NOT_COVERED, ())


def test_rows_that_were_not_made_alike_say_so() -> None:
    made_on = [Provenance(machine={"device": device}, data={"private": "ab"}) for device in ("cpu", "cuda")]
    rows = [counted("black_box", "query", 0.03, 20, seed=seed, provenance=one) for seed, one in enumerate(made_on)]
    found = of(*rows)
    assert found.audited.mixed.startswith("These rows differ in more than defense and attack")
    assert [one.made_of for one in found.origins] == [
        {"data private": "ab", "machine device": device} for device in ("cpu", "cuda")
    ]


@pytest.mark.parametrize(("low", "high", "word"), [(0.4, 0.6, "not shown"), (0.6, 0.8, "shown"), (0.2, 0.4, "shown")])
def test_membership_is_covered_by_its_own_attack_and_an_auc_below_chance_leaks(
    low: float, high: float, word: str
) -> None:
    found = of(scored("member_inference:score=rmia", low, high, checks=(FAILED,)))
    assert requirement(found, ".5") == (
        COVERED,
        (
            f"batch_shuffle / member_inference:score=rmia, seed 0: more than random guessing is {word}; AUC "
            f"{(low + high) / 2:.3f} [{low:.3f}, {high:.3f}], 95 % DeLong; its control failed: {FAILED.detail}",
        ),
    )
    assert [requirement(found, end) for end in (".1", ".2", ".3")] == [(NOT_COVERED, ())] * 3


def test_the_notes_of_a_recording_and_the_gates_are_handed_on() -> None:
    row = counted("black_box", "one_pass", 0.01, 40, protocol="ours", partition="iid")
    notes = ("taken from the recording without a check: accuracy",)
    row = row.model_copy(update={"notes": notes, "provenance": Provenance(data={FILE: "0" * 64})})
    found = of(row)
    assert found.audited.notes == notes
    assert "partition" not in found.audited.network
    assert found.limits[-1].startswith("What crossed the cut was recorded by whoever owns the system.")
    assert not any("recorded by" in limit for limit in of(counted("black_box", "one_pass", 0.01, 40)).limits)
    assert found.audited.gates == ()


def test_a_share_of_what_an_attack_began_from_says_so() -> None:
    """Its finished attack has another share in the table."""
    row = counted("white_box", "weights", 0.09, 3)
    start = counted("white_box", "weights", 0.006, 40).recovered
    began = row.model_copy(update={"recovered": start, "floors": {**row.floors, START: start}})
    (share,) = under(of(began), "weights").identified
    assert "40 of 50 images among 50 candidates by white_box, before its first step, seed 0: 0.800" in share.sentence
    (share,) = under(of(row), "weights").identified
    assert "before" not in share.sentence
