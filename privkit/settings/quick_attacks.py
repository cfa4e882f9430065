"""`--attack auto`: for each defense, the strongest quick attacks under several threat models."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from privkit.parts.registry import Component
from privkit.shared.grouped import grouped
from privkit.shared.measures import KINDS
from privkit.shared.threat_models import ThreatModel

AUTO = "auto"
TABLE = Path(__file__).with_suffix(".csv")
"""Measured attacks on defenses; `strongest_under` names the threat models under which `auto` mounts an attack."""
AUTO_THREAT_MODELS: tuple[ThreatModel, ...] = ("query", "weights", "many_passes", "weights_and_many_passes")
"""Threat models that `auto` covers."""
LINKED = ("white_box", "white_box:passes=8")
"""Further attacks on mixed images if the clients share a lower segment; in the table, each client has its own one."""
AMONG_CANDIDATES = ("nearest_record:repeats=64", "nearest_record:repeats=64,passes=8")
"""Attacks that find out which of the adversary's own records were sent, from one pass and from several."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The attacks that `--attack auto` chooses for one defense, with a remark."""

    attacks: tuple[str, ...]  # the attacks' names as on the command line
    remark: str = ""  # a sentence, if the table lacks this defense with these options


def choose(defense: Component, domain: str, *, shared: bool = False) -> Chosen:
    """Choose the attacks of `--attack auto` for one defense.

    For images, a table lists the strongest attacks on single defenses. If the table lacks the defense's options, but
    the registry of measured defenses has them, the attacks that identified the most records in the registry come first,
    then the table's attacks on this defense. In all other cases, the table's attacks on each stage come first, then a
    general list. For other records, only the general list is used. `shared` says whether several clients share a lower
    segment.

    >>> from privkit.parts.registry import parse
    >>> choose(parse("defenses", "patch_shuffle"), "images").attacks
    ('jigsaw', 'jigsaw_white_box')
    """
    if defense.name == "none":
        return Chosen(attacks=(KINDS[domain].baseline,))
    if not KINDS[domain].pictures:
        remark = "auto knows the strongest attacks on images only: a general list is mounted"
        return Chosen(attacks=KINDS[domain].general, remark=remark)
    stages, table = defense.stages or (defense,), _strongest()
    linked = LINKED if shared and defense.spec.group > 1 else ()
    if defense.label in table:
        return Chosen(attacks=tuple(dict.fromkeys((*table[defense.label], *linked))))
    known = tuple(attack for stage in stages for attack in table.get(stage.name, ()))
    if identifying := _registered().get(defense.label):
        return Chosen(attacks=tuple(dict.fromkeys((*identifying, *known, *linked))))
    return Chosen(
        attacks=tuple(dict.fromkeys((*known, *KINDS[domain].general, *linked))),
        remark=f"auto has not measured {defense.label}: its general list of attacks is mounted",
    )


@cache
def _strongest() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[ThreatModel, str]] = {}
    for row in _lines(TABLE):
        for model in AUTO_THREAT_MODELS:
            if model in row["strongest_under"].split():
                found.setdefault(row["defense"], {})[model] = row["attack"]
    return {
        defense: tuple(dict.fromkeys(picks[model] for model in AUTO_THREAT_MODELS if model in picks))
        for defense, picks in found.items()
    }


@cache
def _registered() -> dict[str, tuple[str, ...]]:
    """The attacks that identified the most records under each defense of the registry, by the defense's label."""
    from privkit.reports.registry import REGISTRY

    rows = grouped(_lines(REGISTRY), lambda row: row["defense"])
    return {defense: tuple(dict.fromkeys(row["attack"] for row in own)) for defense, own in rows.items()}


def _lines(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
