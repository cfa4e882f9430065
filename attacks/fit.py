"""The training loop of attacks: it resumes after a kill, and returns to the last good state if it diverges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from math import inf, isfinite
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from privkit.attacks.base import AttackDiverged, NoSession, Session
from privkit.torch_utils.flushed import flushed

JUDGED_FROM = 4  # least number of epochs whose two halves are compared to judge convergence


class Training(Protocol):
    """An object that `fit` trains: networks or images, with their optimizers."""

    def epoch(self, number: int) -> float:
        """Train one epoch and return the objective after it (on held-out data if there are any); lower is better.

        Random numbers depend only on the 0-based epoch or the saved state. The method may raise `AttackDiverged`.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state on which the next epoch depends."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state, from which training continues."""

    def again(self, times: int) -> None:
        """Begin a new learning-rate cycle, `times` as long as the first; do nothing for a constant rate."""


TOLERATED_GAIN = 0.05
"""A training has converged if its last doubling lowered the held-out error by no more than this share."""


def gained(before: float, after: float) -> bool:
    """Whether doubling the training lowered an objective ≥ 0, from `before` to `after`, by more than 5 %."""
    return after < (1 - TOLERATED_GAIN) * before


def fit(
    training: Training,
    epochs: int,
    session: Session | None = None,
    *,
    objective: str = "the objective",
    keep_best: bool = False,
) -> tuple[float, ...]:
    """Train epoch by epoch from the session's saved state, and save after each epoch. Returns each epoch's objective.

    After `epochs` epochs (including those done before a kill), their number is doubled as long as `Session.goes_on` is
    true. Each doubling is a new cycle of the learning rate; a cycle that ends with a larger objective is undone.

    With `keep_best`, the training returns to the epoch with the smallest objective if this objective is more than 5 %
    below the last one, as on held-out data after overfitting. If an epoch raises `AttackDiverged` or returns NaN or
    infinity, the training returns to its last good state, and the session keeps this state.
    """
    session = session or NoSession()
    saved, planned = session.load(), epochs
    while saved and epochs and len(saved["curve"]) > planned:
        planned *= 2
    if planned > epochs:
        training.again(planned // 2 // epochs)
    good = _begun(training, saved)
    while True:
        good = _trained(training, planned, good, session, objective, keep_best)
        curve = tuple(good["curve"])
        if "start" in good and curve[-1] > good["best"]:
            good = {**good, "training": good["start"]}
            training.load_state_dict(deepcopy(good["start"]))
        if not epochs or not session.goes_on(epochs, curve):
            if "lowest" in good and gained(curve[-1], min(curve)):
                training.load_state_dict(deepcopy(good["lowest"]))
            return curve
        good = {**good, "start": good["training"], "best": min(good.get("best", inf), curve[-1])}
        training.again(planned // epochs)
        planned *= 2


def _begun(training: Training, saved: dict[str, Any] | None) -> dict[str, Any]:
    if saved is None:
        return {"curve": [], "training": deepcopy(training.state_dict())}
    training.load_state_dict(deepcopy(saved["training"]))
    return saved


def _trained(
    training: Training,
    epochs: int,
    good: dict[str, Any],
    session: Session,
    objective: str,
    keep_best: bool = False,
) -> dict[str, Any]:
    for epoch in range(len(good["curve"]), epochs):
        try:
            with flushed():
                value = training.epoch(epoch)
            if not isfinite(value):
                raise AttackDiverged(f"{objective} is {value} after epoch {epoch + 1}")
        except AttackDiverged:
            training.load_state_dict(deepcopy(good["training"]))
            session.keep(good)
            raise
        good = {**good, "curve": [*good["curve"], value], "training": deepcopy(training.state_dict())}
        if keep_best and value == min(good["curve"]):
            good["lowest"] = good["training"]
        session.save(good)
        session.report(epoch + 1, epochs, value)
    return good


def fit_doubling(
    cycle: Callable[[int, int], Training],
    epochs: int,
    session: Session | None = None,
    *,
    doublings: int | None = 0,
    objective: str = "the objective",
) -> tuple[tuple[float, ...], bool | None]:
    """Train for half of the epochs, then the other half. Return the objective after each epoch, and whether the last
    doubling lowered the objective by at most 5 % (None for one cycle).

    Each half is a cycle of the learning rate, so the objectives at the ends of cycles are comparable. A doubling that
    ends with a larger objective is undone. `cycle` maps (epochs before, epochs of the cycle) to a training of the same
    network. Up to `doublings` further doublings follow while each lowers the objective by more than 5 %, and then more
    as long as `Session.goes_on` is true. With `doublings=None` or less than 4 epochs, one cycle of all epochs
    replaces the two halves and the `doublings`.
    """
    session = session or NoSession()
    state: dict[str, Any] = session.load() or {}
    planned = [epochs]
    if doublings is not None and epochs >= JUDGED_FROM:
        planned = [epochs // 2, epochs - epochs // 2, *(epochs << doubling for doubling in range(doublings))]
    curve: tuple[float, ...] = ()
    converged: bool | None = None
    best, number, asked = inf, 0, 0
    while True:
        if asked or converged or number == len(planned):
            asked = asked or len(curve)
            if not asked or not session.goes_on(asked, curve):
                return curve, converged
        length = len(curve) if asked else planned[number]
        training, before = cycle(len(curve), length), len(curve)
        start = deepcopy(training.state_dict())
        stage = Stage(session, state, str(number), before, before + length)
        curve += tuple(_trained(training, length, _begun(training, stage.load()), stage, objective)["curve"])
        if number:
            converged = not gained(best, curve[-1])
            if curve[-1] > best:
                training.load_state_dict(start)
        best, number = min((best, *curve[-1:])), number + 1


class Stage:
    """The session of one stage of an attack, whose state lies under the key `slot` in the attack's state.

    It reports the whole attack's progress: the stage begins after `before` of `total` epochs. In the last stage,
    `total` may be None.
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
        self._session.report(self._before + done, max(self._total or 0, self._before + total), value)

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        return self._session.goes_on(epochs, curve)


class Resumable(ABC):
    """A training whose state has parts: objects with a `state_dict`, generators, tensors, and dicts or lists of these.

    Plain numbers are saved but not loaded, since a resumed training draws the same numbers again.
    """

    @abstractmethod
    def stateful(self) -> dict[str, Any]:
        """The parts that hold the state, by key."""

    def again(self, times: int) -> None:  # noqa: B027
        """Do nothing, since the learning rate never changes."""

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
    """A network, trained in place, with an optimizer and a learning-rate schedule that advances at each step.

    `cycle` maps a number of steps to the schedule of one cycle; the first cycle has `steps` steps.
    """

    def __init__(
        self, network: nn.Module, optimizer: Optimizer, cycle: Callable[[int], LRScheduler], steps: int
    ) -> None:
        self.network, self._optimizer, self._first = network, optimizer, (cycle, steps)
        self._schedule = cycle(steps)

    def again(self, times: int) -> None:
        cycle, steps = self._first
        self._schedule = cycle(times * steps)

    def step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._schedule.step()

    def stateful(self) -> dict[str, Any]:
        return {"network": self.network, "optimizer": self._optimizer, "schedule": self._schedule}
