"""Whose label is it? Attacks on the gradient that comes back, over one epoch of the very training that is reported."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, Scores, View
from privkit.attacks.labels.label_leak import LabelKnowledge
from privkit.audit.defended import replay
from privkit.audit.goals.context import AttackContext, must_get_gradients, must_send, planted
from privkit.domains.partition import rounds_an_epoch
from privkit.reports.schema import Check, Row
from privkit.wire.transcript import Recorder

CONTROL_ROUNDS, CONTROL_ROWS = 8, 100


def ask(context: AttackContext) -> Row:
    """Train the model over again under a recorder, and attack what came back to every client in one epoch.

    Raises:
        NotApplicable: if nothing is sent or comes back, or the label that is asked for does not exist.
    """
    attack, seed_data = context.attack, context.seed_data
    must_send(context)
    must_get_gradients(context)
    if attack.positive >= seed_data.splits.classes:
        raise NotApplicable(f"positive={attack.positive} is no label: there are {seed_data.splits.classes} classes")
    gates = context.controls(lambda: controls(attack, context.cell.seed))
    context.begin()
    scores, positive, rounds = asked(attack, _recorded(context), context)
    found = context.told(scores, positive, rounds)
    return context.row.model_copy(update={"answers": found, "gates": gates})


def asked(attack, recorder: Recorder, context: AttackContext) -> tuple[Scores, Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Scores, truth and round of every row of every client that the attack was asked about."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    clients = len(recorder.rounds[0].received) if recorder.rounds else 0
    if not clients or recorder.rounds[0].received[0].cut_gradient is None:
        raise NotApplicable("no gradient comes back to a client of its own: images are mixed before its lower segment")
    upper = context.model.upper if "upper" in attack.needs else None
    for client in range(clients):
        views = recorder.received(client)
        truth = torch.cat([kept.labels.view(clients, -1)[client] for kept in recorder.rounds])
        rounds = torch.arange(len(views)).repeat_interleave(len(views[0].smashed))
        known = _first_positives(truth == attack.positive, rounds)
        knowledge = LabelKnowledge(
            image_shape=context.seed_data.splits.domain.shape,
            batch_size=context.round_size,
            upper=upper,
            known_rows=known if len(known) else None,
            known_labels=truth[known] if len(known) else None,
        )
        found = attack.run(views, knowledge, context.generator())
        judged = found.examples
        values = found.values
        if getattr(attack, "reference", "mean") == "labeled":  # what is known is not asked
            asked_for = ~torch.isin(judged, known)
            judged, values = judged[asked_for], values[asked_for]
        parts.append((values, truth[judged] == attack.positive, rounds[judged] * clients + client))
    values, positive, batches = (torch.cat(column) for column in zip(*parts, strict=True))
    if bool(positive.all()) or not bool(positive.any()):
        raise NotApplicable(f"all or none of the {len(positive)} rows have label {attack.positive}: ask for another")
    return Scores(values=values, examples=torch.arange(len(values))), positive, batches


def controls(attack, seed: int) -> tuple[Check, ...]:  # type: ignore[no-untyped-def]
    """A linear server that gave the gradients of two unequally likely labels; and gradients that are noise."""
    draws = Generator().manual_seed(seed)
    upper = nn.Linear(16, max(2, attack.positive + 1))
    with torch.no_grad():
        upper.weight.copy_(torch.randn(upper.weight.shape, generator=draws) / 16)
        upper.bias.zero_()
        upper.bias[attack.positive] = -2.0  # so that its rows have the longer gradients
    positive = torch.rand(CONTROL_ROUNDS, CONTROL_ROWS, generator=draws) < 0.6
    labels = torch.where(positive, attack.positive, (attack.positive + 1) % upper.out_features)
    smashed = torch.randn(CONTROL_ROUNDS, CONTROL_ROWS, 16, generator=draws)
    given = smashed.clone().requires_grad_()
    nn.functional.cross_entropy(upper(given.flatten(0, 1)), labels.flatten(), reduction="sum").backward()
    assert given.grad is not None
    known = torch.arange(len(positive)) * CONTROL_ROWS + positive.int().argmax(1)
    knowledge = LabelKnowledge(
        image_shape=(1, 4, 4),
        batch_size=CONTROL_ROWS,
        upper=upper,
        known_rows=known,
        known_labels=labels.flatten()[known],
    )
    noise = torch.randn(given.grad.shape, generator=draws)
    found = []
    for gradient in (given.grad / CONTROL_ROWS, noise):
        views = [
            View(round=number, smashed=rows, cut_gradient=back)
            for number, (rows, back) in enumerate(zip(smashed, gradient, strict=True))
        ]
        found.append(attack.run(views, knowledge, Generator().manual_seed(seed)))
    truth = positive.flatten()[found[0].examples]
    return planted(found[0], truth, found[1], truth)


def _recorded(context: AttackContext) -> Recorder:
    """The epoch's rounds; those of the last model are kept for the next attack that asks for its labels."""
    key = (str(context.folder.path), context.cell.model_id, context.attack.epoch)
    if key not in _KEPT:
        recorder = Recorder(_wanted(context))
        replay(context.config, context.cell, context.seed_data, recorder, context.progress)
        _KEPT.clear()
        _KEPT[key] = recorder
    return _KEPT[key]


_KEPT: dict[tuple[str, str, int], Recorder] = {}
"""One replayed epoch at most."""


def _wanted(context: AttackContext) -> Callable[[int], bool]:
    """Whether a round is of the epoch that the attack reads."""
    protocol, config = context.model.edge.protocol, context.config
    rounds = rounds_an_epoch(len(context.seed_data.splits.private), protocol.clients, config.training.batch_size)
    steps, epochs = rounds * (protocol.clients // protocol.active), config.budget.epochs
    epoch = context.attack.epoch if context.attack.epoch >= 0 else epochs + context.attack.epoch
    if not 0 <= epoch < epochs:
        raise NotApplicable(f"epoch={context.attack.epoch} is none of the {epochs} epochs of training")
    return lambda number: number // steps == epoch


def _first_positives(positive: Tensor, rounds: Tensor) -> Tensor:
    """The first positive row of every round that has one."""
    rows = positive.nonzero().flatten()
    if not len(rows):
        return rows
    first = torch.ones(len(rows), dtype=torch.bool)
    first[1:] = rounds[rows][1:] != rounds[rows][:-1]
    return rows[first]
