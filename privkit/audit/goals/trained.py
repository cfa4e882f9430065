"""The context of a model that privkit trains. Its adversary can be given anything from the training."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, known_to
from privkit.attacks.hijack.hijack_detection import SplitGuard
from privkit.attacks.scores.tokens import PADDING
from privkit.audit.claims import limits_of, uncovered
from privkit.audit.defended import DefendedModel, train_again, untrained
from privkit.audit.goals.context import AttackContext
from privkit.audit.scoring import learned
from privkit.audit.standing import certified, declaration_check, texts_return
from privkit.defenses.base import ReleaseCount
from privkit.domains.base import several
from privkit.domains.partition import rounds_an_epoch
from privkit.reports.schema import Check
from privkit.shared.certificate import Certificate
from privkit.shared.seeds import derive, numbered
from privkit.training import Clients
from privkit.training.distributed import joined_processes
from privkit.training.loop import learns, round_order
from privkit.training.losses import next_tokens, own_loss
from privkit.training.round import Round, split_round
from privkit.training.u_shape import UShaped
from privkit.wire.channel import holds_all
from privkit.wire.hijack import LiveClients

_HISTORY = 16  # largest number of states of the server's segment that an attack gets, including the trained one


@dataclass(frozen=True, kw_only=True)
class TrainedContext(AttackContext):
    """The data of one cell (defense, attack, seed) before the attack, with a trained model and recorded messages."""

    model: DefendedModel  # the trained clients and server
    release_count: ReleaseCount  # how often the run released one record
    certificate: Certificate  # what is proven about the run's privacy

    @property
    def steps(self) -> int:
        """Number of rounds in an epoch of training, over all clients if they take turns."""
        protocol, held = self.config.protocol.spec, int(self.seed_data.shares.sizes.sum())
        rounds = rounds_an_epoch(held, protocol.clients, self.config.training.batch_size)
        steps: int = rounds * (protocol.clients // protocol.active)
        return steps

    def order(self, epoch: int) -> Tensor:
        """Draw again the order in which an epoch sends private records: their indices, int64 [steps, clients, B]."""
        shares, protocol = self.seed_data.shares, self.model.edge.protocol
        batch = self.config.training.batch_size * joined_processes()[1]
        rounds = rounds_an_epoch(int(shares.sizes.sum()), protocol.clients, batch)
        draws = Generator(self.seed_data.splits.private.x.device)
        draws.manual_seed(numbered(self.cell.seed, "train/{}", epoch))
        return round_order(shares, protocol, batch, rounds, draws)

    def refuse(self) -> None:
        must_send(self)

    def checks(self) -> tuple[Check, ...]:
        """Check a claim that rests on a user's own part. Also check the accuracy if the loss is cross-entropy with one
        label per record or token."""
        claim, test, accuracy = declaration_check(self.certificate), self.seed_data.splits.test, self.row.accuracy
        if accuracy is None:
            return claim
        if self.predicts_texts():
            following = next_tokens(test.x)
            following = following[following != PADDING]
            return (*claim, learned(accuracy, following)) if len(following) else claim
        graded = several(test.y) or own_loss(self.model.upper) is not None
        return claim if graded else (*claim, learned(accuracy, test.y, self.row.task.get("auc")))

    def notes(self) -> tuple[str, ...]:
        known = known_to(self.attack)
        if "lower" in known and self.lower() is None:
            known -= {"lower"}
        return (*self.model.known["notes"], *uncovered(self.certificate, self.release_count.lower_model, known))

    def lacking(self) -> str:
        if "query" in self.attack.uses and self.config.queries.rounds == 0:
            return ": the threat model forbids queries"
        if "lower" not in self.attack.needs or self.lower() is not None:
            return ""
        who = f"under {self.config.protocol.label} each of {self.config.protocol.spec.clients} clients"
        return (
            f": {who} keeps a lower segment of its own, so that nobody knows the others'; use --protocol sl or "
            "splitfed, or --training freeze_lower=true"
        )

    @property
    def _edge(self) -> Clients:
        return self.model.edge

    def upper(self) -> nn.Module | None:
        """The server's segment; None if the adversary holds only parts of a release, or clients hold the last layer."""
        return self.model.upper if holds_all(self.model.edge) and not self.keeps_labels() else None

    def keeps_labels(self) -> bool:
        return self.model.edge.protocol.labels == "kept"

    def tail(self) -> nn.Module | None:
        """The clients' last layer of a U-shape before training; None for other models."""
        _, upper, _ = untrained(self.config, self.cell, self.seed_data)
        return upper.tails.copy(0) if isinstance(upper, UShaped) else None

    def predicts_texts(self) -> bool:
        return self.model.edge.predicts == "texts"

    def beside_the_release(self) -> str:
        """A warning if a U-shape's server also got gradients that depend on next tokens; else empty."""
        if not texts_return(self.config, self.model.edge):
            return ""
        return (
            "the server also got the gradient of each place's next token, but this attack reads only smashed data; "
            "mount an attack on labels that reads it"
        )

    def upper_history(self) -> list[nn.Module] | None:
        """Copies of the server's segment at evenly spaced moments of the training, which is repeated for this."""
        if self.upper() is None:
            return None
        config, total = self.config, self.config.budget.epochs * self.steps
        moments = {total * moment // _HISTORY for moment in range(1, _HISTORY)}
        history: list[nn.Module] = []

        def play(edge: Clients, upper: nn.Module, *given: Any, number: int = 0, **options: Any) -> Round:
            if number in moments:
                history.append(deepcopy(upper).requires_grad_(False))
            return split_round(edge, upper, *given, number=number, **options)

        train_again(config, self.cell, self.seed_data, play, self.progress)
        return history

    def clients(self) -> LiveClients:
        """The clients before training; one of them checks for a hijacking server."""
        data, seed, training = self.seed_data, self.cell.seed, self.config.training
        edge, _, _ = untrained(self.config, self.cell, data)
        guard = SplitGuard(generator=Generator().manual_seed(derive(seed, "guard")), policy="average", patience=20)
        private, passes = data.splits.private, self.attack.mounting.passes
        return LiveClients(edge, private, data.shares, training, data.victims, seed, guard=guard, passes=passes)

    def led(self, rounds: int) -> dict[str, Any]:
        """The new certificate and limits, as fields of the result row, if a hijack lasted longer than the training.

        The `rounds` of the hijack are rounded up to whole epochs. The result is empty if the hijack was not longer, or
        without differential privacy of the release.
        """
        epochs, claim = ceil(rounds / self.steps), self.certificate
        covered = claim.kind == "differential_privacy" and claim.covers == "release"
        if epochs <= self.config.budget.epochs or not covered:
            return {}
        longer = replace(self.config, budget=replace(self.config.budget, epochs=epochs))
        receipt, passes = self.recording.receipts[0], self.attack.mounting.passes
        often, certificate = certified(longer, self.model.edge, self.seed_data, receipt, passes)
        return {"certificate": certificate, "limits": limits_of(certificate, receipt.mechanism(often))}


def must_send(context: TrainedContext) -> None:
    """Raise `NotApplicable` if clients send nothing to the server."""
    if context.model.edge.protocol.upper == "own":
        raise NotApplicable("standalone clients send nothing, so there is nothing to attack")


def must_send_labels(context: TrainedContext) -> None:
    """Raise `NotApplicable` for a U-shape, whose server gets neither labels nor predictions."""
    if context.model.edge.protocol.labels == "kept":
        raise NotApplicable("labels=kept leaves labels and predictions to clients, and this attack starts from them")


def must_get_gradients(context: TrainedContext) -> None:
    """Raise `NotApplicable` if clients get no gradient back, or if a round mixes a record into several messages."""
    edge = context.model.edge
    if edge.protocol.updates == "message" and edge.defense.group > 1:
        raise NotApplicable(
            "updates=message mixes a record several times a round, but this attack would read one message"
        )
    if context.config.training.freeze_lower or not learns(context.model.edge):
        raise NotApplicable("no gradient comes back to a client: the lower segment does not learn")
