"""The training loop of every attack that trains: resumed after a kill, and stopped at the last good state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from privkit.attacks.base import AttackDiverged, NoSession, Session

JUDGED_FROM = 4
"""Epochs below which half of a training says nothing."""


class Training(Protocol):
    """What `fit` trains: networks or images, with their optimizers."""

    def epoch(self, number: int) -> float:
        """Train one epoch, whose randomness follows from its 0-based number or from the state.

        Returns the objective after it, on held-out data where the attack has some; lower is better. Raises
        `AttackDiverged` if a part of the training that the objective does not show is not finite.
        """

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


def fit(
    training: Training, epochs: int, session: Session | None = None, *, objective: str = "the objective"
) -> tuple[float, ...]:
    """Train epoch by epoch, from where the session was left, and save after each epoch.

    Args:
        training: changed in place.
        epochs: ≥ 0, those before a kill included.
        session: where to save and to report; None keeps nothing.
        objective: what an epoch returns, with the attack's name, for the sentence on a divergence.

    Returns:
        The objective after each epoch.

    Raises:
        AttackDiverged: if an epoch raises it or returns NaN or infinity. The training is put back to its last good
            state (the start, where no epoch went well), and the session keeps that state.

    >>> class Halving:
    ...     value = 1.0
    ...     def epoch(self, number): self.value /= 2; return self.value
    ...     def state_dict(self): return {"value": self.value}
    ...     def load_state_dict(self, state): self.value = state["value"]
    >>> fit(Halving(), 3)
    (0.5, 0.25, 0.125)
    """
    session = session or NoSession()
    saved = session.load()
    if saved is None:
        good: dict[str, Any] = {"curve": [], "training": deepcopy(training.state_dict())}
    else:
        good = saved
        training.load_state_dict(deepcopy(good["training"]))
    for epoch in range(len(good["curve"]), epochs):
        try:
            value = training.epoch(epoch)
            if not isfinite(value):
                raise AttackDiverged(f"{objective} is {value} after epoch {epoch + 1}")
        except AttackDiverged:
            training.load_state_dict(deepcopy(good["training"]))
            session.keep(good)
            raise
        good = {"curve": [*good["curve"], value], "training": deepcopy(training.state_dict())}
        session.save(good)
        session.report(epoch + 1, epochs, value)
    return tuple(good["curve"])


TOLERATED_GAIN = 0.05
"""A training has converged if its last doubling lowered the held-out error by no more than this share."""


def fit_doubling(
    cycle: Callable[[int, int], Training],
    epochs: int,
    session: Session | None = None,
    *,
    doublings: int | None = 0,
    objective: str = "the objective",
) -> tuple[tuple[float, ...], bool | None]:
    """Train for half of the epochs, then double the training, and report whether this still improved the objective.

    Each doubling is a cycle of the learning rate, so that the errors before and after it are comparable. A doubling
    that ends with a larger error is taken back.

    Args:
        cycle: from the number of epochs before a cycle and its own number to its training. All cycles train the same
            network, each from where the one before left it.
        epochs: ≥ 0, of the first doubling's end; with fewer than 4 there is one cycle, and nothing is judged.
        session: where to save and to report; None keeps nothing.
        doublings: of `epochs`, at most, for as long as each gains more than `TOLERATED_GAIN`; None trains in one cycle
            and judges nothing.
        objective: as in `fit`, like what is raised.

    Returns:
        The objective after each epoch, and whether the last doubling gained no more than `TOLERATED_GAIN`; None where
        nothing was doubled.
    """
    session = session or NoSession()
    state: dict[str, Any] = session.load() or {}
    planned = [epochs]
    if doublings is not None and epochs >= JUDGED_FROM:
        planned = [epochs // 2, epochs - epochs // 2, *(epochs << doubling for doubling in range(doublings))]
    curve: tuple[float, ...] = ()
    converged: bool | None = None
    for number, length in enumerate(planned):
        training, before = cycle(len(curve), length), curve
        start = deepcopy(training.state_dict())
        stage = Stage(session, state, str(number), len(before), len(before) + length)
        curve += fit(training, length, stage, objective=objective)
        if not number:
            continue
        converged = curve[-1] >= (1 - TOLERATED_GAIN) * before[-1]
        if curve[-1] > before[-1]:
            training.load_state_dict(start)
        if converged:
            break
    return curve, converged


class Stage:
    """The session of one stage of an attack: the slot `slot` of the whole state, and a span of the whole progress.

    The stage's epochs follow `before` others of `total` in all; with `total` of None its own number is the attack's.

    >>> state = {"first": {"curve": [0.5]}}
    >>> Stage(NoSession(), state, "first").load()
    {'curve': [0.5]}
    """

    def __init__(
        self, session: Session, state: dict[str, Any], slot: str, before: int = 0, total: int | None = None
    ) -> None:
        self._session, self._state, self._slot, self._before, self._total = session, state, slot, before, total

    def load(self) -> dict[str, Any] | None:
        own: dict[str, Any] | None = self._state.get(self._slot)
        return own

    def save(self, state: dict[str, Any]) -> None:
        self._state[self._slot] = state
        self._session.save(self._state)

    def keep(self, state: dict[str, Any]) -> None:
        self._state[self._slot] = state
        self._session.keep(self._state)

    def report(self, done: int, total: int, value: float) -> None:
        self._session.report(self._before + done, self._total or total, value)


class Resumable(ABC):
    """A training whose state is that of its parts: whatever has a `state_dict`, generators, tensors, and dicts of them.

    Numbers among them are saved and not loaded, since they are drawn again in the same way.
    """

    @abstractmethod
    def stateful(self) -> dict[str, Any]:
        """Key -> part."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = _state_of(self.stateful())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            _load(self.stateful(), state)


def _state_of(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _state_of(one) for key, one in part.items()}
    if isinstance(part, list):
        return [_state_of(one) for one in part]
    if isinstance(part, Generator):
        return part.get_state()
    if isinstance(part, Tensor):
        return part.detach()
    return part.state_dict() if hasattr(part, "state_dict") else part


def _load(part: Any, state: Any) -> None:
    if isinstance(part, dict | list):
        for key in part if isinstance(part, dict) else range(len(part)):
            _load(part[key], state[key])
    elif isinstance(part, Generator):
        part.set_state(state)
    elif isinstance(part, Tensor):
        part.copy_(state)
    elif hasattr(part, "load_state_dict"):
        part.load_state_dict(state)


class Learner(Resumable):
    """A network, trained in place, with the optimizer of its parameters and a schedule that moves at each step."""

    def __init__(self, network: nn.Module, optimizer: Optimizer, schedule: LRScheduler) -> None:
        self.network, self._optimizer, self._schedule = network, optimizer, schedule

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._schedule.step()

    def stateful(self) -> dict[str, Any]:
        return {"network": self.network, "optimizer": self._optimizer, "schedule": self._schedule}
