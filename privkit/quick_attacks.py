"""`--attack auto`: for each defense the strongest quick attack under query, weights and many passes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from privkit.registry import Component, parse
from privkit.threat_models import ThreatModel

AUTO = "auto"
TABLE = Path(__file__).with_suffix(".csv")
"""Defense × attack, measured; `strongest_under` names the threat models under which this attack is mounted."""
MODELS: tuple[ThreatModel, ...] = ("query", "weights", "many_passes")
"""Threat models that `auto` covers."""
BASELINE = {"images": "black_box:epochs=5", "tokens": "nearest_record", "tables": "black_box"}
"""Domain -> the one attack on an undefended model, and on a defense with options that the table does not know."""
GENERAL = {
    "images": ("black_box", "white_box", "adaptive"),
    "tokens": ("nearest_record",),
    "tables": ("black_box", "nearest_record", "field_order"),
}
"""Domain -> attacks on a defense that the table does not know: one a threat model, where there is one."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What `auto` mounts on one defense.

    Attributes:
        attacks: as a user would name them.
        remark: a sentence, if the table does not know this defense as it is.
    """

    attacks: tuple[str, ...]
    remark: str = ""


def choose(defense: Component, domain: str) -> Chosen:
    """The attacks that `auto` mounts.

    On a chain it mounts the strongest attacks on each of its stages, since the table knows no chains.

    Args:
        defense: with all its options.
        domain: of the records.

    >>> choose(parse("defenses", "patch_shuffle"), "images").attacks
    ('jigsaw', 'jigsaw_white_box')
    >>> choose(parse("defenses", "patch_shuffle"), "tokens").attacks
    ('nearest_record',)
    """
    if defense.name == "none":
        return Chosen(attacks=(BASELINE[domain],))
    if domain != "images":
        return Chosen(
            attacks=GENERAL[domain], remark="auto knows the strongest attacks on images only: a general list is mounted"
        )
    stages, table = defense.stages or (defense,), strongest()
    known = [attack for stage in stages for attack in table.get(stage.name, ())]
    if not known:
        return Chosen(
            attacks=GENERAL[domain], remark=f"auto knows no attack on {defense.label}: a general list is mounted"
        )
    new = [
        stage.label for stage in stages if stage.name not in table or stage.spec != parse("defenses", stage.name).spec
    ]
    if not new:
        return Chosen(attacks=tuple(dict.fromkeys(known)))
    return Chosen(
        attacks=tuple(dict.fromkeys((*known, BASELINE[domain]))),
        remark=f"auto has not measured {' and '.join(new)}: {BASELINE[domain]} is mounted beside what it knows",
    )


@cache
def strongest() -> dict[str, tuple[str, ...]]:
    """Name of a defense -> the attacks that `auto` mounts on it, from the table."""
    found: dict[str, dict[ThreatModel, str]] = {}
    with TABLE.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            for model in MODELS:
                if model in row["strongest_under"].split():
                    found.setdefault(row["defense"], {})[model] = row["attack"]
    return {
        defense: tuple(dict.fromkeys(picks[model] for model in MODELS if model in picks))
        for defense, picks in found.items()
    }
