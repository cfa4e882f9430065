"""Records views of the data that cross the cut in training, round by round, without changing the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.defenses.split_parts import held_parts
from privkit.training.clients import Clients
from privkit.training.round import Round, message_weights, split_round
from privkit.wire.channel import answer_of, moved_view


@dataclass(frozen=True, kw_only=True)
class RecordedRound:
    """One round of training with M messages (batches of B releases) from n clients: each adversary's view, and data for
    scoring.

    Attributes:
        view: the server's view: releases [M·B, ...], public random numbers, and in `cut_gradient` the gradient that the
            server sends back: the mean over messages if gradient=average, otherwise the gradient of each message's own
            loss.
        received: the view of each sending client; empty if images are mixed before the lower segments. `smashed` [B,
            ...] is the output of its lower segment before the defense. `cut_gradient` is the gradient that arrives
            there after the defense's backward pass, plus the gradient of the client's penalty, if any; None if lower
            segments are frozen.
        members: indices of the up to k images mixed into each release, int64 [M·B, k], filled with −1.
        labels: labels of the round's images, int64 [n·B] or [n·B, L], client after client.
        images: the round's images in the same order, [n·B, ...]; None if they are not kept.
        lower: state dict of the clients' stacked lower segments before the round; None if it is not kept.
        returned: in a U-shape, the server's view of each client's second cut: its own features as `smashed`, and the
            gradient that the client sent back. Empty without a U-shape.
    """

    view: View
    received: tuple[View, ...]
    members: Tensor
    labels: Tensor
    images: Tensor | None = None
    lower: Mapping[str, Tensor] | None = None
    returned: tuple[View, ...] = ()

    def own_lower(self, client: int) -> dict[str, Tensor]:
        """State dict of one client's lower segment before the round."""
        assert self.lower is not None
        return {name: stack[client] for name, stack in self.lower.items()}


class Transcript:
    """Replaces `split_round` and records each round that is `wanted` (by default all). It takes and returns the same as
    `split_round`, bit for bit. With `inputs`, images and lower segments are kept, for attacks by a client.

    Source: privkit's own; the recorded messages are those of Gupta and Raskar 2018, Algorithm 1.
    """

    def __init__(self, wanted: Callable[[int], bool] | None = None, *, inputs: bool = False) -> None:
        self.wanted, self.inputs = wanted, inputs
        self.rounds: list[RecordedRound] = []  # on the CPU

    def __call__(
        self, edge: Clients, upper: nn.Module, images: Tensor, labels: Tensor, draws: Generator, **given: Any
    ) -> Round:
        """Run and record one round of training; see `split_round`."""
        number = given.get("number", 0)
        if self.wanted is not None and not self.wanted(number):
            return split_round(edge, upper, images, labels, draws, **given)
        state = edge.lowers.module.state_dict() if self.inputs else {}
        before = {name: _kept(value) for name, value in state.items()}
        hook = edge.lowers.register_forward_hook(_retain)
        try:
            played = split_round(edge, upper, images, labels, draws, **given)
        finally:
            hook.remove()
        made = _recorded(edge, played, labels, number, given.get("shares"))
        if self.inputs:
            made = replace(made, images=_kept(images.flatten(0, 1)), lower=before)
        self.rounds.append(made)
        return played

    @property
    def views(self) -> list[View]:
        """The server's view of each kept round."""
        return [played.view for played in self.rounds]

    def received(self, client: int) -> list[View]:
        """One client's view of each kept round; raises `IndexError` if images are mixed before the lower segments."""
        return [played.received[client] for played in self.rounds]

    def of_server(self, client: int, cut: Literal["first", "second"]) -> list[View]:
        """The view that a U-shape's server has of one client in each kept round, at the first or the second cut."""
        if cut == "second":
            return [played.returned[client] for played in self.rounds]
        return [_of_message(played.view, client) for played in self.rounds]


def _of_message(view: View, number: int) -> View:
    own = moved_view(view, lambda rows: rows.unflatten(0, (view.messages, -1))[number])
    return View(round=own.round, smashed=own.smashed, cut_gradient=own.cut_gradient, whole=own.whole, parts=own.parts)


def _retain(module: nn.Module, inputs: object, output: Tensor) -> None:
    if output.requires_grad:
        output.retain_grad()


def _recorded(edge: Clients, played: Round, labels: Tensor, number: int, shares: Tensor | None) -> RecordedRound:
    sent, gradient = played.sent, played.cut_gradient.detach().float()
    if edge.protocol.gradient == "average":
        weights = message_weights(sent.groups, shares).to(gradient.dtype)
        gradient = torch.einsum("m,m...->...", weights, gradient).expand_as(gradient)
    answer = answer_of(sent, number, edge)
    gradient = held_parts(gradient.flatten(0, 1), edge.defense, edge.held)
    view = replace(moved_view(answer.view, _kept), cut_gradient=gradient.cpu().clone())
    received: tuple[View, ...] = ()
    if len(sent.smashed) == len(labels):
        arrived = [None] * len(sent.smashed) if sent.smashed.grad is None else map(_kept, sent.smashed.grad.float())
        each = zip(map(_kept, sent.smashed.float()), arrived, strict=True)
        received = tuple(View(round=number, smashed=rows, cut_gradient=up) for rows, up in each)
    returned: tuple[View, ...] = ()
    if played.second is not None:
        both = (_kept(rows.float()) for rows in (played.second.features, played.second.gradient))
        returned = tuple(View(round=number, smashed=rows, cut_gradient=up) for rows, up in zip(*both, strict=True))
    return RecordedRound(
        view=view, received=received, members=answer.members.cpu(), labels=labels.flatten(0, 1).cpu(), returned=returned
    )


def _kept(value: Tensor) -> Tensor:
    return value.detach().cpu().clone()
