"""The clients of a control experiment: their lower segment outputs the record itself, and the defense follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from privkit.attacks.base import QueryResult, View

_STEPS = 40  # steps of conjugate gradients; selections, permutations and means of few tokens need less than ten
_SOLVED = 1e-4  # share of the first residual at which the steps stop


class ControlClients(Protocol):
    """The clients in a control experiment: their lower segment outputs the record itself, and their defense acts on it.

    `lower` is their lower segment, for an adversary who knows it; `block` and `imitate` are as in `ImageObservation`.
    """

    @property
    def lower(self) -> nn.Module | None: ...

    @property
    def block(self) -> nn.Module | None: ...

    @property
    def imitate(self) -> Callable[[Tensor, Generator], Tensor] | None: ...

    def send(self, records: Tensor, labels: Tensor, passes: int, seed: int) -> tuple[list[View], Tensor]:
        """Send the records of whole rounds [N, ...] `passes` times, with the defense's random numbers from `seed`.

        Returns the views (all rounds of the first pass come first), and for each of N released rows of the first pass
        the indices of the k records that are mixed in it, int64 [N·k], −1 for an empty place.
        """

    def query(self, images: Tensor, draws: Generator) -> QueryResult:
        """Send one round of the adversary's records, and return the answer; see `privkit.attacks.base.Query`."""

    def contained(self, records: Tensor, apart: Tensor, passes: int, seed: int) -> Tensor:
        """The component of the errors that the releases can reveal; see `projected`. `apart` holds the errors: guesses
        minus records, [N, ...]."""


@dataclass(frozen=True, kw_only=True)
class Defended:
    """The defense in the control experiment in which an attack must recover records sent through this defense."""

    name: str
    undone: frozenset[str] = frozenset()  # effects of the defense that an attack must undo; see `Mounting.undoes`
    # function: shape of a record -> clients (it can raise `NotApplicable`); None if `why_not` is given
    clients: Callable[[tuple[int, ...]], ControlClients] | None = None
    why_not: str = ""  # the reason why no control experiment can use the defense
    own: bool = False  # whether a part of the defense is the user's own code, with output of unknown scale


@dataclass(frozen=True)
class Undefended:
    """Clients without a defense; satisfies `ControlClients`."""

    lower: nn.Module
    batch_size: int
    block: None = None
    imitate: None = None

    def send(self, records: Tensor, labels: Tensor, passes: int, seed: int) -> tuple[list[View], Tensor]:
        rounds = list(zip(records.split(self.batch_size), labels.split(self.batch_size), strict=True)) * passes
        views = [View(round=i, smashed=self.lower(part), labels=sent) for i, (part, sent) in enumerate(rounds)]
        return views, torch.arange(len(records), device=records.device)

    def query(self, images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult.row_by_row(View(round=0, smashed=self.lower(images)))

    def contained(self, records: Tensor, apart: Tensor, passes: int, seed: int) -> Tensor:
        return apart


def projected(release: Callable[[Tensor], Tensor], records: Tensor, direction: Tensor) -> Tensor:
    """Project a change of the records onto the directions that change the release (to first order).

    These directions are the row space of the release's derivative at `records` [N, ...]. With all random numbers fixed,
    the rest of the change leaves every number of the release unchanged. So guesses are judged by their projected
    errors.

    Source: least squares of smallest norm by conjugate gradients (Hestenes and Stiefel 1952).
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        at = records.detach().clone().requires_grad_()
        out = release(at)
        if not out.requires_grad:  # the release does not depend on the records
            return torch.zeros_like(direction)
        dual = torch.zeros_like(out, requires_grad=True)
        (pulled,) = torch.autograd.grad(out, at, dual, create_graph=True)
    if not pulled.requires_grad:  # as behind a stage that rounds: the derivative is zero
        return torch.zeros_like(direction)

    def push(along: Tensor) -> Tensor:
        (change,) = torch.autograd.grad(pulled, dual, along, retain_graph=True)
        return change

    def pull(back: Tensor) -> Tensor:
        (change,) = torch.autograd.grad(out, at, back, retain_graph=True)
        return change

    found = torch.zeros_like(direction)
    residual = push(direction)
    gradient = pull(residual)
    step, size = gradient, gradient.square().sum()
    first = size
    for _ in range(_STEPS):
        if size <= _SOLVED**2 * first or size == 0:
            break
        change = push(step)
        length = size / change.square().sum().clamp_min(torch.finfo(size.dtype).tiny)
        found, residual = found + length * step, residual - length * change
        gradient = pull(residual)
        before, size = size, gradient.square().sum()
        step = gradient + size / before * step
    return found
