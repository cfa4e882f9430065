"""The cells of a run and their ids: a versioned hash of the fields that change the answer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from privkit.attacks.query_rules import ANY_QUERIES
from privkit.files.paths import file_name
from privkit.parts.registry import Component
from privkit.settings.config import AuditConfig

_ID_VERSION = 4
"""Raised whenever the same fields would give another answer."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One defense, one attack, one seed.

    Attributes:
        id: of the cell.
        model_id: of the defended model, which cells with other attacks share.
        defense: the defense.
        attack: the attack.
        seed: of everything random in it.
    """

    id: str
    model_id: str
    defense: Component
    attack: Component
    seed: int


def plan(config: AuditConfig) -> list[Cell]:
    """All cells in the order in which they run: by seed, then protocol, then defense, the baseline first."""
    return [
        _cell(part, defense, attack, seed)
        for seed in config.seeds
        for part in config.parts
        for defense in part.defenses
        for attack in part.attacks_on(defense)
    ]


def _cell(config: AuditConfig, defense: Component, attack: Component, seed: int) -> Cell:
    budget = asdict(config.budget)
    for of_attacks in ("attack_epochs", "attack_doublings"):  # the attack's own fields say it
        del budget[of_attacks]
    victims = budget.pop("victims")
    model = {
        "version": _ID_VERSION,
        "dataset": config.dataset.to_json(),
        "model": config.model.to_json(),
        "protocol": config.protocol.to_json(),
        "partition": config.partition.to_json(),
        "defense": defense.to_json(),
        "training": asdict(config.training),
        "budget": budget,
        "seed": seed,
    }
    attacked = {
        "model": model,
        "attack": attack.to_json(),
        "auxiliary": config.auxiliary,
        "attacked": config.attacked,
        "victims": victims,
        "delta": config.delta,
        "features": list(config.features),
        **({"metrics": [metric.to_json() for metric in config.metrics]} if config.metrics else {}),
        **({"parts": list(config.held)} if config.held and defense.spec.storages else {}),
        **({"queries": asdict(config.queries)} if config.queries != ANY_QUERIES else {}),
        **({"tune": asdict(config.tune)} if config.tune else {}),
    }
    return Cell(
        id=f"{file_name(defense.name)}-{file_name(attack.name)}-s{seed}-{short_hash(attacked)}",
        model_id=f"{file_name(defense.name)}-s{seed}-{short_hash(model)}",
        defense=defense,
        attack=attack,
        seed=seed,
    )


def short_hash(fields: dict[str, Any]) -> str:
    """Ten hex digits that identify JSON-able fields."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:10]
