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
        told: the rows of the same defense and seed whose attacks asked for labels, members or canaries.
    """

    row: Row
    attacks: int
    told: tuple[Row, ...] = ()


def strongest(rows: Sequence[Row]) -> list[Strongest]:
    """One entry for each defense and seed on which an attack gave a number, in the order of the rows.

    Where no attack reconstructed images, the row of the farthest AUC from 1/2 counts.

    The constant guesses are attacks only where nothing else was mounted: they need no release.

    >>> strongest([])
    []
    """
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.status == "done":
            groups.setdefault((row.defense, row.seed), []).append(row)
    found = []
    for group in groups.values():
        images = [row for row in group if "mse" in row.recovers.get("unaligned", {})]
        told = tuple(row for row in group if "auc" in row.answers)
        real = [row for row in images if row.attack not in FLOORS]
        if images:
            best = min(real or images, key=lambda row: row.recovers["unaligned"]["mse"].mean)
        elif told:
            best = max(told, key=lambda row: abs(row.answers["auc"].value - 0.5))
        else:
            continue
        found.append(Strongest(row=best, attacks=len(real) if images else len(told), told=told))
    return found
