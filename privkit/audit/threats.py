"""The verdicts of a run under each threat model, and which registered attacks it did not try."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from privkit.attacks.base import threat_model
from privkit.audit.scoring import over_seeds
from privkit.errors import UsageError
from privkit.registry import parse, table
from privkit.reports.schema import Row
from privkit.reports.strongest import FLOORS
from privkit.reports.threats import OTHERS, ThreatVerdict, threat_verdicts
from privkit.same_domain import RECORDS


def threats_of(rows: Sequence[Row]) -> list[ThreatVerdict]:
    """The verdicts on the rows that a run has so far."""
    return threat_verdicts(rows, over_seeds(rows), _registered(rows[0].records)) if rows else []


@cache
def _registered(records: str) -> dict[str, tuple[str, ...]]:
    """Threat model -> attacks on such records by their default options; attacks that ask something else together.

    Args:
        records: what the dataset holds, in words.
    """
    models: dict[str, tuple[str, ...]] = {}
    for name in sorted(set(table("attacks")) - set(FLOORS)):
        try:
            attack = parse("attacks", name).spec
        except UsageError:  # a broken plug-in was not tried either, and cannot be
            continue
        if attack.goal != "reconstruct":
            model = OTHERS
        elif records in (RECORDS[domain] for domain in attack.mounting.domains):
            model = threat_model(attack)
        else:
            continue
        models[model] = (*models.get(model, ()), name)
    return models
