"""Clients in training that accept any gradient from the server, to study malicious servers and their detection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.hijack.gan import all_finite
from privkit.attacks.hijack.hijack_detection import SplitGuard
from privkit.defenses.base import Release
from privkit.defenses.chain import stages_of
from privkit.defenses.compile import run, sites_of
from privkit.domains.base import Batch
from privkit.domains.domain import Domain
from privkit.domains.partition import ClientPartition, rounds_an_epoch
from privkit.shared.seeds import derive, numbered
from privkit.torch_utils.seeded import seeded
from privkit.training.clients import Clients
from privkit.training.loop import learns, round_order
from privkit.training.losses import message_losses, own_loss
from privkit.training.no_labels import drawn_labels
from privkit.training.private import check_private, private_gradients
from privkit.training.round import message_weights, send_back
from privkit.training.spec import TrainingSpec, optimizer_of
from privkit.wire.channel import answer_of, holds_all, record_rounds

_FAKES = 0.1  # share of rounds in which a client with a guard sends wrong labels, as in SplitGuard's evaluation
HONEST_ROUNDS = 250
"""Rounds of honest training (15 CPU seconds) that are tested for a false alarm; more if the detection came later."""
_LOUD = 100.0
_TRIED = 16
"""Scale, and images per message, of random smashed data on which a defense is tried; large enough to show clipping."""


class LiveClients:
    """Clients that train with an attacker in place of the server; implements `privkit.attacks.base.TrainingClients`.

    Images, defenses, averaging and the clients' optimizer are as in honest training (`spec`); images are not augmented,
    and the order is another random one. The learning rate stays at its peak, since the length of the attack is unknown.
    Defenses in which the server changes gradients are not applied. With a `guard`, a detector of malicious servers, a
    client sends wrong labels in a tenth of the rounds and does not train on the returned gradients. `passes` says how
    often `views` sends the attacked images. Raises `NotApplicable` for standalone clients, next-token models and
    untrained lower segments, and if no single server receives whole releases.

    Source: Pasquini, Ateniese and Bernaschi 2021, "Unleashing the tiger", §III: clients that follow the protocol.
    """

    def __init__(
        self,
        edge: Clients,
        private: Batch,
        shares: ClientPartition,
        spec: TrainingSpec,
        victims: Batch,
        seed: int,
        guard: SplitGuard | None = None,
        passes: int = 1,
    ) -> None:
        if spec.freeze_lower or not learns(edge):
            raise NotApplicable("the lower segments do not learn, so that no answer of the server changes them")
        if edge.protocol.servers > 1:
            raise NotApplicable(f"a hijack takes over one server, and here are {edge.protocol.servers}")
        if not holds_all(edge):
            held = ", ".join(edge.held)
            raise NotApplicable(f"the adversary holds {held} alone, and the server, who answers the clients, all parts")
        if edge.predicts != "labels":
            raise NotApplicable("a hijack was built for clients that learn labels, and these predict the next token")
        if edge.protocol.upper == "own":
            raise NotApplicable("standalone clients send nothing, so there is nothing to hijack")
        check_private(edge, spec)
        self._edge, self._private, self._shares, self._spec = edge, private, shares, spec
        self._victims, self._seed, self._passes, self.guard = victims, seed, passes, guard
        self.rounds, self.device = 0, private.x.device  # the number of rounds so far, and the clients' device
        weights = [weight for weight in edge.parameters() if weight.requires_grad]
        self._optimizer = optimizer_of(spec.lower, weights)
        self._order: Tensor | None = None
        # labels of the last round's messages, [n·B] or [n·B, L]; an honest server (`serve`) needs them in a U-shape
        self.labels: Tensor | None = None

    def round(self, answer: Callable[[View], Tensor]) -> None:
        """Run one round of training, in which `answer` computes the returned gradient from the server's view. Raises
        `AttackDiverged`, and leaves the weights unchanged, if a gradient is not finite in a lower segment."""
        edge, spec, device = self._edge, self._spec, self.device
        protocol, number = edge.protocol, self.rounds
        rounds = rounds_an_epoch(int(self._shares.sizes.sum()), protocol.clients, spec.batch_size)
        epoch, step = divmod(number, rounds * (protocol.clients // protocol.active))
        if self._order is None or step == 0:
            draws = Generator(device).manual_seed(derive(self._seed, "hijack", epoch))
            self._order = round_order(self._shares, protocol, spec.batch_size, rounds, draws)
        rows = self._order[step]
        draws = Generator(device).manual_seed(numbered(self._seed, "hijack/round/{}", number))
        edge.train()
        self._optimizer.zero_grad(set_to_none=True)
        labels = self._private.y[rows]
        fake = self.guard is not None and torch.rand(1, generator=draws, device=device).item() < _FAKES
        if fake:
            wrong = labels + torch.randint(1, edge.classes, labels.shape, generator=draws, device=device)
            labels = wrong % edge.classes
        secret = Generator(device).manual_seed(numbered(self._seed, "hijack/updates/{}", number))
        with private_gradients(edge, spec, secret):
            with seeded(device, numbered(self._seed, "hijack/module/{}", number)):
                sent = edge.release(self._private.x[rows], labels, draws, number)
            self.labels = sent.release.labels.flatten(0, 1)
            view = answer_of(sent, number, edge).view
            back = answer(replace(view, smashed=view.smashed.detach())).detach()
            if back.shape != view.smashed.shape:
                raise ValueError(f"a gradient at the cut must be {list(view.smashed.shape)}, got {list(back.shape)}")
            sent = sent.seen()
            gradient = back.unflatten(0, sent.release.smashed.shape[:2])
            shares = self._shares.weights.to(device, torch.float32)
            weights = message_weights(sent.groups, shares if protocol.active > 1 else shares.new_ones(1))
            send_back(sent, gradient, weights, protocol.gradient)
        if not all_finite(*(weight.grad for weight in edge.parameters() if weight.grad is not None)):
            raise AttackDiverged(f"what the server sent back is not finite in the lower segments in round {number + 1}")
        if self.guard is not None:
            first = next(weight for weight in edge.parameters() if weight.requires_grad)
            assert first.grad is not None
            self.guard.observe(first.grad, fake)
        if not fake:
            self._optimizer.step()
        last = step + 1 == len(self._order)
        if protocol.average == "round" or (protocol.average == "epoch" and last):
            edge.lowers.average(shares)
        self.rounds += 1

    def views(self) -> list[View]:
        """The clients' current releases of the attacked images, one view per round, pass after pass."""
        how = {"batch_size": self._spec.batch_size, "seed": self._seed, "passes": self._passes}
        return record_rounds(self._edge, self._victims, **how).views

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer state, number of rounds, and the detector's measurements."""
        guard = None if self.guard is None else self.guard.state_dict()
        states = {"edge": self._edge.state_dict(), "optimizer": self._optimizer.state_dict()}
        return states | {"number": self.rounds, "guard": guard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._edge.load_state_dict(state["edge"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.rounds, self._order = int(state["number"]), None
        if self.guard is not None and state["guard"] is not None:
            self.guard.load_state_dict(state["guard"])


def imitated(edge: Clients, domain: Domain) -> Callable[[Tensor, Generator], Tensor] | None:
    """A function by which the server applies the clients' defense to its own smashed data (`ImageObservation.imitate`).
    The clients' defense and frozen block are public. Of the clients' lower segments, only the output's shape is used.

    The result is None if the defense acts on images before the lower segments, mixes several clients, is keyed (the
    clients share a secret), is applied by the server, changes the shape of smashed data, or has no effect on them.
    """
    messages, sites = edge.protocol.active, sites_of(stages_of(edge.defense))
    if sites.images or not sites.smashed or any(stage.group > 1 or stage.keyed for stage in sites.smashed):
        return None
    soft = any(stage.soft_labels for stage in sites.smashed)

    def imitate(smashed: Tensor, draws: Generator) -> Tensor:
        rows = smashed.clone().unflatten(0, (messages, -1))  # a defense may write into what it is given
        labels = drawn_labels(rows.shape[:2], edge.classes, draws)
        dummies = nn.functional.one_hot(labels, edge.classes).to(rows.dtype) if soft else labels
        made, _ = run(sites.smashed, Release(smashed=rows, labels=dummies), draws)
        released = made.smashed.flatten(0, 1)
        return released if edge.block is None else edge.block(released)

    tried = _smashed_like(edge, domain)
    released = imitate(tried, Generator(tried.device).manual_seed(0))
    return None if released.shape != tried.shape or torch.equal(released, tried) else imitate


@torch.no_grad()
def _smashed_like(edge: Clients, domain: Domain) -> Tensor:
    """Random numbers in the shape of one round's smashed data, large enough that every defense changes them."""
    device = next(iter(edge.parameters()), torch.zeros(())).device
    shape, draws = edge.smashed_shape(domain), Generator(device).manual_seed(0)
    return _LOUD * torch.randn(edge.protocol.active * _TRIED, *shape, generator=draws, device=device)


def serve(clients: LiveClients, upper: nn.Module, rounds: int, spec: TrainingSpec, seed: int = 0) -> list[float]:
    """Train `upper` as an honest server, for comparison with a malicious one; return each round's loss. The list ends
    early if training diverges."""
    own = [weight for weight in upper.parameters() if weight.requires_grad]
    optimizer = optimizer_of(spec.upper, own) if own else None
    losses: list[float] = []

    def answer(view: View) -> Tensor:
        arrived = view.smashed.detach().clone().requires_grad_()
        labels = clients.labels if view.labels is None else view.labels
        assert labels is not None
        loss = message_losses(upper(arrived), labels.unsqueeze(0), own_loss(upper))[0]
        upper.zero_grad(set_to_none=True)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        losses.append(loss.item())
        assert arrived.grad is not None
        return arrived.grad

    upper.train()
    with seeded(clients.device, seed), suppress(AttackDiverged):
        for _ in range(rounds):
            clients.round(answer)
    return losses
