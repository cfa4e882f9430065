"""Ranks a run's defenses among the registered results of privkit's own defenses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privkit.errors import UsageError
from privkit.parts.threats import threats_of
from privkit.reports.registry import Entry, Place, entries, place, place_differences, read_registry, settings
from privkit.reports.schema import Row
from privkit.reports.strongest import counted
from privkit.run.records import finished_rows
from privkit.shared.own_records import hold_attacked


def entries_of(rows: Sequence[Row]) -> list[Entry]:
    """The results of a run for each defended setting and adversary, seed by seed."""
    seeds = dict.fromkeys(row.seed for row in rows)
    each = [[counted(row) for row in rows if row.seed == seed] for seed in seeds]
    return [found for own in each for found in entries(own, threats_of(own))]


def placed(run: Path) -> tuple[list[Place], list[str]]:
    """Rank a run's defenses among privkit's registered results: a rank for each defense setting and adversary; and a
    sentence for each respect in which this run differs from the registered ones.
    """
    _, rows = finished_rows(run)
    if any(hold_attacked(row.auxiliary, row.attacked) for row in rows):
        raise UsageError(
            f"in {run} the adversary holds the attacked records among its own, but the registry has no such run; "
            f"audit with --auxiliary disjoint"
        )
    own, registered = settings(entries_of(rows)), settings(read_registry())
    if not own:
        if all(row.accuracy is None for row in rows):
            raise UsageError(f"{run} has no accuracy, which a place needs; record one: save(accuracy=...)")
        raise UsageError(f"{run} has no defense whose records were attacked; audit one with --attack auto")
    if not (places := place(own, registered, rows)):
        mine, had = (
            ", ".join(sorted({f"{one.dataset} with {one.victims} attacked records" for one in found}))
            for found in (own, registered)
        )
        raise UsageError(f"nothing comparable to {run} is registered: it attacks {mine}, the registry {had}")
    return places, place_differences(places, registered)
