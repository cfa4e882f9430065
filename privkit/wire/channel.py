"""The channel between clients and adversary: only a `View` passes through it, and queries are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, Query, QueryResult, Session, View
from privkit.attacks.query_rules import QueryRules
from privkit.defenses.base import Receipt
from privkit.defenses.split_parts import held_parts
from privkit.domains.base import Batch
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training.clients import ClientForward, Clients
from privkit.training.no_labels import drawn_labels
from privkit.training.stacked import Stacked

# number of rounds of copies that are also computed in full; more than one, since black images can hide random draws
_TRIALS = 4


@dataclass(frozen=True, kw_only=True)
class RecordedRounds:
    """Recorded rounds: what the adversary sees, and what only privkit's own accounting and scoring may use."""

    views: list[View]  # for the adversary, one for each round, pass after pass
    receipts: list[Receipt]  # for the accountant, one for each view
    # int64 [P·N·k], for scoring: indices of the up to k attacked records in each of N released rows of P passes, filled
    # with −1. An attack's guesses are compared with the first pass.
    members: Tensor


@torch.no_grad()
def record_rounds(edge: Clients, victims: Batch, *, batch_size: int, seed: int, passes: int = 1) -> RecordedRounds:
    """Send the attacked images through the clients after training, and record what the server sees.

    Messages (batches of `batch_size` images per client) are as large as in training. In each round, the first images
    belong to client 0, the next to client 1, and so on. In each of P passes the same images are sent in the same order,
    with fresh random numbers.
    """
    edge.eval()
    device, clients = victims.x.device, edge.lowers.copies
    draws = Generator(device).manual_seed(derive(seed, "record"))
    views, receipts, members = [], [], []
    with seeded(device, derive(seed, "record", "module")):
        rounds = torch.arange(len(victims), device=device).view(-1, clients, batch_size)
        for number, rows in enumerate(rounds.repeat(passes, 1, 1)):
            sent = edge.release(victims.x[rows], victims.y[rows], draws, number)
            answer = answer_of(sent, number, edge)
            views.append(answer.view)
            receipts.append(sent.receipt)
            first = number % len(rounds) * clients * batch_size
            members.append(torch.where(answer.members >= 0, answer.members + first, -1).flatten())
    return RecordedRounds(views=views, receipts=receipts, members=torch.cat(members))


def black_box_query(edge: Clients) -> Query:
    """Make the adversary's query: a function that sends the adversary's own images, with random labels, through the
    clients, and returns the release."""
    lowers = CopiesOnce(edge.lowers)

    @torch.no_grad()
    def query(images: Tensor, draws: Generator) -> QueryResult:
        edge.eval()
        clients = edge.lowers.copies
        inputs = images.unflatten(0, (clients, -1))
        labels = drawn_labels(inputs.shape[:2], edge.classes, draws)
        answer = answer_of(edge.release(inputs, labels, draws, lowers=lowers), 0, edge)
        return replace(answer, view=replace(answer.view, labels=None))

    return query


def seen_alone(edge: Clients, size: int) -> Callable[[Tensor], Tensor]:
    """A function that computes the release of each image alone, neither mixed nor masked, `size` images at a time."""

    @torch.no_grad()
    def look(images: Tensor) -> Tensor:
        rounds = images.unflatten(0, (-1, edge.lowers.copies, size // edge.lowers.copies))
        seen = torch.cat([edge.defense.public_transform(edge.lowers(part).flatten(0, 1)).float() for part in rounds])
        return held_parts(seen, edge.defense, edge.held)

    return look


def shared_lower(edge: Clients) -> nn.Module | None:
    """The lower segment, frozen or averaged, that a white-box adversary knows; None if the clients' segments differ."""
    weights = [*edge.lowers.parameters(), *edge.lowers.buffers()]
    same = all(bool((stack == stack[:1]).all()) for stack in weights)
    if not same:
        return None
    lower = edge.client(0).eval().requires_grad_(False)
    return lower if holds_all(edge) else nn.Sequential(lower, HeldParts(edge))


def public_block(edge: Clients) -> nn.Module | None:
    """The frozen block that the clients run after the defense; None without one, or if the adversary holds only parts
    of the release."""
    return edge.block if holds_all(edge) else None


def holds_all(edge: Clients) -> bool:
    """Whether the adversary holds the whole release, which a defense may split into parts for several storages."""
    return not edge.held or set(edge.defense.storages) <= set(edge.held)


class HeldParts(nn.Module):
    """A module that maps a release to the parts that the adversary holds."""

    def __init__(self, edge: Clients) -> None:
        super().__init__()
        self.defense, self.held = edge.defense, edge.held

    def forward(self, rows: Tensor) -> Tensor:
        """Map released records [N, ...] to their held parts [N, ...]; see `held_parts`."""
        return held_parts(rows, self.defense, self.held)


def moved_view(view: View, move: Callable[[Tensor], Tensor]) -> View:
    """A copy of the view in which `move` was applied to each tensor, for example to move it to another device."""
    tensors: dict[str, Any] = {n: move(value) for n, value in vars(view).items() if isinstance(value, Tensor)}
    return replace(view, **tensors)


def answer_of(sent: ClientForward, number: int, edge: Clients) -> QueryResult:
    """Flatten M messages of B releases, [M, B, ...], into one batch [M·B, ...], as an adversary gets them. Entry m·B +
    b (from 0) is the release that contains image b of every client in mixing group m.

    Defense stages of the server are left out. The defense determines whether mixing weights are public.
    """
    sent = sent.seen()
    smashed, groups, weights = sent.release.smashed, sent.groups, sent.release.weights
    m, b = smashed.shape[:2]
    k = groups.shape[1]
    within = torch.arange(b, device=groups.device).view(1, b, 1)
    seats = groups.unsqueeze(1)
    members = torch.where(seats >= 0, seats * b + within, -1).view(m * b, k)
    shown = weights if edge.defense.published else None
    known = edge.defense.published or k == 1
    view = View(
        round=number,
        smashed=held_parts(smashed.flatten(0, 1), edge.defense, edge.held).float(),
        mixed=k,
        weights=None if shown is None else shown.unsqueeze(1).expand(-1, b, -1, -1).flatten(0, 1).float(),
        clients=seats.expand(-1, b, -1).flatten(0, 1) if known else None,
        messages=m,
        labels=None if edge.protocol.labels == "kept" else sent.release.labels.flatten(0, 1),
        whole=smashed.ndim != 4 or smashed.shape[2] >= sent.smashed.shape[2],
        parts=tuple(name for name in edge.defense.storages if not edge.held or name in edge.held),
    )
    return QueryResult(view=view, members=members)


class CopiesOnce:
    """Lower segments in evaluation mode that compute a record only once if a client's batch consists of copies of it.

    The result would differ if a user's segment draws random numbers or mixes records of its batch, or if the machine
    rounds small batches differently. So the first rounds of copies are also computed in full; if a bit differs, all
    later rounds are computed in full, too. The defense always gets the whole batch.
    """

    def __init__(self, lowers: Stacked) -> None:
        self._lowers = lowers
        # number of further rounds to compute in full, too; None if all rounds are computed in full
        self.trials = _TRIALS if type(lowers) is Stacked else None

    def __call__(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """Evaluate the segments as `Stacked.forward` does; the output is one tensor."""
        once = inputs[:, :1]
        if self.trials is None or rows is not None or not torch.equal(inputs, once.expand_as(inputs)):
            whole: Tensor = self._lowers(inputs, rows)
            return whole
        if self.trials == 0:
            return self._copied(once, inputs.shape[1])
        whole = self._lowers(inputs)
        with seeded(inputs.device, 0):
            same = torch.equal(whole, self._copied(once, inputs.shape[1]))
        self.trials = self.trials - 1 if same else None
        return whole

    def _copied(self, once: Tensor, count: int) -> Tensor:
        """Compute the output for one record of each client, [n, 1, ...], and repeat it `count` times, [n, B, ...]."""
        given: Tensor = self._lowers(once)
        return given.repeat_interleave(count, 1)


class Queries:
    """A `privkit.attacks.base.Query` that counts its `rounds` and refuses queries that the threat model forbids."""

    def __init__(self, ask: Query, rules: QueryRules) -> None:
        self._ask, self._rules, self.rounds = ask, rules, 0

    def __call__(self, images: Tensor, draws: Generator) -> QueryResult:
        """Send one round of images and return its release. Raises `NotApplicable` if the threat model allows no further
        round, or if it forbids copies and two images are equal."""
        if self._rules.rounds is not None and self.rounds >= self._rules.rounds:
            raise NotApplicable(
                f"the threat model allows {self._rules.rounds:,} rounds of own images, and the attack asks for more: "
                "allow more with --queries rounds=…, or give the attack fewer epochs"
            )
        if not self._rules.copies and len(images.unique(dim=0)) < len(images):
            raise NotApplicable(
                "the threat model forbids copies of one image in a round, and the attack sends some: allow them with "
                "--queries copies=true, or choose an attack that sends none"
            )
        self.rounds += 1
        with seeded(images.device, derive(self.rounds, "query", "module")):  # lower segments may draw, too
            return self._ask(images, draws)


class CountingSession(Session):
    """A session that also saves the number of query rounds, so that a resumed attack continues the count."""

    def __init__(self, session: Session, queries: Queries) -> None:
        self._session, self._queries = session, queries

    def load(self) -> dict[str, Any] | None:
        if (saved := self._session.load()) is None:
            return None
        self._queries.rounds = saved["queries"]
        state: dict[str, Any] = saved["attack"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        self._session.save({"queries": self._queries.rounds, "attack": state})

    def keep(self, state: dict[str, Any]) -> None:
        self._session.keep({"queries": self._queries.rounds, "attack": state})

    def report(self, done: int, total: int, value: float) -> None:
        self._session.report(done, total, value)

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        return self._session.goes_on(epochs, curve)
