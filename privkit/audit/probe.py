"""A few steps on random images: whether a defense fits the model, and how long training and attacks take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil
from typing import cast

import numpy as np
import torch
from torch import Generator, nn

from privkit.attacks.base import NoSession, NotApplicable, View, known_to
from privkit.attacks.fit import JUDGED_FROM
from privkit.attacks.goals.labels import LabelAttack, first_of_each, observe
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.audit.defended import assemble
from privkit.domains.base import Batch, Pools, several
from privkit.domains.tables.domain import Tables
from privkit.errors import DataError, PrivkitError, UsageError, one_line
from privkit.parts.registry import Component
from privkit.settings.config import AuditConfig
from privkit.shared.seeds import derive
from privkit.torch_utils.clock import clock
from privkit.torch_utils.out_of_memory import ran_out
from privkit.training import Clients, train
from privkit.wire.channel import black_box_query, shared_lower
from privkit.wire.hijack import LiveClients, imitated

ROUNDS = 4
"""Rounds of random images that a probe has for the adversary's images."""

_STEP = 0.25
"""Seconds that a step of training takes at least if its time is scaled to a larger batch."""

_STEPS = 4
"""Steps by which a training is longer than another one, if a single step is too short to be timed."""

_SHRINKAGE = 6
"""By how much a round shrinks if an attack does not end an epoch in time."""

_GROWTH = 4
"""By how much a batch grows at least if its step was too short to be timed."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """How long something takes.

    Attributes:
        seconds: for the whole stage, at the size of the probe.
        epochs: of training in these seconds, to estimate control experiments; 0 without them.
        round_size: records of a round of the probe.
        reason: why there is no number, or what the number leaves out; empty otherwise.
    """

    seconds: float = 0.0
    epochs: int = 0
    round_size: int = 1
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of training.

    Attributes:
        seconds: of a step of the whole batch.
        batch_size: images a client in the step that was timed.
    """

    seconds: float
    batch_size: int


Untrained = tuple[Clients, nn.Module]
"""Clients and server of a defended model as training finds them."""


def check_shapes(config: AuditConfig, pools: Pools) -> None:
    """Try one training step with every defense before any work.

    Raises:
        UsageError: if a defense cannot take the model's release, such as a defense on tokens behind a convolution.
    """
    device = torch.device("cpu")
    for defense in config.defenses:
        try:
            with _fitting(config, defense):
                _step(config, _model(config, defense, pools, device), pools, smallest_batch(defense), device)
        except (UsageError, DataError):
            raise
        except Exception as error:  # what else goes wrong, such as a user's own fault, becomes a row with its trace
            if ran_out(error):
                raise


def untrained(config: AuditConfig, defense: Component, pools: Pools, device: torch.device) -> Untrained:
    """An untrained defended model for the records of these pools.

    Raises:
        UsageError: if the model or the defense fails on random images.
    """
    with _blamed(config, defense.label), _fitting(config, defense):
        return _model(config, defense, pools, device)


def _model(config: AuditConfig, defense: Component, pools: Pools, device: torch.device) -> Untrained:
    """An untrained defended model; raises what its parts raise."""
    domain = pools.train.take(np.zeros(1, dtype=np.int64)).domain
    edge, upper, _ = assemble(config, defense.spec, domain, pools.classes, 0)
    return edge.to(device), upper.to(device)


def training_step(
    config: AuditConfig, defense: Component, model: Untrained, pools: Pools, device: torch.device
) -> Step:
    """Time of a training step, measured on as many images as a moment allows and scaled to the whole batch.

    The first step takes the smallest batch: it shows that shapes fit, and warms up. Later steps take more images, until
    one lasts long enough to be timed or takes the whole batch. If a step of the whole batch is still short, its time is
    the difference of two trainings, so one-time work is not counted for each step.

    Args:
        config: of one protocol.
        defense: whose step it is.
        model: with that defense; it stays untrained.
        pools: whose records the random ones resemble.
        device: of the model.

    Raises:
        UsageError: if the model or the defense fails on random images.
    """
    whole = config.training.batch_size
    batch = min(whole, smallest_batch(defense))
    with _blamed(config, defense.label), _fitting(config, defense):
        seconds, timed = _step(config, model, pools, batch, device), False
        while not timed or (batch < whole and seconds < _STEP):
            batch, timed = min(whole, ceil(batch * max(_GROWTH, _STEP / seconds))), True
            seconds = _step(config, model, pools, batch, device)
        if seconds < _STEP:
            seconds = max(0.0, _step(config, model, pools, batch, device, 1 + _STEPS) - seconds) / _STEPS
    return Step(seconds=seconds * whole / batch, batch_size=batch)


def _step(
    config: AuditConfig, model: Untrained, pools: Pools, batch: int, device: torch.device, steps: int = 1
) -> float:
    """Seconds of some steps with so many images a client, on a copy of the model."""
    edge, upper = deepcopy(model)
    images = _images(pools, config.protocol.spec.clients * batch * steps, device)
    now = clock(device)
    start = now()
    train(edge, upper, images, replace(config.training, batch_size=batch), epochs=1, seed=0)
    return now() - start


def smallest_batch(defense: Component) -> int:
    """The smallest batch that a defense accepts and that has batch statistics."""
    smallest: int = defense.spec.smallest_batch
    return max(2, smallest)


def attack_on_images(
    config: AuditConfig,
    attack: Component,
    who: str,
    model: Untrained,
    pools: Pools,
    device: torch.device,
    limit: float,
    least: int = 2,
) -> Timed:
    """Time of an attack on images, on one round of victims and a few rounds of auxiliary images.

    It is stopped after `limit` seconds, and the rest is extrapolated from its epochs. If it finishes none in that time,
    it starts over on smaller rounds.

    Args:
        config: of one protocol; its batch size is that of the rounds.
        attack: the one to time.
        who: the defense and the attack, as errors name them.
        model: with that defense; it stays untrained.
        pools: whose records the random ones resemble.
        device: of the model.
        limit: in seconds.
        least: the smallest batch on which the defense works.

    Raises:
        UsageError: if the attack fails on random images.
    """
    spec: ImageAttack = attack.spec
    protocol = config.protocol.spec
    if protocol.upper == "own":
        return Timed(reason="not applicable: standalone clients send nothing")
    batch = config.training.batch_size
    a_round = protocol.active * batch
    rounds = 1 if "clients" in spec.needs else ROUNDS  # a hijack trains clients in each of its steps
    images = _images(pools, rounds * protocol.clients * batch, device)
    if not {images.domain.name, "any"} & set(spec.mounting.domains):
        return Timed(reason=f"not applicable: {attack.name} does not reconstruct {images.domain.records}")
    watch = _Watch(limit, clock(device), _planned(spec), a_round)
    with _blamed(config, who):
        edge, upper = deepcopy(model)  # a hijack trains its clients
        try:
            view = black_box_query(edge)(images.x[:a_round], Generator(device).manual_seed(0)).view
            for held in (spec.needs, known_to(spec)):  # what it can do without costs time, and is given if it must be
                with suppress(*([NotApplicable] if held != known_to(spec) else [])):
                    views = [view] * spec.mounting.passes
                    observation = _observed(config, edge, upper, images, a_round, views, held)
                    with watch:
                        spec.run(observation, Generator().manual_seed(0), watch)
                    break
        except NotApplicable as error:
            return Timed(reason=f"not applicable: {error}")
    if watch.idle and batch > least:
        fewer = replace(config, training=replace(config.training, batch_size=max(least, batch // _SHRINKAGE)))
        return attack_on_images(fewer, attack, who, model, pools, device, limit, least)
    return watch.timed


def attack_on_labels(
    config: AuditConfig,
    attack: Component,
    who: str,
    model: Untrained,
    pools: Pools,
    device: torch.device,
    limit: float,
    least: int = 2,
) -> Timed:
    """Time of an attack on the labels of one client, on a few rounds of random records; see `attack_on_images`."""
    spec: LabelAttack = attack.spec
    records = _images(pools, ROUNDS * config.training.batch_size, device)
    if config.protocol.spec.upper == "own" or several(records.y):
        return Timed()
    watch = _Watch(limit, clock(device), _planned(spec), config.training.batch_size)
    with _blamed(config, who):
        edge, upper = deepcopy(model)
        lower = edge.client(0).eval()
        try:
            seen = observe(lower, upper, records.x, records.y, batch_size=config.training.batch_size, known=True)
            known = first_of_each(records.y, max(1, spec.mounting.labeled))
            observation = replace(
                seen,
                lower=lower,
                auxiliary=records.x,
                known_rows=known,
                known_labels=records.y[known],
                label_shares=torch.full((pools.classes,), 1 / pools.classes, device=device),
            )
            with watch:
                spec.run(observation, Generator().manual_seed(0), watch)
        except NotApplicable as error:
            return Timed(reason=f"not applicable: {error}")
    return watch.timed


def _observed(
    config: AuditConfig,
    edge: Clients,
    upper: nn.Module,
    images: Batch,
    a_round: int,
    views: list[View],
    held: frozenset[str],
) -> ImageObservation:
    """An adversary who holds these fields."""
    return ImageObservation(
        image_shape=cast(tuple[int, int, int], images.domain.shape),  # of images; else the attack reads these
        columns=images.domain.column_sizes if isinstance(images.domain, Tables) else (),
        batch_size=a_round,
        views=views,
        auxiliary=images.x if "auxiliary" in held else None,
        auxiliary_labels=images.y if "auxiliary_labels" in held and not several(images.y) else None,
        query=black_box_query(edge) if "query" in held else None,
        lower=shared_lower(edge) if "lower" in held and _one_segment(config) else None,
        upper=upper if "upper" in held else None,
        upper_history=[upper] if "upper_history" in held else None,
        clients=_clients(config, edge, images, a_round, len(views)) if "clients" in held else None,
        imitate=imitated(edge, images.domain) if "imitate" in held else None,
    )


def _one_segment(config: AuditConfig) -> bool:
    """Whether clients have the same lower segment after training, as they all have before it."""
    protocol = config.protocol.spec
    return protocol.active == 1 or protocol.average != "never" or config.training.freeze_lower


def _clients(config: AuditConfig, edge: Clients, images: Batch, a_round: int, passes: int) -> LiveClients:
    """Clients in training with one round of images, for an attack that takes it over."""
    own = images[: a_round * (config.protocol.spec.clients // config.protocol.spec.active)]
    shares = config.partition.spec.assign(own.y.cpu(), config.protocol.spec.clients, derive(0, "partition"))
    return LiveClients(edge, own, shares, config.training, own, 0, passes=passes)


def _images(pools: Pools, count: int, device: torch.device) -> Batch:
    """Random records of the dataset's domain, of all classes in turn."""
    one = pools.train.take(np.zeros(1, dtype=np.int64))
    domain = one.domain
    rows = torch.arange(count, device=device)
    x = domain.random(count, Generator().manual_seed(0)).to(device)
    y = rows % pools.classes
    return Batch(x=x, y=nn.functional.one_hot(y, pools.classes) if several(one.y) else y, ids=rows, domain=domain)


@contextmanager
def _fitting(config: AuditConfig, defense: Component) -> Iterator[None]:
    """Turn a shape that a defense cannot take into a sentence that names it and the model."""
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
    """A session that times an attack's progress, and ends it when its time is over.

    Args:
        limit: in seconds.
        now: the clock.
        planned: epochs that the attack takes, as far as its specification says.
        round_size: records of a round.

    Attributes:
        timed: what was seen.
        idle: whether the time was over before the first epoch was.
    """

    def __init__(self, limit: float, now: Callable[[], float], planned: int, round_size: int) -> None:
        self._limit, self._now, self._planned, self._round = limit, now, planned, round_size
        self._marks: list[tuple[float, int]] = []
        self._total, self.timed, self.idle = 0, Timed(), False

    def report(self, done: int, total: int, value: float) -> None:
        """Note the time; end the attack if it is over."""
        self._marks.append((self._now() - self._start, done))
        self._total = total
        if self._marks[-1][0] > self._limit:
            raise _Enough

    def __enter__(self) -> _Watch:
        """Start the clock; an attack that ends no epoch in its time is interrupted."""
        self._start, self._armed = self._now(), threading.current_thread() is threading.main_thread()
        if self._armed and hasattr(signal, "setitimer"):
            self._before = signal.signal(signal.SIGPROF, _ring)
            signal.setitimer(signal.ITIMER_PROF, 2 * self._limit)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Stop the clock, and swallow the end that the watch brought about."""
        if self._armed and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, self._before)
        elapsed = self._now() - self._start
        if kind is None:
            seen = len(self._marks)
            more = max(1.0, self._planned / seen) if seen else 1.0  # a doubling gains nothing on random images
            self.timed = Timed(seconds=elapsed * more, epochs=round(seen * more), round_size=self._round)
        elif kind is _Enough:
            self.timed = self._extrapolated(elapsed)
        return kind is _Enough

    def _extrapolated(self, elapsed: float) -> Timed:
        """The whole time, from the epochs that were seen."""
        self.idle = not self._marks
        if self.idle:
            why = "at least; its first epoch takes longer than the estimate may"
            return Timed(seconds=elapsed, round_size=self._round, reason=why)
        (first, one), (last, done) = self._marks[0], self._marks[-1]
        an_epoch = (last - first) / (done - one) if done > one else first / max(1, one)
        total = max(self._planned, self._total)
        return Timed(seconds=first + an_epoch * (total - one), epochs=total, round_size=self._round)


def _planned(attack: object) -> int:
    """Epochs of an attack that says how many it takes; of doublings, which end when one gains nothing, about 3/4."""
    epochs, doublings = getattr(attack, "epochs", None), getattr(attack, "doublings", None)
    if not isinstance(epochs, int):
        return 0
    if isinstance(doublings, int) and doublings > 0 and epochs >= JUDGED_FROM:
        return (epochs << doublings) * 3 // 4
    return epochs


def _ring(number: int, frame: object) -> None:
    """End an overlong probe."""
    raise _Enough
