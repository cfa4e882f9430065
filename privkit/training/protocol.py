"""Protocols of split learning, which say how clients and server train together, as one frozen specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from privkit.constraints import Checked, Count
from privkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SplitProtocol(Checked):
    """Describes who trains and sends what: clients, lower segments, server updates and returned gradients.

    A lower segment is the network up to the cut, an upper segment the rest. In a mixing group, a defense mixes the
    records of k clients into one message.

    Attributes:
        clients: number n ≥ 1 of clients.
        lower: "own" (each client keeps a lower segment) or "handed_on" (one lower segment goes from client to client,
            and they take turns: sequential SL).
        upper: "shared" (the server's) or "own" (each client trains a whole network alone: standalone).
        servers: number S ≥ 1 of servers, a divisor of n, each with its own upper segment for n/S neighboring clients.
        average: when lower segments are averaged, weighted by each client's share of the data: "never", after every
            "round" or "epoch" (FedAvg).
        gradient: the cut-layer gradient that a client gets: "unicast" (the client's own part, masked and scaled),
            "broadcast" (the gradient of the client's whole mixing group) or "average" (the mean over all messages,
            SplitAvg).
        updates: the server's steps per round: "round" for one step on all messages (batches of smashed data, possibly
            mixed from several clients); "message" for one step per client (CutMixSL's ×n variant). Each of these n
            steps uses a newly mixed message of the client's group, and only this client gets the gradient.
        grouping: how mixing groups are formed: "random" (drawn every round), "round_robin" (every client meets every
            other) or "fixed" (clients with neighboring numbers stay together, in fixed order).
        labels: "sent" (to the server, who computes the loss) or "kept" (a U-shape: each client keeps its labels and the
            network's last layer, receives features and sends their gradient back).

    Source: Gupta and Raskar 2018 (SL); Thapa et al. 2020 (SplitFed); Pal et al. 2021 (SplitAvg); CutMixSL §3.3 and
    appendix C; DP-CutMixSL Eq. 3, 10 and 11; Gupta and Raskar 2018, §3.4 (U-shape).
    """

    clients: Count = 1
    lower: Literal["own", "handed_on"] = "own"
    upper: Literal["shared", "own"] = "shared"
    servers: Count = 1
    average: Literal["never", "round", "epoch"] = "never"
    gradient: Literal["unicast", "broadcast", "average"] = "unicast"
    updates: Literal["round", "message"] = "round"
    grouping: Literal["random", "round_robin", "fixed"] = "random"
    labels: Literal["sent", "kept"] = "sent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower == "handed_on" and (self.upper, self.average, self.gradient) != ("shared", "never", "unicast"):
            raise ValueError(
                "lower=handed_on has one lower segment and one message a round: use upper=shared, average=never and "
                "gradient=unicast"
            )
        if self.upper == "own" and (self.updates, self.gradient, self.average) != ("round", "unicast", "never"):
            raise ValueError("upper=own trains each client alone: use average=never, gradient=unicast, updates=round")
        self._check_servers()
        others = self.upper, self.servers, self.gradient, self.updates
        if self.labels == "kept" and others != ("shared", 1, "unicast", "round"):
            raise ValueError(
                "labels=kept is a U-shape with one server that answers each client: use upper=shared, servers=1, "
                "gradient=unicast and updates=round"
            )

    def _check_servers(self) -> None:
        """Check that several servers divide the clients evenly, and that no server sees another's messages."""
        if self.clients % self.servers:
            raise ValueError(f"servers must divide clients={self.clients}, got {self.servers}")
        if self.servers > 1 and (self.lower, self.upper, self.updates) != ("own", "shared", "round"):
            raise ValueError(f"servers={self.servers} needs lower=own, upper=shared and updates=round")
        if self.servers > 1 and self.gradient == "average":
            raise ValueError(f"gradient=average is over the messages of one server; use servers=1, got {self.servers}")

    @property
    def uppers(self) -> int:
        """Count the upper segments that are trained separately: one for each server or standalone client."""
        return self.clients if self.upper == "own" else self.servers

    @property
    def quick_attacks(self) -> tuple[str, ...]:
        """Name the attacks that `--attack auto` adds for this protocol: label inference if clients keep the labels."""
        return ("release_clustering",) if self.labels == "kept" else ()

    @property
    def stacked(self) -> bool:
        """Whether upper segments are copies in a `Stacked` module: for several servers, or clients that train alone."""
        return self.upper == "own" or self.servers > 1

    @property
    def active(self) -> int:
        """Count the clients that send in one round; one if they take turns."""
        return 1 if self.lower == "handed_on" else self.clients

    def check_group(self, name: str, group: int, drawn: str = "every_round") -> None:
        """Raise `UsageError` unless this protocol allows the defense `name` to mix groups of `group` clients.

        `drawn` says when the defense draws its mixing ratios: "every_round" or "once".
        """
        if group == 1:
            return
        if self.upper == "own":
            raise UsageError(f"{name} mixes groups of {group} clients, but standalone clients send nothing; use psl")
        if self.labels == "kept":
            raise UsageError(
                f"{name} mixes groups of {group} clients, and the loss of a mixture needs all their labels, which "
                "labels=kept leaves to each client; use labels=sent"
            )
        if self.servers > 1:
            raise UsageError(f"{name} mixes groups of {group} clients, which one server must see; use servers=1")
        if group > self.active:
            ways = (
                f"group=2 to group={self.active}" if self.active > 1 else "a protocol of more, such as psl:clients=10"
            )
            raise UsageError(
                f"{name} mixes groups of {group} clients, but only {self.active} of {self.clients} send in a round; "
                f"use {ways}"
            )
        if drawn == "once" and (self.grouping, self.updates) != ("fixed", "round"):
            raise UsageError(
                f"{name} draws ratios once, so that every client keeps its own and groups must stay together; use "
                f"grouping=fixed,updates=round, or drawn=every_round, got grouping={self.grouping},"
                f"updates={self.updates}"
            )

    def unmatched(self, group: int) -> int:
        """Count the clients in the last, smaller mixing group; 0 if groups of k = `group` divide the clients.

        Source: CutMixSL §4, "Communication Efficiency": one unmatched client sends its smashed data, two unmatched
        clients of a 4-way CutMix conduct a 2-way CutMix.
        """
        return self.active % group

    def groups(self, group: int, number: int, generator: Generator) -> Tensor:
        """Form the mixing groups of k = `group` clients in round `number` (0-based), int64 [⌈n/k⌉, k].

        Each row holds the numbers 0..n − 1 of the clients in one group; n is the number of clients that send. The last
        group may have fewer clients, and is filled with −1. `generator` is used only if grouping is random.

        >>> SplitProtocol(clients=5, grouping="round_robin").groups(2, 0, torch.Generator()).tolist()
        [[1, 4], [2, 3], [0, -1]]
        """
        n, device = self.active, generator.device
        if self.grouping == "random":
            order = torch.randperm(n, generator=generator, device=device)
        elif self.grouping == "round_robin":
            order = _round_robin(n, number).to(device)
        else:
            order = torch.arange(n, device=device)
        seats = -(-n // group) * group
        return torch.nn.functional.pad(order, (0, seats - n), value=-1).view(-1, group)


def _round_robin(n: int, number: int) -> Tensor:
    """An order of n clients for round `number`; neighbors form pairs, which change until all have met (circle method).

    >>> {tuple(sorted(pair)) for r in range(5) for pair in _round_robin(6, r).view(-1, 2).tolist()} == {
    ...     (a, b) for b in range(6) for a in range(b)}
    True
    """
    even = n + n % 2
    turning = 1 + (torch.arange(even - 1) + number) % max(1, even - 1)
    circle = torch.cat([torch.zeros(1, dtype=torch.int64), turning])
    pairs = torch.stack([circle[: even // 2], circle.flip(0)[: even // 2]], 1).flatten()
    if even == n:
        return pairs
    idle = int((pairs == n).nonzero())  # the number that no client has; the client paired with it comes last
    partner = pairs[idle ^ 1].reshape(1)
    rest = pairs[(pairs != n) & (pairs != partner)]
    return torch.cat([rest, partner])


STANDALONE = SplitProtocol(clients=10, upper="own")  # each of ten clients trains a whole network on its own images

SL = SplitProtocol(lower="handed_on")  # sequential split learning: one lower segment, handed on from client to client

PSL = SplitProtocol(clients=10)
"""Parallel split learning: ten lower segments, and one server update per round, weighted by shares of the data."""

SPLITFED = SplitProtocol(clients=10, average="round")
"""Parallel split learning with FedAvg of the lower segments after every round."""

SPLITAVG = SplitProtocol(clients=10, gradient="average")
"""Parallel split learning in which each client gets the averaged cut-layer gradient."""

CUTMIXSL = SplitProtocol(clients=10)
"""Parallel split learning for mixing defenses: each client gets the part of the gradient that its mask kept."""

CUTMIXSFL = SplitProtocol(clients=10, average="round", gradient="average")
"""CutMixSL with FedAvg of the lower segments and the averaged gradient broadcast."""

U_SHAPE = SplitProtocol(labels="kept")
"""A U-shape: the client keeps the labels and, besides its lower segment, the last layer."""

PROTOCOLS: dict[str, str] = {
    "cutmixsfl": "privkit.training.protocol:CUTMIXSFL",
    "cutmixsl": "privkit.training.protocol:CUTMIXSL",
    "psl": "privkit.training.protocol:PSL",
    "sl": "privkit.training.protocol:SL",
    "splitavg": "privkit.training.protocol:SPLITAVG",
    "splitfed": "privkit.training.protocol:SPLITFED",
    "standalone": "privkit.training.protocol:STANDALONE",
    "u_shape": "privkit.training.protocol:U_SHAPE",
}
"""Name -> "module:object" of every protocol."""
