"""The provenance of result rows in words: changes between two rows, and the rows of a table that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from privkit.reports.schema import Provenance, Row

_COMPARED = ("data", "code", "files", "packages", "machine")
"""Sections of a provenance that must be unchanged for a run to be continued."""

_CODES = ("data", "code", "files")  # sections whose values are hashes, of which a few digits are shown


def differences(there: Provenance, here: Provenance, *, seed: int | None = None) -> list[str]:
    """The changes of provenance (data, code, files, versions, machine) from `there` to `here`, in a few words each.
    With `seed`, a change of the data names this seed."""
    changes = [
        _change(section, key, before.get(key), after.get(key), seed)
        for section in _COMPARED
        for before, after in [(getattr(there, section), getattr(here, section))]
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]
    return list(dict.fromkeys(changes))


def _change(section: str, key: str, before: str | None, after: str | None, seed: int | None) -> str:
    if section == "data":
        return "the records" if seed is None else f"the records of seed {seed}"
    if section == "code":
        return f"the source of {key}"
    if section == "files" and key.startswith("$"):
        return f"the environment variable {key[1:]}"
    if section == "files":
        return f"the file {key}" if after is not None else f"the file {key}, which is gone"
    if before and after and before.partition(",")[0] == after.partition(",")[0] and key == "privkit":
        return f"privkit's own source (both {before.partition(',')[0]})"
    return f"{key} ({before or 'none'} there, {after or 'none'} here)"


def origins(rows: Sequence[Row]) -> dict[str, str]:
    """How the provenance of each result row differs from that of other rows, in words, by row id; empty if all rows
    agree. Rows of different seeds have different images, and rows of different attacks have different source code. So
    only entries that both rows have are compared, and images only between rows of one seed."""
    values: dict[tuple[str, str, int | None], dict[str, str]] = {}
    for row in rows:
        for section in Provenance.model_fields:
            for key, value in getattr(row.provenance, section).items():
                place = (section, key, row.seed if section == "data" else None)
                values.setdefault(place, {})[row.cell] = value
    mixed = {place: by_cell for place, by_cell in values.items() if len(set(by_cell.values())) > 1}
    told: dict[str, list[str]] = {row.cell: [] for row in rows} if mixed else {}
    for (section, key, _), by_cell in mixed.items():
        for cell, value in by_cell.items():
            told[cell].append(f"{_NAMES.get(section, '')}{key} {value[:8] if section in _CODES else value}")
    return {cell: ", ".join(words) for cell, words in told.items()}


_NAMES = {"data": "images ", "code": "source ", "files": "file "}  # section -> the word shown before its keys


def mixture(rows: Sequence[Row]) -> str:
    """A sentence that describes result rows of different provenance; empty if all rows agree."""
    counts = Counter(origins(rows).values())
    if not counts:
        return ""
    told = "; ".join(f"{origin or 'others'} ({count} row{'s' * (count > 1)})" for origin, count in counts.items())
    return f"These rows differ in more than defense and attack: {told}."
