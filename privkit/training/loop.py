"""Trains n clients and one server by split learning, round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.accountants.spec.parts import PrivateUpdates
from privkit.defenses.base import ReleaseCount
from privkit.defenses.chain import stages_of
from privkit.domains.base import Batch, several
from privkit.domains.images.augment import augment
from privkit.domains.partition import ClientPartition, Iid, epoch_order, most_releases, rounds_an_epoch
from privkit.errors import TrainingDiverged, UsageError
from privkit.shared.seeds import numbered
from privkit.torch_utils.seeded import seeded
from privkit.training.checkpoint import Checkpoint
from privkit.training.clients import Clients
from privkit.training.distributed import processes
from privkit.training.evaluate import evaluate
from privkit.training.graph import Graphed, traceable
from privkit.training.losses import own_loss, with_loss
from privkit.training.optimizers import Optimizers
from privkit.training.private import check_private, copies_in_a_batch, private_gradients, private_updates
from privkit.training.protocol import SplitProtocol
from privkit.training.round import Round, split_round
from privkit.training.spec import TrainingSpec
from privkit.training.u_shape import UShaped

COMPILE_FROM_STEPS = 10_000  # torch.compile took 14 s and saved 1.6 ms per step (docs/results/gpu.md)
CAPTURE_FROM_STEPS = 50  # capturing a step takes a tenth of a second


@dataclass(frozen=True, kw_only=True)
class EpochWeights:
    """A defended model's weights after one epoch."""

    number: int  # the epoch's number, counted from 1
    edge: dict[str, Tensor]  # the clients' weights, as a state dictionary
    upper: dict[str, Tensor]  # the server's weights, as a state dictionary


@dataclass
class _Past:
    """The past epochs as stored in checkpoints: losses, validation scores, and the best epoch."""

    curve: list[float] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)
    best: EpochWeights | None = None

    def measure(self, clients: Clients, upper: nn.Module, images: Batch, spec: TrainingSpec, seed: int) -> None:
        """Evaluate the model on `images` after an epoch, and keep its weights if they are the best ones so far."""
        number, by = len(self.validation), spec.best_by
        scores = evaluate(
            clients, upper, images, batch_size=spec.batch_size, seed=seed, stage=("validation", number)
        ).defined
        self.validation.append({name: score.value for name, score in scores.items()})
        if self.best is None or self.validation[-1].get(by, 0.0) > self.validation[self.best.number - 1].get(by, 0.0):
            self.best = EpochWeights(number=number + 1, edge=_copied(clients), upper=_copied(upper))


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Holds a defended model after its last epoch.

    Attributes:
        edge: the clients' lower segments and their defense, in evaluation mode.
        upper: the server's segment, in evaluation mode; stacked for several servers or standalone clients.
        curve: mean training loss of each epoch, in nats for cross-entropy.
        release_count: how often training released one record, and how often one client released anything; accountants
            compute ε from these counts.
        validation: scores of each epoch on validation images, such as accuracy, MCC and AUC; empty without them.
        best: number and weights of the epoch with the best validation score; None without validation images.
    """

    edge: Clients
    upper: nn.Module
    curve: tuple[float, ...]
    release_count: ReleaseCount
    validation: tuple[dict[str, float], ...] = ()
    best: EpochWeights | None = None


def release_count(
    clients: Clients,
    spec: TrainingSpec,
    private: ClientPartition,
    *,
    epochs: int,
    recorded: Batch | None = None,
    passes: int = 1,
    others: bool = False,
) -> ReleaseCount:
    """Count how often a run releases one record (sends its smashed data), and how often one client releases anything.

    The count covers training, and the passes after training in which the attacked images are sent again in whole
    rounds. A client with fewer images than a batch sends some images several times; images are counted by their ids.

    Args:
        clients: the clients, with the protocol and the defense.
        spec: training options, such as batch size, `freeze_lower` and DP-SGD.
        private: the indices of each client's private images.
        epochs: number ≥ 0 of training epochs.
        recorded: the attacked images; None if no images are sent after training.
        passes: how often the attacked images are sent after training.
        others: whether the attacked images differ from the private ones. A record is then released either in training
            or afterwards, so the larger number counts. For a client, all rounds count, because its trained segment
            affects every release.

    Returns:
        The counts that a defense's `Receipt` turns into the certificate of the whole run.
    """
    protocol = clients.protocol
    total = int(private.sizes.sum())
    rounds = rounds_an_epoch(total, protocol.clients, spec.batch_size)
    frozen = spec.freeze_lower or not learns(clients)
    sent_out = protocol.average != "never" or (protocol.lower == "handed_on" and protocol.clients > 1)
    trained, after, again = epochs * most_releases(private, spec.batch_size, rounds), 0, 0
    turns = clients.defense.group if protocol.updates == "message" else 1  # messages of one record in a round
    copies = copies_in_a_batch(spec, private) if trained else 1
    if recorded is not None and len(recorded):
        sent = recorded.ids.split(protocol.active * spec.batch_size)
        after, again = passes * len(sent), passes * _most(recorded.ids)
        copies = max(copies, *map(_most, sent))
    lower: Literal["frozen", "trained", "averaged"] | PrivateUpdates = "averaged" if sent_out else "trained"
    if frozen or (spec.private and not trained):
        lower = "frozen"
    elif spec.private:
        lower = private_updates(spec, trained, copies_in_a_batch(spec, private))
    return ReleaseCount(
        rounds=max(1, epochs * rounds * turns + after),
        epochs=max(1, trained * turns, again) if others else max(1, trained * turns + again),
        batch_size=spec.batch_size,
        copies=copies,
        clients=protocol.clients,
        lower_model=lower,
        unmatched=protocol.unmatched(clients.defense.group),
    )


def _most(ids: Tensor) -> int:
    return int(ids.unique(return_counts=True)[1].max())


def learns(clients: Clients) -> bool:
    """Whether any weight of the lower segments is trained."""
    return any(weight.requires_grad for weight in clients.lowers.parameters())


def train(
    clients: Clients,
    upper: nn.Module,
    private: Batch,
    spec: TrainingSpec,
    *,
    epochs: int,
    seed: int,
    shares: ClientPartition | None = None,
    checkpoint: Checkpoint | None = None,
    play: Callable[..., Round] = split_round,
    validation: Batch | None = None,
    goes_on: Callable[[int], bool] | None = None,
) -> Trained:
    """Train the clients' and the server's segments on the private images, in place.

    Every epoch draws a new order for each client. Only whole batches are used, so each message (a batch of smashed
    data) has the B images for which the defense's guarantee holds. An epoch's randomness depends only on the seed and
    the epoch's number, so a restart gives the same bits.

    Under torchrun each of W processes computes a round with B images of every client, and one step averages the
    gradients of all W rounds. Messages still have B images, so guarantees do not change.

    Args:
        clients: the clients, on the device of `private`.
        upper: the server's segment, on the same device; stacked for standalone clients.
        private: all clients' images, on the training device.
        spec: optimizers, batch size B and other options of the training.
        epochs: number of epochs, ≥ 0.
        seed: seed of orders, groups, the defense, and random layers such as dropout.
        shares: the indices of each client's images in `private`; None for random parts of equal size.
        checkpoint: object that saves the state after epochs and reports progress; None for neither.
        play: function that computes a round; `privkit.wire.transcript.Transcript` also records the messages.
        validation: images on which every epoch is evaluated, to keep the best epoch as well as the last; they do not
            affect the training.
        goes_on: function called before each epoch with the epoch's number from 0; training ends when it returns False.
            For example, `Ledger.affords` stops training before a privacy budget is exceeded. If the answer depends on
            released data, the certificate for a fixed number of epochs does not hold; use an adaptive ledger's
            certificate.

    Returns:
        The trained segments, the losses, and how often the training released each record.

    Raises:
        UsageError: if there are fewer images than one round needs, a batch is too small for the defense, labels do not
            suit the classes or the loss, or DP-SGD is not possible.
        TrainingDiverged: if a loss or weight is not finite; for a loss, the message names the first such step.
    """
    checkpoint = checkpoint or Checkpoint()
    protocol, batch, device = clients.protocol, spec.batch_size, private.x.device
    rank, world = processes()
    shares = shares or Iid().assign(private.y.cpu(), protocol.clients, seed)
    held = int(shares.sizes.sum())  # images that no client has are not sent, and do not count
    _check_batch(clients, batch, held, world)
    _check_labels(private.y, clients.classes, with_loss(upper, spec.loss))
    check_private(clients, spec, world)
    clients.precision = spec.precision
    rounds = rounds_an_epoch(held, protocol.clients, batch * world)
    steps = rounds * (protocol.clients // protocol.active)  # clients that take turns need one step each
    total = epochs * steps
    if spec.freeze_lower:  # otherwise only weights that a user froze are frozen
        clients.lowers.requires_grad_(False)
    both = Optimizers(clients, upper, spec, epochs, steps)
    if device.type == "cuda" and total >= COMPILE_FROM_STEPS and not spec.private:
        clients.lowers.compile()  # in place: names of parameters stay as they are
        upper.compile()

    weights = shares.weights.to(device, torch.float32)
    sending = weights if protocol.active > 1 else torch.ones(1, device=device)
    draws, secret = Generator(device), Generator(device)

    def one_step(rows: Tensor, groups: Tensor | None = None, number: int = 0) -> tuple[Tensor, Tensor]:
        both.clear()
        images = augment(private.x[rows], spec.augment, draws)
        known: dict[str, Any] = {} if groups is None else {"groups": groups}
        with private_gradients(clients, spec, secret):
            outcome = play(
                clients,
                upper,
                images,
                images if clients.predicts == "texts" else private.y[rows],
                draws,
                shares=sending,
                number=number,
                update=both.step_server,
                **known,
            )
        both.step()
        if protocol.average == "round":
            _average(clients, upper, weights)
        return outcome.losses, outcome.sent.groups

    seats_drawn = clients.defense.group > 1 and protocol.grouping == "random"
    captures = device.type == "cuda" and total >= CAPTURE_FROM_STEPS and world == 1 and play is split_round
    # not captured: DP-SGD, which opens hooks, and server steps after each message, a loop on the CPU
    captures = captures and not spec.private and protocol.updates == "round"
    captures = captures and traceable(clients, upper, *stages_of(clients.defense))
    graphed = Graphed(one_step, device, draws) if captures else None
    past = _Past()
    if (saved := checkpoint.load()) is not None:
        clients.load_state_dict(saved["edge"])
        upper.load_state_dict(saved["upper"])
        both.load_state(saved["optimizers"])
        best = saved["best"] and EpochWeights(**saved["best"])
        past = _Past(curve=list(saved["curve"]), validation=list(saved["validation"]), best=best)
    if graphed is not None:
        both.keep_rates_on(device)
    for epoch in range(len(past.curve), epochs):
        if goes_on is not None and not goes_on(epoch):
            break
        clients.train()
        upper.train()
        if not learns(clients):  # batch statistics would carry one record into the smashed data of others
            clients.lowers.eval()
        draws.manual_seed(numbered(seed, "train/{}", epoch))
        order = round_order(shares, protocol, batch * world, rounds, draws)
        if world > 1:  # the order is common to all processes, all other draws differ
            order = order[:, :, rank * batch : (rank + 1) * batch]
            draws.manual_seed(numbered(seed, f"train/{{}}/process/{rank}", epoch))
        secret.manual_seed(numbered(seed, "train/{}/updates", epoch))
        losses, groups = [], []
        with seeded(device, numbered(seed, "train/{}/module" + (f"/{rank}" if world > 1 else ""), epoch)):
            for step, rows in enumerate(order):
                number = epoch * steps + step
                if graphed is None:
                    lost, sent_by = one_step(rows, number=number)
                else:
                    lost, sent_by = graphed(rows, *([] if seats_drawn else [clients.groups(number, draws)]))
                both.next_rate()
                losses.append(lost)
                groups.append(sent_by)
        if protocol.average == "epoch":
            _average(clients, upper, weights)
        every = torch.stack(losses)
        _check_finite(every, groups, [*clients.parameters(), *upper.parameters()], epoch * steps, total)
        past.curve.append(every.mean().item())
        if validation is not None:
            past.measure(clients, upper, validation, spec, seed)
        checkpoint.save(
            {
                "edge": clients.state_dict(),
                "upper": upper.state_dict(),
                "optimizers": both.state(),
                "curve": past.curve,
                "validation": past.validation,
                "best": past.best and vars(past.best),
            }
        )
        checkpoint.report(epoch + 1, epochs, past.curve[-1])
    both.clear()  # gradients of captured steps lie in the graph's memory
    return Trained(
        edge=clients.eval(),
        upper=upper.eval(),
        curve=tuple(past.curve),
        validation=tuple(past.validation),
        best=past.best,
        release_count=release_count(clients, spec, shares, epochs=len(past.curve)),
    )


def _average(clients: Clients, upper: nn.Module, weights: Tensor) -> None:
    clients.lowers.average(weights)
    if isinstance(upper, UShaped):
        upper.tails.average(weights)


def _check_batch(clients: Clients, batch: int, images: int, world: int = 1) -> None:
    """Raise `UsageError` for a batch size that does not suit the data, the defense or the number of processes."""
    n, defense = clients.protocol.clients, clients.defense
    if images < n * batch * world:
        whose = ("" if n == 1 else f" of {n} clients") + (f" in {world} processes" if world > 1 else "")
        raise UsageError(f"batch_size={batch}{whose} is more than the {images} private images; lower it")
    if batch < defense.smallest_batch:
        raise UsageError(
            f"{defense.name} needs batches of at least {defense.smallest_batch} images, got "
            f"batch_size={batch}: on a smaller batch it has no effect"
        )


def _check_labels(labels: Tensor, classes: int, upper: nn.Module) -> None:
    """Raise `UsageError` for labels outside 0..classes−1, and for several labels per record under cross-entropy."""
    if several(labels):
        if labels.shape[1] != classes:
            raise UsageError(f"several labels per record must be [N, {classes}], got {list(labels.shape)}")
        if own_loss(upper) is None:
            raise UsageError(
                f"each record has {classes} labels, and cross-entropy takes one; use --training loss=multi_label"
            )
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise UsageError(f"labels must lie in 0..{classes - 1} for {classes} classes, got {low}..{high}")


def round_order(shares: ClientPartition, protocol: SplitProtocol, batch: int, rounds: int, draws: Generator) -> Tensor:
    """Draw which private images each client sends in each step of an epoch: int64 [steps, n, B], for n senders."""
    if protocol.clients == 1:
        own = shares.of(0).to(draws.device).sort().values
        order = own[torch.randperm(len(own), generator=draws, device=draws.device)]
        return order[: rounds * batch].view(rounds, 1, batch)
    return epoch_order(shares.to(draws.device), batch, draws, rounds).view(-1, protocol.active, batch)


def _check_finite(losses: Tensor, groups: list[Tensor], weights: list[nn.Parameter], before: int, total: int) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        step, message = bad[0].tolist()
        clients = [seat for seat in groups[step][message].tolist() if seat >= 0]
        whose = f", client {' and '.join(map(str, clients))}" if len(groups[step].flatten()) > 1 else ""
        what = f"the loss became NaN or infinite at step {before + step + 1} of {total}{whose}"
        if before + step == 0:
            raise TrainingDiverged(f"{what}, before any update: the model or the defense makes NaN of these records")
    elif not all(bool(weight.isfinite().all()) for weight in weights):
        what = f"a weight became NaN or infinite at step {before + len(losses)} of {total}"
    else:
        return
    raise TrainingDiverged(f"{what}; lower learning_rate (the last finite state is kept)")
