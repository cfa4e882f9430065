"""Finds the verdict of a run under each threat model, and the registered attacks that the run did not try."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from privkit.errors import UsageError
from privkit.parts.registry import parse, part_table
from privkit.reports.schema import Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.strongest import counted
from privkit.reports.threats import OTHERS, KnownOutcome, ThreatVerdict, threat_verdicts
from privkit.shared.measures import CONSTANT_ATTACKS, IMAGES, KINDS

KNOWN_THREATS = Path(__file__).with_suffix(".csv")
"""File with the result of `threat` for each of privkit's attacks; a test checks it, and says how to write it again."""

MEASURED = Path(__file__).parents[1] / "settings" / "quick_attacks.csv"
"""File with the results of each defense under each quick attack on digits, from which `--attack auto` chooses."""


def threats_of(rows: Sequence[Row]) -> list[ThreatVerdict]:
    """The verdict under each threat model, from the result rows so far."""
    if not rows:
        return []
    rows = [counted(row) for row in rows]
    return threat_verdicts(
        rows, over_seeds(rows), _registered(rows[0].records), _known() if rows[0].records == IMAGES.noun else {}
    )


@cache
def _known() -> dict[str, list[KnownOutcome]]:
    """The attacks that succeeded in privkit's own table: label of a defense -> outcomes of the attacks on it."""
    found: dict[str, list[KnownOutcome]] = {}
    with MEASURED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if int(row["falls"]):
                known = KnownOutcome(attack=row["attack"], threat_model=row["threat_model"], ssim=float(row["ssim"]))
                found.setdefault(row["defense"], []).append(known)
    return found


@cache
def _registered(records: str) -> dict[str, tuple[str, ...]]:
    """Names of the registered attacks on `records`, by threat model. All attacks that do not reconstruct records,
    whatever their threat model, share the key `OTHERS`."""
    models: dict[str, tuple[str, ...]] = {}
    for name in sorted(set(part_table("attacks")) - CONSTANT_ATTACKS):
        try:
            model, reads = _indexed().get(name) or threat(name)
        except UsageError:  # a broken plug-in was not tried either, and cannot be
            continue
        if model == OTHERS or "any" in reads or records in (KINDS[domain].noun for domain in reads):
            models[model] = (*models.get(model, ()), name)
    return models


def threat(attack: str) -> tuple[str, tuple[str, ...]]:
    """The threat model of an attack with default options, and the domains (such as "images") whose records it reads.
    All attacks that do not reconstruct records give (`OTHERS`, ()): they read records of all domains."""
    from privkit.attacks.base import threat_model
    from privkit.attacks.goals import goal_of

    spec = parse("attacks", attack).spec
    reads = goal_of(spec).reads(spec)
    return (threat_model(spec), reads) if reads else (OTHERS, ())


@cache
def _indexed() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The results of `threat` for privkit's attacks, read from a file, so that no attack and no torch is imported."""
    with KNOWN_THREATS.open(encoding="utf-8", newline="") as file:
        return {row["attack"]: (row["threat_model"], tuple(row["domains"].split())) for row in csv.DictReader(file)}
