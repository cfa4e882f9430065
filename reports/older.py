"""Records of an older schema, in the words of this one."""

from __future__ import annotations

from typing import Any

from privkit.reports.schema import SCHEMA_VERSION

Fields = dict[str, Any]

READ = (5, SCHEMA_VERSION)
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


def upgraded(fields: Fields) -> Fields:
    """A record as this version writes it; records of this version and of unknown ones are returned as they are.

    Args:
        fields: of a row, a manifest or a verdict.

    >>> upgraded({"schema_version": 5, "created": "2026"})
    {'schema_version': 6, 'created': '2026'}
    """
    if fields.get("schema_version") != READ[0]:
        return fields
    today = {**fields, "schema_version": SCHEMA_VERSION}
    try:
        return _row(today) if "defense" in fields and "attack" in fields else today
    except (AttributeError, KeyError, TypeError):  # whoever checks the fields will say that they are no row's
        return fields


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
