"""A few steps on random records: whether a defense fits the model, and how long training and attacks take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, cast

import numpy as np
import torch
from torch import Generator, nn

from privkit.attacks.base import NoSession, NotApplicable, View, known_to
from privkit.attacks.fit import JUDGED_FROM
from privkit.attacks.goals.labels import LabelAttack, LabelObservation, first_of_each, observe
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.audit.assembled import assemble
from privkit.domains.base import Batch, Pools, several
from privkit.domains.tables.domain import Tables
from privkit.errors import DataError, PrivkitError, UsageError, one_line
from privkit.parts.registry import Component
from privkit.settings.config import AuditConfig
from privkit.shared.seeds import derive
from privkit.torch_utils.clock import clock
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.undisturbed import undisturbed
from privkit.training import Clients, train
from privkit.training.u_shape import UShaped
from privkit.wire.channel import black_box_query, shared_lower
from privkit.wire.hijack import LiveClients, imitated

ROUNDS = 4
"""Rounds of random records that a probe has for the adversary's own."""
_STEP = 0.25
"""Seconds that a step of training takes at least if its time is scaled to a larger batch."""
_STEPS = 4
"""Steps by which a training is longer than another one, if a single step is too short to be timed."""
_SHRINKAGE = 6
"""By how much a round shrinks if an attack does not end an epoch in time."""
_GROWTH = 4
"""By how much a batch grows at least if its step was too short to be timed."""
_IDLE = "at least; its first epoch takes longer than the estimate may"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """How long something takes.

    Attributes:
        seconds: for the whole stage, at the size of the probe.
        epochs: of training in these seconds, to estimate control experiments; 0 without them.
        round_size: records of a round of the probe.
        reason: why there is no number, or what the number leaves out; empty otherwise.
        most: seconds at most, if the attack fails; 0 if that is not estimated.
    """

    seconds: float = 0.0
    epochs: int = 0
    round_size: int = 1
    reason: str = ""
    most: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProbeSetup:
    """The inputs of a probe: an untrained defended model and random records like those of a dataset.

    Attributes:
        config: a configuration with one protocol.
        defense: the model's defense.
        edge: the model's clients (`Clients`). Probes train copies of both sides.
        upper: the model's server segment.
        pools: the dataset whose records the random ones resemble.
        device: of the model.
    """

    config: AuditConfig
    defense: Component
    edge: Clients
    upper: nn.Module
    pools: Pools
    device: torch.device

    @classmethod
    def of(cls, config: AuditConfig, defense: Component, pools: Pools, device: torch.device) -> ProbeSetup:
        """The untrained model with a defense; raises what its parts raise."""
        domain = pools.train.take(np.zeros(1, dtype=np.int64)).domain
        edge, upper, _ = assemble(config, defense.spec, domain, pools.classes, 0)
        edge, upper = edge.to(device), upper.to(device)
        return cls(config=config, defense=defense, edge=edge, upper=upper, pools=pools, device=device)

    @property
    def smallest_batch(self) -> int:
        """The smallest batch that the defense accepts and that has batch statistics."""
        smallest: int = self.defense.spec.smallest_batch
        return max(2, smallest)

    def sized(self, batch_size: int) -> ProbeSetup:
        """The same with another number of records a client and round."""
        return replace(self, config=replace(self.config, training=replace(self.config.training, batch_size=batch_size)))

    def records(self, count: int) -> Batch:
        """Random records of the dataset's domain, of all classes in turn."""
        one = self.pools.train.take(np.zeros(1, dtype=np.int64))
        rows = torch.arange(count, device=self.device)
        x = one.domain.random(count, Generator().manual_seed(0)).to(self.device)
        y = rows % self.pools.classes
        y = nn.functional.one_hot(y, self.pools.classes) if several(one.y) else y
        return Batch(x=x, y=y, ids=rows, domain=one.domain)

    def seconds_of_training(self, steps: int = 1) -> float:
        """Seconds of a training of so many steps, on a copy of the model."""
        edge, upper = deepcopy((self.edge, self.upper))
        training = self.config.training
        images = self.records(self.config.protocol.spec.clients * training.batch_size * steps)
        now = clock(self.device)
        start = now()
        train(edge, upper, images, training, epochs=1, seed=0)
        return now() - start


def check_shapes(config: AuditConfig, pools: Pools) -> None:
    """Try one training step with every defense before any work.

    Raises:
        UsageError: if a defense cannot take the model's release, such as a defense on tokens behind a convolution.
    """
    for defense in config.defenses:
        try:
            with _fitting(config, defense):
                setup = ProbeSetup.of(config, defense, pools, torch.device("cpu"))
                setup.sized(setup.smallest_batch).seconds_of_training()
        except (UsageError, DataError):
            raise
        except Exception as error:  # what else goes wrong, such as a user's own fault, becomes a row with its trace
            if ran_out(error):
                raise


def training_step(
    config: AuditConfig, defense: Component, pools: Pools, device: torch.device
) -> tuple[ProbeSetup, float]:
    """Time of a training step, measured on as many records as a moment allows and scaled to the whole batch.

    The first step takes the smallest batch: it shows that shapes fit, and warms up. Later steps take more records,
    until one lasts long enough to be timed or takes the whole batch. If a step of the whole batch is still short, its
    time is the difference of two trainings, so one-time work is not counted for each step.

    Returns:
        The untrained model with the batch size that was timed, and seconds of a step of the whole batch.

    Raises:
        UsageError: if the model or the defense fails on random records.
    """
    whole = config.training.batch_size
    with _blamed(config, defense.label), _fitting(config, defense):
        setup = ProbeSetup.of(config, defense, pools, device)
        batch, timed = min(whole, setup.smallest_batch), False
        seconds = setup.sized(batch).seconds_of_training()
        while not timed or (batch < whole and seconds < _STEP):
            batch, timed = min(whole, ceil(batch * max(_GROWTH, _STEP / seconds))), True
            seconds = setup.sized(batch).seconds_of_training()
        setup = setup.sized(batch)
        if seconds < _STEP:
            seconds = max(0.0, setup.seconds_of_training(1 + _STEPS) - seconds) / _STEPS
    return setup, seconds * whole / batch


def attack_on_images(setup: ProbeSetup, attack: Component, limit: float) -> Timed:
    """Time of an attack on records, on one round of victims and a few rounds of auxiliary ones.

    It is stopped after `limit` seconds, and the rest is extrapolated from its epochs. If it finishes none in that time,
    it starts over on smaller rounds.

    Raises:
        UsageError: if the attack fails on random records.
    """
    spec: ImageAttack = attack.spec
    protocol, batch = setup.config.protocol.spec, setup.config.training.batch_size
    if protocol.upper == "own":
        return Timed(reason="not applicable: standalone clients send nothing")
    a_round = protocol.active * batch
    rounds = 1 if "clients" in spec.needs else ROUNDS  # a hijack trains clients in each of its steps
    own = setup.records(rounds * protocol.clients * batch)
    if not {own.domain.name, "any"} & set(spec.mounting.domains):
        return Timed(reason=f"not applicable: {attack.name} does not reconstruct {own.domain.records}")

    def observation(held: frozenset[str]) -> ImageObservation:
        edge, upper = deepcopy((setup.edge, setup.upper))  # a hijack trains its clients
        view = black_box_query(edge)(own.x[:a_round], Generator(setup.device).manual_seed(0)).view
        return _observed(setup.config, edge, upper, own, a_round, [view] * spec.mounting.passes, held)

    # What it can do without costs time, and is given if it must be.
    tried = [partial(observation, held) for held in dict.fromkeys((spec.needs, known_to(spec)))]
    timed = _timed(setup, attack, limit, a_round, tried)
    if timed.reason == _IDLE and batch > setup.smallest_batch:
        return attack_on_images(setup.sized(max(setup.smallest_batch, batch // _SHRINKAGE)), attack, limit)
    return timed


def attack_on_labels(setup: ProbeSetup, attack: Component, limit: float) -> Timed:
    """Time of an attack on the labels of one client, on a few rounds of random records; see `attack_on_images`."""
    spec: LabelAttack = attack.spec
    batch, classes = setup.config.training.batch_size, setup.pools.classes
    records = setup.records(ROUNDS * batch)
    if setup.config.protocol.spec.upper == "own" or several(records.y):
        return Timed()

    def observation() -> LabelObservation:
        edge, upper = deepcopy((setup.edge, setup.upper))
        lower, kept = edge.client(0).eval(), isinstance(upper, UShaped)
        if isinstance(upper, UShaped):  # its server reads the rounds of one client
            upper = nn.Sequential(upper.middle, upper.tails.copy(0))
        seen = observe(lower, upper, records.x, records.y, batch_size=batch, known=not kept)
        known = first_of_each(records.y, max(1, spec.mounting.labeled))
        return replace(
            seen,
            lower=None if kept else lower,
            auxiliary=None if kept else records.x,
            other_images=records.x,
            other_labels=records.y,
            known_rows=known,
            known_labels=records.y[known],
            label_shares=torch.full((classes,), 1 / classes, device=setup.device),
        )

    return _timed(setup, attack, limit, batch, [observation])


def _observed(
    config: AuditConfig,
    edge: Clients,
    upper: nn.Module,
    own: Batch,
    a_round: int,
    views: list[View],
    held: frozenset[str],
) -> ImageObservation:
    protocol = config.protocol.spec
    shared = protocol.active == 1 or protocol.average != "never" or config.training.freeze_lower
    clients: LiveClients | None = None
    if "clients" in held:
        taken = own[: a_round * (protocol.clients // protocol.active)]
        shares = config.partition.spec.assign(taken.y.cpu(), protocol.clients, derive(0, "partition"))
        clients = LiveClients(edge, taken, shares, config.training, taken, 0, passes=len(views))
    return ImageObservation(
        image_shape=cast(tuple[int, int, int], own.domain.shape),  # of images; else the attack reads these
        columns=own.domain.column_sizes if isinstance(own.domain, Tables) else (),
        batch_size=a_round,
        views=views,
        auxiliary=own.x if "auxiliary" in held else None,
        auxiliary_labels=own.y if "auxiliary_labels" in held and not several(own.y) else None,
        query=black_box_query(edge) if "query" in held else None,
        lower=shared_lower(edge) if "lower" in held and shared else None,
        upper=upper if "upper" in held and protocol.labels == "sent" else None,
        upper_history=[upper] if "upper_history" in held and protocol.labels == "sent" else None,
        clients=clients,
        imitate=imitated(edge, own.domain) if "imitate" in held else None,
    )


@contextmanager
def _fitting(config: AuditConfig, defense: Component) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UsageError(
            f"{defense.label} does not fit {config.model.label}: {error}; choose another of them"
        ) from None


@contextmanager
def _blamed(config: AuditConfig, who: str) -> Iterator[None]:
    """Turn what a part raises into a sentence that names it."""
    try:
        yield
    except PrivkitError:
        raise
    except Exception as error:  # a user's own part may raise anything
        if ran_out(error):
            raise
        raise UsageError(
            f"{who} on {config.model.label} fails on random images ({one_line(error, None)}); mend that part, or "
            "leave it out"
        ) from None


class _Enough(BaseException):
    """The probe has seen enough; no `Exception`, so that an attack does not take it for its own failure."""


class _Watch(NoSession):
    """A session that notes when each epoch ends, and ends the attack when its time is over."""

    def __init__(self, limit: float, now: Callable[[], float]) -> None:
        self.limit, self.now, self.start = limit, now, 0.0
        self.marks: list[tuple[float, int]] = []
        self.total = 0

    def report(self, done: int, total: int, value: float) -> None:
        self.marks.append((self.now() - self.start, done))
        self.total = total
        if self.marks[-1][0] > self.limit:
            raise _Enough


def _timed(
    setup: ProbeSetup, attack: Component, limit: float, round_size: int, observations: Sequence[Callable[[], Any]]
) -> Timed:
    """Time an attack on the first observation on which it can be mounted."""
    reason = ""
    with _blamed(setup.config, f"{setup.defense.label} / {attack.label}"):
        for observation in observations:
            try:
                return _watched(attack.spec, observation(), _Watch(limit, clock(setup.device)), round_size)
            except NotApplicable as error:
                reason = f"not applicable: {error}"
    return Timed(reason=reason)


def _watched(attack: Any, observation: Any, watch: _Watch, round_size: int) -> Timed:
    """Run an attack. If it is ended before its last epoch, its time follows from the epochs that were seen."""
    planned, enough = _planned(attack), False
    try:
        # The alarm may ring inside torch's own `no_grad`, before that puts gradients on again.
        with undisturbed(environment=False), _alarm(2 * watch.limit):
            watch.start = watch.now()
            attack.run(observation, Generator().manual_seed(0), watch)
    except _Enough:  # also of an alarm that rings when the attack has just ended
        enough = True
    elapsed, seen = watch.now() - watch.start, len(watch.marks)
    if not enough:
        more = max(1.0, planned / seen) if seen else 1.0  # a doubling gains nothing on random records
        return Timed(seconds=elapsed * more, epochs=round(seen * more), round_size=round_size)
    if not seen:
        return Timed(seconds=elapsed, round_size=round_size, reason=_IDLE)
    (first, one), (last, done) = watch.marks[0], watch.marks[-1]
    an_epoch = (last - first) / (done - one) if done > one else first / max(1, one)
    total = max(planned, watch.total)
    return Timed(seconds=first + an_epoch * (total - one), epochs=total, round_size=round_size)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise `_Enough` after so many CPU seconds, for an attack that ends no epoch; only the main thread can.

    Again each second after that, since a destructor may swallow the first.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise _Enough

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _planned(attack: object) -> int:
    """Epochs of an attack that says how many it takes; of doublings, which end when one gains nothing, about 3/4."""
    epochs, doublings = getattr(attack, "epochs", None), getattr(attack, "doublings", None)
    if not isinstance(epochs, int):
        return 0
    if isinstance(doublings, int) and doublings > 0 and epochs >= JUDGED_FROM:
        return (epochs << doublings) * 3 // 4
    return epochs
