"""Short trials on random records: does a defense fit the model, and how long do training and attacks take?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, nn

from privkit.attacks.base import NoSession, NotApplicable, known_to
from privkit.attacks.fit import JUDGED_FROM
from privkit.audit.assembled import assemble
from privkit.audit.defended import DefendedModel
from privkit.audit.goals.goal import Timed, audit_goal
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.seed_data import SeedData
from privkit.domains import Domain
from privkit.domains.base import Pools, several
from privkit.domains.partition import ClientPartition
from privkit.domains.splits import Splits
from privkit.domains.stand_in import RandomPool
from privkit.errors import DataError, Misbehaved, PrivkitError, TrainingDiverged, UsageError, one_line
from privkit.parts.registry import Component
from privkit.run.plan import Cell
from privkit.run.progress import Progress
from privkit.settings.config import AuditConfig
from privkit.torch_utils.alarm import alarm
from privkit.torch_utils.clock import clock
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.undisturbed import undisturbed
from privkit.training import train
from privkit.wire.channel import record_rounds

ROUNDS = 4  # number of rounds in an epoch of random records; the adversary holds the same records
_LONG = 0.25  # a training step must take this many seconds before its time is scaled to a larger batch
_FACTOR = 6
"""Factor by which a batch grows if a step is too short to time, and shrinks if an attack finishes no epoch."""
_IDLE = "at least; its first epoch takes longer than an estimate is allowed to"
_NONE: Any = None


@dataclass(frozen=True, kw_only=True)
class Rehearsal(TrainedContext):
    """The context in which a dry run times an attack. It has no run folder and no result row, and trains one epoch."""

    records: RandomPool  # random records and labels, in the form of the dataset
    device: torch.device  # the model's device

    @classmethod
    def of(cls, config: AuditConfig, defense: Component, pools: Pools, device: torch.device) -> Rehearsal:
        """A rehearsal without an attack, with the smallest batch that the defense and batch normalization allow."""
        one = pools.train.take(np.zeros(1, dtype=np.int64))
        edge, upper, _ = assemble(config, defense.spec, one.domain, pools.classes, 0)
        unused = ("seed_data", "folder", "log", "made_of", "spent", "recording", "certificate", "row", "release_count")
        return cls(
            config=replace(config, budget=replace(config.budget, epochs=1)),
            cell=Cell(id="", model_id="", defense=defense, attack=_NONE, seed=0),
            progress=Progress(),
            model=DefendedModel(edge=edge.to(device), upper=upper.to(device), known={}),
            records=RandomPool(count=1, classes=pools.classes, domain=one.domain, several=several(one.y)),
            device=device,
            **dict.fromkeys(unused, _NONE),
        ).sized(min(config.training.batch_size, max(2, defense.spec.smallest_batch)))

    @property
    def batch_size(self) -> int:
        """Records per client and round."""
        return self.config.training.batch_size

    def sized(self, batch_size: int) -> Rehearsal:
        """The same rehearsal with another number of records per client and round."""
        clients = self.config.protocol.spec.clients
        own = self.records.take(np.arange(ROUNDS * clients * batch_size)).to(self.device)
        rows = torch.arange(len(own)).view(clients, -1)
        seed_data = SeedData(
            splits=Splits(private=own, auxiliary=own, test=own, classes=self.records.classes),
            shares=ClientPartition(rows=rows, sizes=torch.full((clients,), rows.shape[1])),
            victims=own[: self.config.protocol.spec.active * batch_size],
            auxiliary=own,
            dropped=0,
            hashes={},
        )
        training = replace(self.config.training, batch_size=batch_size)
        return replace(self, config=replace(self.config, training=training), seed_data=seed_data)

    def attacked(self, attack: Component) -> Rehearsal:
        """A copy of this rehearsal with an attack, which may change the copy's model and records."""
        edge, upper = deepcopy((self.model.edge, self.model.upper))
        model, passes = DefendedModel(edge=edge.eval(), upper=upper.eval(), known={}), attack.spec.mounting.passes
        seed_data, cell = self.seed_data.copied(), replace(self.cell, attack=attack)
        sent = record_rounds(edge, seed_data.victims, batch_size=self.batch_size, seed=0, passes=passes)
        return replace(self, cell=cell, seed_data=seed_data, model=model, recording=sent)

    def lower(self) -> nn.Module | None:
        """The lower segment; None if the clients' segments would differ after training."""
        protocol, frozen = self.config.protocol.spec, self.config.training.freeze_lower
        return super().lower() if protocol.active == 1 or protocol.average != "never" or frozen else None

    def upper_history(self) -> list[nn.Module] | None:
        """The current server's segment as its only past state, since a dry run repeats no training."""
        return None if (upper := self.upper()) is None else [upper]


def check_shapes(config: AuditConfig, pools: Pools) -> None:
    """Try one training step of every defense before the run; raises `UsageError` if a defense does not fit."""
    for defense in config.defenses:
        try:
            _fitting(config, defense, pools, torch.device("cpu"))
        except (UsageError, DataError):
            raise
        except Exception as error:  # any other error, such as one in a user's code, becomes a result row
            if ran_out(error):
                raise


def training_step(
    config: AuditConfig, defense: Component, pools: Pools, device: torch.device
) -> tuple[Rehearsal, float]:
    """Measure a training step: returns the untrained model at the timed batch size, and seconds for a whole batch.

    The first step shows that shapes fit, and warms up. Later steps use more records until they are long enough to be
    timed.
    """
    whole, seconds = config.training.batch_size, 0.0
    domain = pools.train.take(np.zeros(1, dtype=np.int64)).domain
    with _blamed(config, defense.label, domain):
        cell = _fitting(config, defense, pools, device)
        while seconds < _LONG and cell.batch_size < whole:
            cell = cell.sized(min(whole, _FACTOR * cell.batch_size))
            seconds = seconds_of_training(cell)
        if seconds < _LONG:
            seconds = seconds_of_training(cell, ROUNDS) / ROUNDS
    return cell, seconds * whole / cell.batch_size


def seconds_of_training(cell: Rehearsal, steps: int = 1) -> float:
    """Measure the seconds of `steps` training steps, at most `ROUNDS` of them, on a copy of the rehearsal's model."""
    edge, upper = deepcopy((cell.model.edge, cell.model.upper))
    records = cell.seed_data.splits.private[: steps * cell.config.protocol.spec.clients * cell.batch_size]
    now = clock(cell.device)
    start = now()
    train(edge, upper, records, cell.config.training, epochs=1, seed=0)
    return now() - start


def attack_time(cell: Rehearsal, attack: Component, limit: float) -> Timed:
    """Estimate the time of an attack by running it on an untrained model for at most `limit` seconds.

    If no epoch finishes within the limit, the attack starts again with fewer records per round.
    """
    goal, smallest = audit_goal(attack.spec), max(2, cell.cell.defense.spec.smallest_batch)
    domain = cell.seed_data.splits.domain
    with _blamed(cell.config, f"{cell.cell.defense.label} / {attack.label}", domain):
        attacked = cell.attacked(attack)
        # The attack first gets only the inputs that it needs, since others cost time; if it refuses, it gets all.
        for held in dict.fromkeys((attack.spec.needs, known_to(attack.spec))):
            try:
                given = goal.rehearsed(attacked, held)
                timed = Timed() if given is None else _timed(attack.spec, given, _Watch(limit, clock(cell.device)))
                break
            except NotApplicable as error:
                timed = Timed(reason=f"not applicable: {error}")
    if timed.reason == _IDLE and cell.batch_size > smallest:
        return attack_time(cell.sized(max(smallest, cell.batch_size // _FACTOR)), attack, limit)
    return replace(timed, records=len(cell.seed_data.auxiliary), victims=len(cell.seed_data.victims))


def _fitting(config: AuditConfig, defense: Component, pools: Pools, device: torch.device) -> Rehearsal:
    """Build an untrained model and try one training step; raises `UsageError` if the defense does not fit."""
    try:
        cell = Rehearsal.of(config, defense, pools, device)
        seconds_of_training(cell)
    except Misbehaved as error:
        raise UsageError(str(error)) from None
    except ValueError as error:
        raise UsageError(
            f"{defense.label} does not fit {config.model.label}: {error}; choose another --defense or --model"
        ) from None
    except TrainingDiverged:
        edge, victims = deepcopy(cell.model.edge).eval(), cell.seed_data.victims
        with torch.no_grad():
            sent = record_rounds(edge, victims, batch_size=cell.batch_size, seed=0)
        if all(view.smashed.isfinite().all() for view in sent.views):
            raise
        raise UsageError(
            f"the release of {defense.label} on {config.model.label} is not finite: before any training, it has NaN or "
            "infinite numbers for random records; return finite ones"
        ) from None
    return cell


@contextmanager
def _blamed(config: AuditConfig, who: str, domain: Domain) -> Iterator[None]:
    try:
        yield
    except PrivkitError:
        raise
    except Exception as error:  # a user's own part may raise anything
        if ran_out(error):
            raise
        words = len(getattr(domain, "vocabulary", ()))
        ids = f"; an embedding of token ids needs {words} rows" if words and isinstance(error, IndexError) else ""
        raise UsageError(
            f"{who} on {config.model.label} fails on random {domain.records} {list(domain.shape)} "
            f"({one_line(error, None)}){ids}; mend that part, or leave it out"
        ) from None


class _Enough(BaseException):
    """Ends an attack that is being timed. It is no `Exception`, so that an attack does not catch it as a failure."""


class _Watch(NoSession):
    def __init__(self, limit: float, now: Callable[[], float]) -> None:
        self.limit, self.now, self.start = limit, now, now()
        self.marks: list[tuple[float, int]] = []
        self.total, self.begun = 0, 0.0

    def load(self) -> dict[str, Any] | None:
        """Note when the attack begins its epochs: the time before, such as that of queries, belongs to no epoch."""
        if not self.marks:
            self.begun = self.now() - self.start
        return super().load()

    def report(self, done: int, total: int, value: float) -> None:
        self.marks.append((self.now() - self.start, done))
        self.total = total
        if self.marks[-1][0] > self.limit:
            raise _Enough


def _timed(attack: Any, given: Any, watch: _Watch) -> Timed:
    """Run an attack and measure its time; if it stops before the last planned epoch, extrapolate to all planned epochs.

    On random records an attack often stops early, because more training does not improve its guesses.
    """
    idle = ""
    try:
        with undisturbed(environment=False), alarm(2 * watch.limit, _Enough, cpu=True):
            attack.run(given, Generator().manual_seed(0), watch)
    except _Enough:  # also catches an alarm that rings when the attack has just ended
        idle = _IDLE
    elapsed, seen = watch.now() - watch.start, len(watch.marks)
    if not seen:
        return Timed(seconds=elapsed, reason=idle)
    (first, one), (last, done) = watch.marks[0], watch.marks[-1]
    an_epoch = (last - first) / (done - one) if done > one else (first - watch.begun) / max(1, one)
    planned, doublings = (getattr(attack, name, 0) for name in ("epochs", "doublings"))
    planned = planned if isinstance(planned, int) else 0
    # the attack doubles its epochs while this helps; estimated as 3/4 of the maximum
    if doublings and planned >= JUDGED_FROM:
        planned = (planned << doublings) * 3 // 4
    total = max(planned, watch.total, seen)
    return Timed(seconds=elapsed + an_epoch * (total - max(done, seen)), epochs=total)
