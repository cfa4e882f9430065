"""Canaries that are labels: an attack guesses from returned gradients which of two labels was used."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Generator, Tensor, nn

from privkit.accountants.answer import no_protection
from privkit.attacks.base import NotApplicable, View
from privkit.attacks.labels.gradient_matching import label_gradients
from privkit.audit.goals.canaries_sent import Sending
from privkit.audit.goals.trained import TrainedContext, must_send_labels
from privkit.defenses.base import Defense
from privkit.training.losses import own_loss
from privkit.wire.channel import holds_all
from privkit.wire.transcript import Transcript


def gradients(context: TrainedContext, coins: Tensor, draws: Generator) -> Sending:
    """Send each of K images with its own label (`coins` true, bool [K]) or another, and record the returned gradients.

    The model is not trained in these rounds, so the result is a lower bound on what a training of the same number of
    rounds reveals. Raises `NotApplicable` if the run's labels, server or parts do not allow this.
    """
    edge, victims = context.model.edge, context.seed_data.victims
    must_send_labels(context)
    if own_loss(context.model.upper) is not None or edge.protocol.servers > 1:
        raise NotApplicable("canaries on=gradient need one server, with cross-entropy as its loss")
    if not holds_all(edge):
        raise NotApplicable("canaries on=gradient asks the server, who holds all parts; leave out parts")
    if edge.defense.group > 1:
        raise NotApplicable("canaries on=gradient asks for one label per row, and mixed rows have several")
    step = torch.randint(1, max(2, edge.classes), (len(victims),), generator=draws).to(victims.y.device)
    pair = torch.stack([victims.y, (victims.y + step) % edge.classes])
    times = context.release_count.epochs
    views, sides = _returned(context, torch.where(coins.to(pair.device), pair[0], pair[1]), pair, times, draws)
    rows = torch.arange(times * len(victims)).view(times, -1)
    covered = context.certificate.covers == "labels"
    return Sending(
        views=views,
        rows=rows,
        present=sides[:, 0],
        absent=sides[:, 1],
        claim=context.certificate if covered else no_protection(),
        mechanism=context.recording.receipts[0].mechanism(context.release_count) if covered else None,
        shared="the lower segment learns, and with it what comes back for every row",
    )


def _returned(
    context: TrainedContext, labels: Tensor, pair: Tensor, times: int, draws: Generator
) -> tuple[list[View], Tensor]:
    """Send K images in `times` passes without training, and record the gradients that come back.

    `pair`, int64 [2, K], holds the two candidates for the used `labels` [K]. Returns the adversary's view of each pass,
    and the gradients, of F numbers, that are expected for either candidate, [times, 2, K, F].
    """
    edge, victims = deepcopy(context.model.edge).eval(), context.seed_data.victims
    upper, device = deepcopy(context.model.upper).eval(), victims.x.device
    seeds = torch.randint(2**31, (2,), generator=draws).tolist()
    own, expected = (Generator(device).manual_seed(seed) for seed in seeds)
    rounds = torch.arange(len(victims), device=device).view(-1, edge.lowers.copies, context.config.training.batch_size)
    silent, averaged = edge.defense.noiseless(), edge.protocol.gradient == "average"
    views, sides = [], []
    for time in range(times):
        transcript, either = Transcript(), []
        for number, rows in enumerate(rounds):
            # The server computes gradients at the release that it received, so the expected ones use it, too.
            recorded = transcript(edge, upper, victims.x[rows], labels[rows], own, number=number)
            either.append(_either_side(upper, recorded.sent.release.smashed, pair[:, rows], silent, averaged, expected))
        sides.append(torch.cat(either, 1).cpu())
        seen = transcript.views
        views.append(
            View(
                round=time,
                smashed=torch.cat([view.smashed for view in seen]),
                cut_gradient=torch.cat([view.cut_gradient for view in seen if view.cut_gradient is not None]),
            )
        )
    return views, torch.stack(sides)


def _either_side(
    upper: nn.Module, released: Tensor, pair: Tensor, defense: Defense, averaged: bool, draws: Generator
) -> Tensor:
    """Compute the gradients expected under the first and the second candidate label of each record, [2, M·B, F].

    The labels of all other records are assumed unknown; `released` is [M, B, ...] from M clients with B records each,
    and `pair` is int64 [2, M, B]. If `averaged`, all clients get the mean of all clients' gradients.
    """
    m, b = released.shape[:2]
    gradients = label_gradients(upper, released.detach().flatten(0, 1).float(), pair.flatten(1)) / b
    back = torch.stack([defense.on_gradient(side.view(released.shape), draws).flatten(2) for side in gradients])
    if averaged:
        middle, half = back.mean((0, 1)), (back[0] - back[1]) / (2 * m)
        back = torch.stack([middle + half, middle - half])
    return back.flatten(1, 2)
