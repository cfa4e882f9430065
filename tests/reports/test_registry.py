"""The registry: which attack counts, what a place says, and what may not be compared."""

from pathlib import Path

import pytest

from privkit.reports.registry import (
    Entry,
    entries,
    place_differences,
    place_table,
    read_registry,
    registry_csv,
    registry_places,
    settings,
)
from privkit.reports.schema import Check, Row
from privkit.reports.threats import KnownOutcome, threat_verdicts
from privkit.shared.interval import clopper_pearson
from tests.reports.made import metric
from tests.reports.test_threats import REGISTERED, attacked


def entry(defense: str, identified: float, accuracy: float, **changes: object) -> Entry:
    """Against queries on digits, among 100 attacked images."""
    fields: dict[str, object] = {
        "dataset": "digits",
        "model": "vit_micro",
        "defense": defense,
        "threat_model": "query",
        "seed": 0,
        "outcome": "falls",
        "attack": "black_box",
        "victims": 100,
        "identified": identified,
        "chance": 0.1,
        "undefended": 1.0,
        "likeness": 0.5,
        "accuracy": accuracy,
        "bare_accuracy": 0.9,
        "claim": "nothing",
        "traffic": 1.0,
        "own": 2000,
        "queries": 200,
        "seconds": 10.0,
        "commit": "a",
    }
    return Entry.model_validate({**fields, **changes})


THREE = (entry("clip", 0.95, 0.9), entry("mixup", 0.5, 0.7), entry("dp_sl", 0.2, 0.5))


def with_share(row: Row, share: float) -> Row:
    """The same row, whose guesses identify a share of the records."""
    own = row.recovered["unaligned"] | {"identified": metric(share, share, share, worst=1, closer=True)}
    return row.model_copy(update={"recovered": {"unaligned": own}})


def test_of_the_attacks_on_which_a_verdict_rests_the_one_that_identifies_most_counts() -> None:
    sharp = with_share(attacked("jigsaw", "query", 0.03, 0.4), 0.9)
    near = with_share(attacked("black_box", "query", 0.01, 0.6), 0.7)
    weights = with_share(attacked("white_box", "weights", 0.001, 0.9), 1.0)
    bare = with_share(attacked("jigsaw", "query", 0.01, 0.9, defense="none"), 0.97)
    rows = [sharp, near, weights, bare]
    verdicts = threat_verdicts(rows, [], REGISTERED)
    found = {one.threat_model: one for one in entries(rows, verdicts)}
    assert (found["query"].attack, found["query"].identified, found["query"].undefended) == ("jigsaw", 0.9, 0.97)
    assert (found["weights"].attack, found["many_passes"].attack) == ("white_box", "jigsaw")
    assert set(found) == {"query", "weights", "many_passes", "weights_and_many_passes"}
    assert {one.defense for one in found.values()} == {"batch_shuffle"}


def test_an_attack_that_is_not_sound_is_no_evidence_for_a_place() -> None:
    broken = Check(name="control", passed=False, detail="fails on the image itself", decisive=True)
    rows = [
        with_share(attacked("jigsaw", "query", 0.09, 0.1, checks=(broken,)), 0.9),
        with_share(attacked("black_box", "query", 0.09, 0.1), 0.2),
        *(with_share(attacked(name, "query", 0.01, 0.9, defense="none"), 1.0) for name in ("jigsaw", "black_box")),
    ]
    (found,) = (one for one in entries(rows, threat_verdicts(rows, [], REGISTERED)) if one.threat_model == "query")
    assert (found.attack, found.identified) == ("black_box", 0.2)


def test_a_defense_does_not_stand_against_a_weak_attack_if_a_stronger_one_is_known() -> None:
    rows = [with_share(attacked("jigsaw", "query", 0.09, 0.1), 0.1)]
    rows.append(with_share(attacked("jigsaw", "query", 0.01, 0.9, defense="none"), 0.9))
    known = {"batch_shuffle": [KnownOutcome(attack="black_box", threat_model="query", ssim=0.8)]}

    def outcome(known: dict[str, list[KnownOutcome]]) -> str:
        found = entries(rows, threat_verdicts(rows, [], REGISTERED, known))
        return next(one.outcome for one in found if one.threat_model == "query")

    assert (outcome({}), outcome(known)) == ("holds", "not_shown")


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = [*THREE, entry("none_measured", 0.3, 0.4, bare_accuracy=None, traffic=None, undefended=None)]
    path = tmp_path / "registry.csv"
    path.write_text(registry_csv(found), encoding="utf-8")
    assert sorted(read_registry(path), key=str) == sorted(found, key=str)
    assert read_registry(tmp_path / "none.csv") == []


def test_means_are_over_seeds_with_the_same_number_of_attacked_records() -> None:
    (one,) = settings([entry("clip", 0.8, 0.9), entry("clip", 0.9, 0.8, seed=1), entry("clip", 0.1, 0.1, victims=20)])
    assert (one.identified.value, one.accuracy, one.seeds) == (pytest.approx(0.85), pytest.approx(0.85), (0, 1))
    assert one.identified.n == 2  # the interval is over seeds
    (single,) = settings([entry("clip", 0.8, 0.9)])
    assert (single.identified.n, single.identified.method) == (100, "Clopper–Pearson")


def test_a_place_names_the_neighbors_on_both_sides_and_what_is_at_least_as_good() -> None:
    (found,) = registry_places(settings([entry("own", 0.6, 0.6)]), settings(THREE))
    assert found.more is not None
    assert found.less is not None
    assert (found.more.defense, found.less.defense, found.peers) == ("clip", "mixup", 3)
    assert [one.defense for one in found.better] == ["mixup"]
    assert found.sentence == (
        "query: own (identified 0.60, accuracy 0.60) lies between clip (identified 0.95, accuracy 0.90) and mixup "
        "(identified 0.50, accuracy 0.70); at least as accurate and no more identified: mixup; this place "
        "rests on 1 attack, the registry's rows on 1"
    )
    (least,) = registry_places(settings([entry("own", 0.1, 0.6)]), settings(THREE))
    assert "gives away no more than any other; the next is dp_sl" in least.sentence
    (most,) = registry_places(settings([entry("own", 1.0, 0.6)]), settings(THREE))
    assert "gives away no less than any other; the next is clip" in most.sentence
    assert len(place_table([found, least, most]).rows) == 3
    (equal,) = registry_places(settings([entry("own", 0.5, 0.6)]), settings(THREE))
    shown = place_table([equal])
    no_more = shown.rows[0][shown.headers.index("next that gives away no more")]
    assert no_more.startswith("mixup (identified 0.50")  # as much as the own, and not less


def test_an_adversary_of_whom_nobody_tried_an_attack_has_no_place() -> None:
    """One pass under queries was told as "many passes: gives away no more than any other"."""
    broken = Check(name="control", passed=False, detail="", decisive=True)
    rows = [
        with_share(attacked("black_box", "query", 0.05), 0.07),
        with_share(attacked("white_box", "weights", 0.05), 0.09),
        with_share(attacked("adaptive", "many_passes", 0.05, checks=(broken,)), 0.05),
    ]
    own = settings(entries(rows, threat_verdicts(rows, [], REGISTERED)))
    peers = settings(
        [
            entry(name, share, 0.5, threat_model=model, victims=50, attack=attack)
            for name, attack, share in (("clip", "adaptive", 0.9), ("mixup", "unmix", 0.01))
            for model in ("query", "weights", "many_passes")
        ]
    )
    found = {one.setting.threat_model: one for one in registry_places(own, peers, rows)}
    assert found["many_passes"].sentence == (
        "many passes: no sound attack (adaptive failed its control) on batch_shuffle; the registry's rows on 2 attacks"
    )
    without = {one.setting.threat_model: one for one in registry_places(own, peers, rows[:2])}
    assert without["many_passes"].sentence == (
        "many passes: not tried here on batch_shuffle; the registry's rows on 2 attacks"
    )
    assert (found["many_passes"].more, found["many_passes"].less, found["many_passes"].better) == (None, None, ())
    assert found["query"].sentence.endswith("; this place rests on 1 attack, the registry's rows on 2")
    assert found["weights"].sentence.endswith("; this place rests on 2 attacks, the registry's rows on 2")
    for places, told in ((without, "not tried here"), (found, "no sound attack (adaptive failed its control)")):
        assert [line[2] for line in place_table(list(places.values())).rows].count(told) == 1


def test_what_is_not_shown_to_hold_is_not_said_to_give_away_least() -> None:
    (least,) = registry_places(settings([entry("own", 0.1, 0.6, outcome="not_shown")]), settings(THREE))
    assert least.sentence == (
        "query: own (identified 0.10, accuracy 0.60) is not shown to give away less than any other; this place "
        "rests on 1 attack, the registry's rows on 1"
    )
    (between,) = registry_places(settings([entry("own", 0.6, 0.6, outcome="not_shown")]), settings(THREE))
    assert between.more is None
    assert " gives away no less than mixup (identified 0.50, accuracy 0.70), and is not shown to " in between.sentence


def test_a_registered_setting_is_shown_beside_ones_own_and_is_no_peer_of_itself() -> None:
    (found,) = registry_places(settings([entry("mixup", 0.6, 0.7)]), settings(THREE))
    assert found.registered is not None
    assert (found.registered.identified.value, found.peers) == (0.5, 2)


@pytest.mark.parametrize(
    "changes",
    [{"dataset": "cifar10"}, {"threat_model": "weights"}, {"victims": 50}],
    ids=lambda change: next(iter(change)),
)
def test_other_data_adversaries_and_numbers_of_records_have_no_place(changes: dict[str, object]) -> None:
    assert registry_places(settings([entry("own", 0.6, 0.6, **changes)]), settings(THREE)) == []


def test_another_network_or_number_of_own_records_is_named() -> None:
    registered = settings(THREE)
    same = registry_places(settings([entry("own", 0.6, 0.6)]), registered)
    assert place_differences(same, registered) == []
    other = registry_places(settings([entry("own", 0.6, 0.6, model="resnet20", own=100)]), registered)
    network, own = place_differences(other, registered)
    assert "resnet20 here, vit_micro in the registry" in network
    assert "100 here, 2000 in the registry" in own


@pytest.mark.parametrize(
    ("claims", "weakest"),
    [
        (("proven: 10^1296 orders, no DP", "proven: 10^985 orders, no DP"), 1),
        (("proven: ε=9.55e+06 at δ=1e-05", "proven: ε=3.56e+07 at δ=1e-05"), 1),
        (("nothing", "proven: 10^985 orders, no DP"), 0),
    ],
)
def test_the_claim_of_a_setting_is_the_weakest_over_seeds(claims: tuple[str, str], weakest: int) -> None:
    (found,) = settings(entry("clip", 0.9, 0.9, claim=claim, seed=seed) for seed, claim in enumerate(claims))
    assert found.claim == claims[weakest]


def test_a_share_of_records_counts_whole_records() -> None:
    """.29 · 100 is 28.999… in floating point; the limits are those of 29 records."""
    (found,) = settings([entry("clip", 0.29, 0.9)])
    assert found.identified == clopper_pearson(29, 100)
