"""A defense is judged by the strongest attack on it, never by an average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privkit.reports.schema import Row

FLOORS = ("mean_image", "mid_grey")


@dataclass(frozen=True, kw_only=True)
class Strongest:
    """The row that counts for one defense and seed.

    Attributes:
        row: of the attack with the smallest MSE on the images as released.
        attacks: how many attacks gave a number, floors not among them.
    """

    row: Row
    attacks: int


def strongest(rows: Sequence[Row]) -> list[Strongest]:
    """One entry for each defense and seed on which an attack gave a number, in the order of the rows.

    The constant guesses are attacks only where nothing else was mounted: they need no release.

    >>> strongest([])
    []
    """
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.status == "done" and "mse" in row.recovers.get("unaligned", {}):
            groups.setdefault((row.defense, row.seed), []).append(row)
    found = []
    for group in groups.values():
        real = [row for row in group if row.attack not in FLOORS]
        best = min(real or group, key=lambda row: row.recovers["unaligned"]["mse"].mean)
        found.append(Strongest(row=best, attacks=len(real)))
    return found
