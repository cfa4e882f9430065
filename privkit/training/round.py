"""One communication round: the forward pass across the cut, the server's loss, and the gradients that are sent back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_map

from privkit.defenses.base import Release
from privkit.errors import UsageError
from privkit.training.clients import ClientForward, Clients
from privkit.training.losses import Outputs, message_losses, own_loss
from privkit.training.protocol import SplitProtocol
from privkit.training.u_shape import SecondCut, UShaped

_ONE_SERVER = SplitProtocol()  # the protocol for a single message


@dataclass(frozen=True, kw_only=True)
class Round:
    """Holds the result of one training round with M messages (batches of B records that the server gets at once).

    The gradients of the weights are not here, but in the parameters' `.grad`.

    Attributes:
        losses: mean loss of each message, float [M], detached.
        sent: the results of the clients' forward pass: smashed data, messages and receipt.
        cut_gradient: gradient of each message's own loss at the cut, float [M, B, ...], as the server sent it back.
        second: tensors that crossed the second cut of a U-shape (clients hold the last layers); None without a second
            cut.
    """

    losses: Tensor
    sent: ClientForward
    cut_gradient: Tensor
    second: SecondCut | None = None


def split_round(
    clients: Clients,
    upper: nn.Module,
    images: Tensor,
    labels: Tensor,
    draws: Generator,
    *,
    shares: Tensor | None = None,
    number: int = 0,
    update: Callable[[], None] | None = None,
    groups: Tensor | None = None,
) -> Round:
    """Run the forward and backward pass of one round, in which n clients send batches of B images.

    The defended smashed data are detached at the cut. The returned gradient enters the *same* graph, so the backward
    pass uses the noise, masks and permutations of the forward pass. Gradients are added to the parameters' `.grad`; the
    caller clears them and steps the optimizers.

    Args:
        clients: the clients' segments and the defense.
        upper: the server's segment, or a stack of segments for several servers or standalone clients; for a U-shape,
            with the clients' last layers.
        images: the batch of every client that sends, [n, B, C, H, W] in [0, 1].
        labels: labels, int64 [n, B], or 0 and 1 in [n, B, L] if each record has L labels.
        draws: generator of the mixing groups and of the defense's random numbers.
        shares: each client's share d_i of the data, float [n], which weights the messages; None for equal shares.
        number: number of the round, 0-based.
        update: the server's optimizer step, called after every message (batch of smashed data) if the protocol has
            `updates="message"`; not used otherwise.
        groups: indices of the clients whose records are mixed, int64 [M, k]; None draws the groups from `draws`.

    Returns:
        The losses, the messages, and the gradient at the cut.

    Source: Gupta and Raskar 2018, Algorithm 1; DP-CutMixSL Eq. 3 and 11: a client gets the gradient of its own
    message's loss; the server weights messages by Σ d_i over their clients. CutMixSL §3.3, the ×n variant.
    """
    protocol = clients.protocol
    if protocol.updates == "message":
        return _one_by_one(clients, upper, images, labels, draws, shares, number, update)
    with clients.mixed_precision(images.device):
        sent = clients.release(images, labels, draws, number, groups=groups)
    weights = message_weights(sent.groups, shares)
    second = None
    if isinstance(upper, UShaped):
        losses, gradient, second = _through_the_tails(clients, upper, sent.release, weights, draws)
    else:
        shared = None if protocol.upper == "own" else weights
        losses, gradient = _together(clients, upper, sent.release, shared, protocol)
        gradient = clients.defense.on_gradient(gradient, draws)
    send_back(sent, gradient, weights, protocol.gradient)
    return Round(losses=losses.detach(), sent=sent, cut_gradient=gradient, second=second)


def answered(upper: nn.Module, messages: Tensor, protocol: SplitProtocol) -> Outputs:
    """The servers' outputs [M·B, ...] for messages [M, B, ...]; each upper segment evaluates its clients' messages."""
    if not protocol.stacked:
        return upper(messages.flatten(0, 1))
    outputs = upper(messages.unflatten(0, (protocol.uppers, -1)).flatten(1, 2))
    return tree_map(lambda output: output.flatten(0, 1), outputs)


def _together(
    clients: Clients, upper: nn.Module, release: Release, weights: Tensor | None, protocol: SplitProtocol
) -> tuple[Tensor, Tensor]:
    """Run one backward pass for all messages; returns the losses [M] and each message's own gradient at the cut."""
    if weights is not None and protocol.servers > 1:  # each server's loss is the mean over its own clients
        weights = (own := weights.view(protocol.servers, -1)).div(own.sum(1, keepdim=True)).flatten()
    arrived = release.smashed.detach().requires_grad_()
    given = arrived.clone()
    with clients.mixed_precision(arrived.device):
        outputs = answered(upper, given, protocol)
    losses = message_losses(outputs, release.labels, own_loss(upper))
    if (term := clients.defense.label_term(given, release.labels)) is not None:
        if clients.lowers.by_record is not None:
            raise UsageError(
                f"{clients.defense.name} adds a loss over whole batches to the server's, so that each record would "
                "move the updates of others; leave out private=true, or choose another defense"
            )
        losses = losses + term
    clients.defense.before_backward(given)
    (losses.sum() if weights is None else (weights * losses).sum()).backward()
    gradient = arrived.grad
    assert gradient is not None
    if weights is not None and len(losses) > 1:
        gradient = gradient / _as(weights, gradient)
    return losses, gradient


def _through_the_tails(
    clients: Clients, upper: UShaped, release: Release, weights: Tensor, draws: Generator
) -> tuple[Tensor, Tensor, SecondCut]:
    """Run a U-shape's round above the first cut: losses [M], gradient at this cut, and the tensors at the second cut.

    Clients hold the labels and the last layers (tails), so a defense of returned gradients acts on the gradients that
    the tails send to the server.
    """
    arrived = release.smashed.detach().requires_grad_()
    given, messages = arrived.clone(), arrived.shape[:2]
    with clients.mixed_precision(arrived.device):
        features: Tensor = upper.middle(given.flatten(0, 1))
        down = features.detach().requires_grad_()
        logits = upper.logits(down)
    losses = message_losses(logits, release.labels, own_loss(upper))
    losses.sum().backward()  # each client owns its tail, which gets the gradient of the client's own loss
    assert down.grad is not None
    up = clients.defense.on_gradient(down.grad.unflatten(0, messages), draws)
    clients.defense.before_backward(given)
    features.backward((up * _as(weights, up)).flatten(0, 1))
    assert arrived.grad is not None
    second = SecondCut(features=features.detach().unflatten(0, messages), gradient=up)
    return losses, arrived.grad / _as(weights, arrived.grad), second


def _one_by_one(
    clients: Clients,
    upper: nn.Module,
    images: Tensor,
    labels: Tensor,
    draws: Generator,
    shares: Tensor | None,
    number: int,
    update: Callable[[], None] | None,
) -> Round:
    """Run a round with one server step for each client, as in CutMixSL's ×n variant.

    For each client, its mixing group mixes a new message, whose gradient flows only to this client, together with the
    gradient of the client's own penalty. In the result, losses and groups cover all messages; the other values are
    those of the last message of each full group.
    """
    losses, members = [], []
    for turn in turns(clients.groups(number, draws), clients.protocol):
        with clients.mixed_precision(images.device):
            sent = clients.release(images, labels, draws, number, groups=turn)
        gradients: list[Tensor] = []
        for smashed, soft in zip(sent.release.smashed, sent.release.labels, strict=True):
            message = Release(smashed=smashed.unsqueeze(0), labels=soft.unsqueeze(0))
            loss, gradient = _together(clients, upper, message, torch.ones(1, device=smashed.device), _ONE_SERVER)
            losses.append(loss.detach())
            gradients.append(gradient)
            if update is not None:
                update()
        gradient = clients.defense.on_gradient(torch.cat(gradients), draws)
        receivers, penalty = turn[:, 0], sent.penalty
        if len(sent.smashed) == len(images):  # otherwise each lower segment made a message, so all of them receive
            if turn.shape[1] > 1 and sent.smashed.requires_grad:
                sent.smashed.register_hook(_to(receivers, len(images)))
            penalty = None if penalty is None else penalty[receivers]
        send_back(replace(sent, penalty=penalty), gradient, message_weights(turn, shares), clients.protocol.gradient)
        members.append(turn)
    return Round(losses=torch.cat(losses), sent=replace(sent, groups=torch.cat(members)), cut_gradient=gradient)


def turns(groups: Tensor, protocol: SplitProtocol) -> list[Tensor]:
    """The groups [M, k] of clients that are mixed one after the other in a round; without updates="message", once.

    With it, each client comes first once, the one that gets the gradient.
    """
    if protocol.updates == "round":
        return [groups]
    seats = [groups.roll(-seat, 1) for seat in range(groups.shape[1])]
    return [turn[turn[:, 0] >= 0] for turn in seats]


def _to(receivers: Tensor, clients: int) -> Callable[[Tensor], Tensor]:
    """Create a hook that keeps the parts of a gradient [n, B, ...] for the clients `receivers`, and zeroes the rest."""
    receives = torch.zeros(clients, dtype=torch.bool, device=receivers.device)
    receives[receivers] = True

    def hook(gradient: Tensor) -> Tensor:
        return torch.where(receives.view(-1, *[1] * (gradient.ndim - 1)), gradient, 0)

    return hook


def message_weights(groups: Tensor, shares: Tensor | None) -> Tensor:
    """The weight of each message, [M]: the sum of its clients' shares d_i of the data; weights sum to 1."""
    present = groups >= 0
    if shares is None:
        return present.sum(1) / present.sum()
    return torch.where(present, shares[groups.clamp(min=0)], 0).sum(1)


def _as(weights: Tensor, like: Tensor) -> Tensor:
    return weights.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def send_back(sent: ClientForward, gradient: Tensor, weights: Tensor, way: str) -> None:
    """Send each client its cut-layer gradient, and propagate it through the client's segment.

    `gradient` holds each message's gradient at the cut; `way` is the protocol's option `gradient`.

    Source: CutMixSL Eq. 13 (unicast, CutMix gradient); DP-CutMixSL Eq. 10; Pal et al. 2021 (average).
    """
    roots: list[Tensor] = []
    if sent.release.smashed.requires_grad:
        if way == "average":
            gradient = (_as(weights, gradient) * gradient).sum(0, keepdim=True).expand_as(gradient)
        if way == "unicast" or sent.groups.shape[1] == 1:
            root, back = sent.release.smashed, gradient
        else:  # broadcast or average: masks are not applied
            root, back = sent.smashed, _to_members(gradient, sent)
        # The gradient of this sum is `back`, bit for bit. Given gradients, torch would load sympy (half a second).
        roots.append((root * back.to(root.dtype)).sum())
    if sent.penalty is not None and sent.penalty.requires_grad:
        roots.append(sent.penalty.sum())
    if roots:
        torch.autograd.backward(roots)


def _to_members(gradient: Tensor, sent: ClientForward) -> Tensor:
    """Copy each message's gradient to all clients in the message: [M, B, ...] -> [n, B, ...]."""
    if len(sent.smashed) == len(gradient):
        return gradient  # mixed before the lower segment, so that one segment made the message
    seats = sent.groups.flatten()
    message = torch.arange(len(gradient), device=gradient.device).repeat_interleave(sent.groups.shape[1])
    to = message.new_empty(len(sent.smashed) + 1).scatter(0, seats % (len(sent.smashed) + 1), message)
    return gradient[to[:-1]]  # empty places, -1, have written to the last entry
