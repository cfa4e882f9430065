"""Steps the optimizers and learning-rate schedules of both sides."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from privkit.training.clients import Clients
from privkit.training.distributed import average_gradients
from privkit.training.spec import TrainingSpec, optimizer_of, schedule_of


class Optimizers:
    """The optimizers and learning-rate schedules of the clients and the server, and the weights that they update."""

    def __init__(self, clients: Clients, upper: nn.Module, spec: TrainingSpec, epochs: int, steps: int) -> None:
        self._weights = [[p for p in side.parameters() if p.requires_grad] for side in (clients, upper)]
        specs = (spec.lower, spec.upper)
        made = [[optimizer_of(each, own)] if own else [] for each, own in zip(specs, self._weights, strict=True)]
        self._server: list[Any] = made[1]
        self._all: list[Any] = made[0] + made[1]
        alone = clients.protocol.updates == "message"  # the server has stepped already
        self._waiting: list[Any] = made[0] if alone else self._all
        self._schedules: list[Any] = [
            schedule_of(each, optimizer, epochs, steps)
            for each, own in zip(specs, made, strict=True)
            for optimizer in own
        ]

    def clear(self) -> None:
        """Drop all gradients."""
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    def step_server(self) -> None:
        """Update only the server's weights, after one message."""
        average_gradients(self._weights[1])
        for optimizer in self._server:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update all weights, except those that `step_server` updated after each message."""
        average_gradients(p for side in self._weights for p in side)
        for optimizer in self._waiting:
            optimizer.step()

    def next_rate(self) -> None:
        """Advance the schedules, which sets the learning rates for the next step."""
        for schedule in self._schedules:
            schedule.step()

    def state(self) -> list[dict[str, Any]]:
        """The state of optimizers and schedules, with learning rates as plain numbers."""
        states = [part.state_dict() for part in (*self._all, *self._schedules)]
        for state in states[: len(self._all)]:
            state["param_groups"] = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
        return states

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """Restore a state that `state` returned."""
        for part, own in zip((*self._all, *self._schedules), state, strict=True):
            part.load_state_dict(own)

    def keep_rates_on(self, device: torch.device) -> None:
        """Store learning rates as tensors on the GPU, so that a captured step reads the current rate at each replay."""
        for group in (group for optimizer in self._all for group in optimizer.param_groups):
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
            if "capturable" in group:
                group["capturable"] = True
