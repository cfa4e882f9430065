"""Rows that version 5 of the schema wrote are read: every number survives, under its name of today."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privkit.files.sealed import Broken, sealed
from privkit.reports.columns import flat_record
from privkit.reports.older import METHOD, RENAMED, UNGRADED
from privkit.reports.schema import SCHEMA_VERSION, Row, Seconds
from privkit.run.records import parse_row

STORED = [json.loads(line) for line in Path(__file__).with_name("version_5.jsonl").read_text("utf-8").splitlines()]
"""A row with an order and one with canaries, as that version wrote them, without their provenance."""


def numbers(value: Any) -> Iterator[float]:
    """Every number below, in any order."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    for part in parts:
        yield from numbers(part)


@pytest.mark.parametrize("stored", STORED, ids=[row["attack"].partition(":")[0] for row in STORED])
def test_every_number_of_a_row_survives(stored: dict[str, Any]) -> None:
    row = parse_row(sealed(stored), cell=stored["cell"])
    today = row.model_dump(mode="json")
    lost = Counter(numbers({**stored, "schema_version": SCHEMA_VERSION})) - Counter(numbers(today))
    assert not lost
    assert (row.status, row.defense, row.seed) == (stored["status"], stored["defense"], stored["seed"])
    assert row.accuracy is not None
    assert (row.accuracy.value, row.accuracy.method) == (stored["accuracy"]["value"], METHOD)
    assert (row.task["mcc"].low, row.task["mcc"].value) == (-1, stored["task"]["mcc"])
    assert [check.name for check in row.checks] == [check["name"] for check in stored["gates"]]
    assert not RENAMED.keys() & set(Row.model_fields)
    assert parse_row(sealed(today)) == row


@pytest.mark.parametrize(
    ("defense", "notes", "standing"),
    [
        ("gaussian_noise:sigma=2.0+masking@client", (), "proven"),
        ("batch_shuffle+rownoise:RowNoise", (), "declared"),
        ("my.noise:Mine:sigma=2.0", (), "declared"),
        ("none", ("the certificate is of the mechanism that the recording names; whether ...",), "declared"),
    ],
)
def test_a_certificate_of_before_is_marked_by_what_it_rests_on(
    defense: str, notes: tuple[str, ...], standing: str
) -> None:
    today = parse_row(sealed(STORED[0])).model_dump(mode="json")
    certificate = {name: value for name, value in today["certificate"].items() if name != "standing"}
    before = {**today, "schema_version": 6, "defense": defense, "notes": notes, "certificate": certificate}
    row = parse_row(sealed(before))
    assert row.certificate is not None
    assert (row.certificate.standing, row.schema_version) == (standing, SCHEMA_VERSION)


@pytest.mark.parametrize(
    ("method", "assumed"),
    [
        ("exact binomial test of all wrong guesses of independent canaries: Gaussian with μ >= 1.5", "a Gaussian"),
        ("worst case of a trade-off curve: the claimed mechanism with at most 0.8 times its noise", "the curve of the"),
        ("exact binomial test of all wrong guesses of independent canaries: ε >= 1.2", ""),
        ("binomial test of the guesses of one run", ""),
        (METHOD, None),
    ],
)
def test_an_empirical_bound_of_before_says_what_it_assumes(method: str, assumed: str | None) -> None:
    (stored,) = [row for row in STORED if row.get("empirical")]
    today = parse_row(sealed(stored)).model_dump(mode="json")
    bound = {name: value for name, value in today["empirical_bound"].items() if name != "assumed"}
    before = {**today, "schema_version": 6, "empirical_bound": {**bound, "method": method}}
    found = parse_row(sealed(before)).empirical_bound
    assert found is not None
    assert found.assumed == assumed or (assumed and found.assumed and found.assumed.startswith(assumed))


def test_a_row_of_before_has_no_seconds_and_equals_itself_with_some() -> None:
    today = parse_row(sealed(STORED[0]))
    before = {name: value for name, value in today.model_dump(mode="json").items() if name != "seconds"}
    row = parse_row(sealed({**before, "schema_version": 7}))
    assert row.seconds is None
    timed = row.model_copy(update={"seconds": Seconds(training=1.5, attack=2.0, controls=0.5)})
    assert parse_row(sealed(timed.model_dump(mode="json"))).seconds == timed.seconds
    assert timed == row
    assert flat_record(timed)["seconds_training"] == 1.5
    assert timed != row.model_copy(update={"seed": 99})


def test_a_row_of_before_says_that_nobody_was_identified_and_renames_the_share_by_feature_networks() -> None:
    (stored,) = [row for row in STORED if row.get("recovers")]
    today = parse_row(sealed(stored)).model_dump(mode="json")
    seen = {**today["recovered"]["unaligned"]["mse"], "higher_is_closer": True}
    before = {**today, "schema_version": 8, "notes": [], "recovered": {"unaligned": {"identified": seen}}}
    row = parse_row(sealed(before))
    assert list(row.recovered["unaligned"]) == ["identity"]
    assert row.notes == (UNGRADED,)


@pytest.mark.parametrize(
    "wrong", [{"accuracy": 3}, {"answers": []}, {"recovers": {"unaligned": 1}}, {"task": {"x": 1}}]
)
def test_a_row_of_before_with_other_fields_is_damaged(wrong: dict[str, Any]) -> None:
    with pytest.raises(Broken, match="its fields are not those of a row"):
        parse_row(sealed({**STORED[0], **wrong}))
