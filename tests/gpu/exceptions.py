"""What waits for the host or is not compiled, with its reason: one list, which docs/results/gpu.md shows as well."""

import csv
from pathlib import Path

LIST = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gpu" / "exceptions.csv"


def exceptions(kind: str) -> dict[str, str]:
    """Name -> reason of one kind of exceptions."""
    with LIST.open(newline="", encoding="utf-8") as lines:
        found = {row["name"]: row["reason"] for row in csv.DictReader(lines) if row["kind"] == kind}
    assert found, kind
    return found
