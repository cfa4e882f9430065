"""Translation of records from older schemas into the current one."""

from __future__ import annotations

import re
from typing import Any

from privkit.reports.columns import LEARNED
from privkit.reports.schema import SCHEMA_VERSION

Fields = dict[str, Any]

READ = (5, 6, 7, 8, SCHEMA_VERSION)
"""Versions that are read, the oldest first."""

RENAMED = {
    "gates": "checks",
    "proves": "certificate",
    "recovers": "recovered",
    "empirical": "empirical_bound",
    "knows": "knowledge",
    "victims": "attacked",
    "images": "counts",
    "features": "feature_networks",
    "validation": "validation_curve",
}
"""Field of a row of version 5 -> its name now."""
RANGES = {"mcc": (-1.0, 1.0), "auc": (0.0, 1.0)}
"""Scores of the task that version 5 stored without limits, and the limits that hold for certain."""
METHOD = "not recorded"
"""How limits of version 5 were found: it did not say."""
FAMILIES = {
    ": Gaussian with μ": "a Gaussian curve",
    ": the claimed mechanism with": "the curve of the claimed mechanism, with more or less noise",
}
"""How methods of version 6 named a family of curves -> what the bound assumes."""
_UNLEARNED = "is not shown to be better than the most frequent label's share"
"""Part of a note, before version 9 made it a check."""
UNGRADED = (
    "an older privkit wrote this row: it counted no identified records, and compared guesses with constant ones alone"
)
"""The note on rows of records from before version 9."""
_OF_RECORDING = "the certificate is of the mechanism that the recording names"
"""How a note begins on rows of a recording, whose certificates were declared before version 7 said so."""
_OWN_STAGE = re.compile(r"(?:^|\+)[\w.]+:[A-Za-z_]\w*(?![\w=])")
"""A user's own stage in a defense's label: module:object, where options are key=value."""


def upgraded(fields: Fields) -> Fields:
    """A record in the current schema. Records of the current or an unknown version are returned unchanged.

    Args:
        fields: the fields of a row, a manifest or a verdict.

    >>> upgraded({"schema_version": 5, "created": "2026"})
    {'schema_version': 9, 'created': '2026'}
    """
    version = fields.get("schema_version")
    if version not in READ[:-1]:
        return fields
    today = {**fields, "schema_version": SCHEMA_VERSION}
    try:
        if "defense" not in fields or "attack" not in fields:
            return today
        return _marked(_assumed(_graded(_row(today) if version == READ[0] else today)))
    except (AttributeError, KeyError, TypeError):  # whoever checks the fields will say that they are no row's
        return fields


def _graded(row: Fields) -> Fields:
    """A row that says what a version before 9 did not measure, and whose share by feature networks has its own name."""
    unlearned = [note for note in row.get("notes", ()) if _UNLEARNED in note]
    told = [{"name": LEARNED, "passed": False, "detail": note, "decisive": False} for note in unlearned]
    notes = [note for note in row.get("notes", ()) if note not in unlearned]
    row = {**row, "checks": [*row.get("checks", ()), *told], "notes": notes}
    if not row.get("recovered"):
        return row
    sides = [row["recovered"], *row.get("floors", {}).values()]
    for metrics in (metrics for side in sides for metrics in side.values() if "identified" in metrics):
        metrics["identity"] = metrics.pop("identified")
    return {**row, "notes": [*notes, UNGRADED]}


def _marked(row: Fields) -> Fields:
    """A row whose certificate says whether it was proven or declared, which a version before 7 left open."""
    found = row.get("certificate")
    if not found or "standing" in found:
        return row
    recorded = any(note.startswith(_OF_RECORDING) for note in row.get("notes", ()))
    declared = recorded or _OWN_STAGE.search(row["defense"]) is not None
    return {**row, "certificate": {**found, "standing": "declared" if declared else "proven"}}


def _assumed(row: Fields) -> Fields:
    """A row whose empirical bound says which family it assumes, which a version before 7 told in its method alone."""
    bound = row.get("empirical_bound")
    if not bound or "assumed" in bound or bound["method"] == METHOD:
        return row
    found = next((family for said, family in FAMILIES.items() if said in bound["method"]), "")
    return {**row, "empirical_bound": {**bound, "assumed": found}}


def _row(fields: Fields) -> Fields:
    """A row of version 5."""
    row = {RENAMED.get(name, name): value for name, value in fields.items()}
    if row.get("accuracy"):
        row["accuracy"] = {**row["accuracy"], "method": METHOD}
    row["answers"] = {name: {**outcome, "method": METHOD} for name, outcome in row.get("answers", {}).items()}
    row["recovered"] = _metrics(row.get("recovered", {}))
    row["floors"] = {name: _metrics(outcome) for name, outcome in row.get("floors", {}).items()}
    count = row.get("counts", {}).get("test", 0)
    row["task"] = {
        name: {"value": value, "low": RANGES[name][0], "high": RANGES[name][1], "n": count, "method": METHOD}
        for name, value in row.get("task", {}).items()
    }
    if row.get("empirical_bound"):
        unknown: Fields = {"threshold": None, "method": METHOD, "assumptions": [], "source": METHOD}
        row["empirical_bound"] = {**row["empirical_bound"], **unknown}
    return row


def _metrics(alignments: dict[str, dict[str, Fields]]) -> dict[str, dict[str, Fields]]:
    """Metrics of version 5, whose value was called the mean."""
    return {
        alignment: {
            name: {("value" if key == "mean" else key): part for key, part in found.items()} | {"method": METHOD}
            for name, found in metrics.items()
        }
        for alignment, metrics in alignments.items()
    }
