"""Whose label is it? Attacks on the gradient that comes back, over one epoch of the very training that is reported."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable, Scores, known_to
from privkit.attacks.goals.labels import LabelAttack, LabelObservation, controls
from privkit.audit.defended import replay
from privkit.audit.goals.context import AttackContext, must_get_gradients, must_send
from privkit.domains.labels import several
from privkit.domains.partition import rounds_an_epoch
from privkit.reports.schema import Row
from privkit.wire.transcript import Recorder


def ask(context: AttackContext) -> Row:
    """Train the model over again under a recorder, and attack what came back to every client in one epoch.

    Raises:
        NotApplicable: if nothing is sent or comes back, or the label that is asked for does not exist.
    """
    attack: LabelAttack = context.cell.attack.spec
    seed_data = context.seed_data
    must_send(context)
    must_get_gradients(context)
    if attack.positive >= seed_data.splits.classes:
        raise NotApplicable(f"positive={attack.positive} is no label: there are {seed_data.splits.classes} classes")
    checks = context.controls(lambda: controls(attack, context.cell.seed))
    context.begin()
    scores, positive, rounds = asked(attack, _recorded(attack, context), context)
    metrics = context.told(scores, positive, rounds)
    many = seed_data.splits.classes
    asked_for = f"each record has {many} labels: the attack asked whether it has number {attack.positive}"
    notes = (asked_for,) if several(seed_data.victims.y) else ()
    return context.row.model_copy(update={"answers": metrics, "checks": checks, "notes": notes})


def asked(attack: LabelAttack, recorder: Recorder, context: AttackContext) -> tuple[Scores, Tensor, Tensor]:
    """Scores, truth and round of every row of every client that the attack was asked about."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    clients = len(recorder.rounds[0].received) if recorder.rounds else 0
    if not clients or recorder.rounds[0].received[0].cut_gradient is None:
        raise NotApplicable("no gradient comes back to a client of its own: images are mixed before its lower segment")
    declared = known_to(attack)
    upper = context.model.upper if "upper" in declared else None
    for client in range(clients):
        views = recorder.received(client)
        truth = torch.cat([kept.labels.unflatten(0, (clients, -1))[client] for kept in recorder.rounds])
        truth = one_of(truth, attack.positive)
        rounds = torch.arange(len(views)).repeat_interleave(len(views[0].smashed))
        known = _first_positives(truth == attack.positive, rounds) if "known_rows" in declared else truth[:0]
        observation = LabelObservation(
            image_shape=context.seed_data.splits.domain.shape,
            batch_size=context.round_size,
            views=views,
            upper=upper,
            known_rows=known if len(known) else None,
            known_labels=truth[known] if len(known) else None,
        )
        scores = attack.run(observation, context.generator())
        asked_for = ~torch.isin(scores.examples, known)  # what is known is not asked
        judged, values = scores.examples[asked_for], scores.values[asked_for]
        parts.append((values, truth[judged] == attack.positive, rounds[judged] * clients + client))
    values, positive, batches = (torch.cat(column) for column in zip(*parts, strict=True))
    if bool(positive.all()) or not bool(positive.any()):
        raise NotApplicable(f"all or none of the {len(positive)} rows have label {attack.positive}: ask for another")
    return Scores(values=values, examples=torch.arange(len(values))), positive, batches


def one_of(labels: Tensor, positive: int) -> Tensor:
    """One label a record, [N]; of several labels [N, L] whether the record has the positive one, else another number.

    >>> one_of(torch.tensor([[0, 1, 0], [1, 0, 1]]), positive=1).tolist()
    [1, 2]
    """
    if not several(labels):
        return labels
    return torch.where(labels[:, positive] == 1, positive, positive + 1)


def _recorded(attack: LabelAttack, context: AttackContext) -> Recorder:
    """The epoch's rounds; those of the last model are kept for the next attack that asks for its labels."""
    key = (str(context.folder.path), context.cell.model_id, attack.epoch)
    if key not in _KEPT:
        recorder = Recorder(_wanted(attack, context))
        replay(context.config, context.cell, context.seed_data, recorder, context.progress)
        _KEPT.clear()
        _KEPT[key] = recorder
    return _KEPT[key]


_KEPT: dict[tuple[str, str, int], Recorder] = {}
"""One replayed epoch at most."""


def _wanted(attack: LabelAttack, context: AttackContext) -> Callable[[int], bool]:
    """Whether a round is of the epoch that the attack reads."""
    protocol, config = context.model.edge.protocol, context.config
    rounds = rounds_an_epoch(len(context.seed_data.splits.private), protocol.clients, config.training.batch_size)
    steps, epochs = rounds * (protocol.clients // protocol.active), config.budget.epochs
    epoch = attack.epoch if attack.epoch >= 0 else epochs + attack.epoch
    if not 0 <= epoch < epochs:
        raise NotApplicable(f"epoch={attack.epoch} is none of the {epochs} epochs of training")
    return lambda number: number // steps == epoch


def _first_positives(positive: Tensor, rounds: Tensor) -> Tensor:
    """The first positive row of every round that has one."""
    rows = positive.nonzero().flatten()
    if not len(rows):
        return rows
    first = torch.ones(len(rows), dtype=torch.bool)
    first[1:] = rounds[rows][1:] != rounds[rows][:-1]
    return rows[first]
