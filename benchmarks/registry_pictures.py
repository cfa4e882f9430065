"""Pictures for the lines of the registry of defenses: a few attacked records, and below them the attack's guesses.

A picture's name contains the setting, attack, seed and commit of its lines. If the lines are measured again at another
commit, the picture has no line any more, and `python benchmarks/pages.py` removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from privkit.files.paths import file_name, inside, read_bytes, root
from privkit.reports.registry import Entry
from privkit.reports.schema import Row
from privkit.run.records import STRIP
from privkit.shared.grouped import grouped

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "registry"
PUBLIC = ("cifar10", "cifar100", "digits", "fashion_mnist", "lfw_people", "lfw_subset", "mnist", "pcam", "tiny_digits")
"""Datasets whose images may be shown; for other datasets, the registry has numbers only."""


def path_of(one: Entry) -> Path:
    """Path of the picture for a line; lines with the same attack, setting, seed and commit share it."""
    name = f"{file_name(one.defense)}-{file_name(one.attack)}-s{one.seed}-{one.commit[:10]}.png"
    return FOLDER / one.dataset / name


def keep(run: Path, rows: Sequence[Row], found: Iterable[Entry]) -> None:
    """Copy the pictures of these lines from the run's report. If there is none, the line's old picture is deleted."""
    cells = {(row.defense, row.attack, row.seed): row.cell for row in rows}
    for one in found:
        if one.dataset not in PUBLIC:
            continue
        path_of(one).unlink(missing_ok=True)
        strip = inside(root(run), "cells", cells[one.defense, one.attack, one.seed], STRIP)
        if strip.exists():
            path_of(one).parent.mkdir(parents=True, exist_ok=True)
            path_of(one).write_bytes(read_bytes(strip))


def shown(registered: Iterable[Entry]) -> dict[Path, list[Entry]]:
    """Choose the pictures to show: for each setting and adversary, the first seed that has a picture. Returns picture
    -> its lines.

    Args:
        registered: lines of the registry, in its order.
    """
    first: dict[tuple[str, str, str], Entry] = {}
    for one in registered:
        if path_of(one).exists():
            first.setdefault((one.dataset, one.defense, one.threat_model), one)
    return grouped(first.values(), path_of)


def left_over(registered: Iterable[Entry]) -> list[Path]:
    """Pictures that are not shown, since their lines were measured anew or another seed has one."""
    return sorted(set(FOLDER.rglob("*.png")) - set(shown(registered)))
