"""Plans a run: its cells (each one defense, attack and seed), and their order.

A cell's id is a hash of all settings that change its result.
"""

from __future__ import annotations

import hashlib
import json
from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from privkit.attacks.query_rules import ANY_QUERIES
from privkit.files.paths import file_name
from privkit.parts.registry import Component
from privkit.settings.config import AuditConfig
from privkit.shared.grouped import grouped

_ID_VERSION = 4  # increased whenever the same settings would give another result


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of an audit's plan: a combination of defense, attack and seed."""

    id: str
    model_id: str  # id of the defended model, which cells with other attacks share
    defense: Component
    attack: Component
    seed: int  # the seed of all random numbers in the cell
    # for a cell on the undefended model that is needed only if the same attack fails on a defense: the ids of the cells
    # that run this attack on a defense; empty for all other cells
    twin_of: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The cell's defense, attack and seed in words, with all options, which its id does not show."""
        return f"{self.defense.label} / {self.attack.label}, seed {self.seed}"


def plan(config: AuditConfig) -> list[Cell]:
    """All cells (defense, attack, seed) of a run, ordered by seed, protocol and defense, the undefended baseline first.
    An attack planned only on defenses also gets an undefended cell (its twin), which runs only if the attack fails on a
    defense."""
    return [cell for seed in config.seeds for cell in _of_seed(config, seed)]


def cell_counts(config: AuditConfig) -> tuple[int, int]:
    """Count the cells (defense, attack, seed) that always run, and the undefended cells that run only if needed."""
    twins = [bool(cell.twin_of) for cell in _of_seed(config, config.seeds[0])]
    return len(config.seeds) * twins.count(False), len(config.seeds) * twins.count(True)


def _of_seed(config: AuditConfig, seed: int) -> list[Cell]:
    return [cell for part in config.parts for defense in part.defenses for cell in _on(part, defense, seed)]


def _on(config: AuditConfig, defense: Component, seed: int) -> list[Cell]:
    """The cells of one defense and seed, one for each attack. For the undefended model, the cells that run only if the
    same attack fails on a defense come last."""
    own = [_cell(config, defense, attack, seed) for attack in config.attacks_on(defense)]
    if defense.name != "none":
        return own
    anyway, twins = {cell.id for cell in own}, dict[str, Cell]()
    for one in config.defenses:
        for attack in config.attacks_on(one):
            bare = _cell(config, defense, attack, seed)
            if bare.id not in anyway:
                of = _cell(config, one, attack, seed).id
                twins[bare.id] = replace(bare, twin_of=(*twins.get(bare.id, bare).twin_of, of))
    return [*own, *twins.values()]


def _cell(config: AuditConfig, defense: Component, attack: Component, seed: int) -> Cell:
    budget = asdict(config.budget)
    for of_attacks in ("attack_epochs", "attack_doublings"):  # the attack's fields have these numbers
        del budget[of_attacks]
    victims = budget.pop("victims")
    parts = {name: getattr(config, name).to_json() for name in ("dataset", "model", "protocol", "partition")}
    model = {"version": _ID_VERSION, **parts, "defense": defense.to_json(), "training": asdict(config.training)}
    model |= {"budget": budget, "seed": seed}
    attacked = {
        **{"model": model, "attack": attack.to_json(), "victims": victims, "features": list(config.features)},
        **{name: getattr(config, name) for name in ("auxiliary", "attacked", "delta")},
        **({"parts": list(config.held)} if config.held and defense.spec.storages else {}),
        **({"metrics": [metric.to_json() for metric in config.metrics]} if config.metrics else {}),
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
    """Ten hex digits that identify a JSON object."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:10]


class Schedule:
    """Hands out a run's unfinished cells (defense, attack, seed) in the plan's order; some cells must wait.

    A cell waits in four cases:

    - another cell is training the model that this cell attacks;
    - the first seed's cell with the same defense and attack has no result yet (control experiments use its images);
    - another cell is running the control experiments of the same attack, and some other cell can begin instead;
    - it attacks the undefended model only for comparison (a twin), and the attack has not failed on a defense so far.

    `known` has the labels of attacks with a result; no cell waits for their control experiments. `trained` says whether
    a model is finished, and `lost` says whether a cell's attack failed, so that its twin must run.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        done: Collection[str],
        known: Collection[str],
        trained: Callable[[str], bool],
        lost: Callable[[str], bool] = lambda cell: False,
    ) -> None:
        self._done, self._known, self._trained, self._lost = set(done), set(known), trained, lost
        self._order = {cell.id: number for number, cell in enumerate(cells)}
        self._left = [cell for cell in cells if cell.id not in self._done]  # in the order of the plan
        self._training: dict[str, str] = {}  # model -> cell that trains it
        self._beginning: dict[str, str] = {}  # label of an attack -> cell that begins it
        self._of_a_kind = grouped(cells, lambda cell: (cell.defense.label, cell.attack.label))

    def take(self) -> Cell | None:
        """Mark the next cell (defense, attack, seed) as started, and return it; None if each cell has started or must
        wait."""
        able = (cell for cell in self._left if not self._waits(cell))
        first = next(able, None)
        if first is None or not self._begun_elsewhere(first):
            return self._begin(first)
        return self._begin(next((cell for cell in able if not self._begun_elsewhere(cell)), first))

    def shares(self, cell: Cell) -> bool:
        """Whether other cells that certainly run wait for the training of the model that this cell attacks."""
        others = any(one.model_id == cell.model_id and not one.twin_of for one in self._left)
        return others and not self._trained(cell.model_id)

    def finish(self, cell: Cell) -> None:
        """Note that a cell (defense, attack, seed) has a result."""
        self._done.add(cell.id)
        self._known.add(cell.attack.label)
        self._release(cell)

    def again(self, cell: Cell) -> None:
        """Note that a cell (defense, attack, seed) ended without a result and must begin again."""
        insort(self._left, cell, key=lambda one: self._order[one.id])
        self._release(cell)

    def _begin(self, cell: Cell | None) -> Cell | None:
        if cell is not None:
            self._left.remove(cell)
            if not self._trained(cell.model_id):
                self._training[cell.model_id] = cell.id
            self._beginning.setdefault(cell.attack.label, cell.id)
        return cell

    def _release(self, cell: Cell) -> None:
        """Note that a cell no longer trains its model or begins its attack, so that another cell can do this."""
        for held, name in ((self._training, cell.model_id), (self._beginning, cell.attack.label)):
            if held.get(name) == cell.id:
                del held[name]

    def _begun_elsewhere(self, cell: Cell) -> bool:
        return cell.attack.label in self._beginning and cell.attack.label not in self._known

    def _waits(self, cell: Cell) -> bool:
        """Whether a cell must not start yet: another cell must end first, or this cell is not needed."""
        if cell.model_id in self._training or not self._needed(cell):
            return True
        for first in self._of_a_kind[cell.defense.label, cell.attack.label]:
            if first.seed == cell.seed or first.id in self._done:
                return False
            if self._needed(first) is not False:
                return True
        return False

    def _needed(self, cell: Cell) -> bool | None:
        """Whether an attack must run: on the undefended model, only if it failed on a defense. None if unknown yet."""
        if not cell.twin_of or any(map(self._lost, self._done.intersection(cell.twin_of))):
            return True
        return False if self._done.issuperset(cell.twin_of) else None
