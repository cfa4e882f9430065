"""The true label of each attacked row: its own record's, or that of the other record in its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.labels import LabelAttack
from privkit.audit.goals.context import AttackContext
from privkit.audit.goals.label_adversary import Cut
from privkit.domains.base import several
from privkit.wire.transcript import Transcript


def own_labels(attack: LabelAttack, transcript: Transcript, cut: Cut) -> tuple[Tensor, Tensor]:
    """The label of each row of each client, [clients, N], and the round of each row, [N]."""
    clients = len(transcript.rounds[0].received) if transcript.rounds else 0
    read = transcript.rounds[0].received[0].cut_gradient is not None if clients else False
    if not clients or not (read or cut != "own" or not attack.mounting.gradients):
        raise NotApplicable("no gradient comes back to a client of its own: images are mixed before its lower segment")
    labels = [one_of(kept.labels, attack.positive).unflatten(0, (clients, -1)) for kept in transcript.rounds]
    return torch.cat(labels, 1), torch.arange(len(labels)).repeat_interleave(labels[0].shape[1])


def other_labels(attack: LabelAttack, transcript: Transcript, context: AttackContext, clients: int) -> Tensor:
    """Label of the other record that is mixed with each row, [clients, N]; −1 for a record that is alone.

    Of a mixing group it is the other member's; without mixing, two clients' averaged gradient has one other record.

    Raises:
        NotApplicable: if no other record, or more than one, is in a message's gradient.
    """
    group, averaged = transcript.rounds[0].view.mixed, context.config.protocol.spec.gradient == "average"
    if group != 2 and not (group == 1 and clients == 2 and averaged):
        found = f"mixes groups of {group}" if group > 1 else "mixes no two clients' records"
        raise NotApplicable(
            f"{attack.name} asks for the label of the one other record in a gradient, but this run {found}; use a "
            "defense with group=2, or gradient=average with clients=2"
        )
    parts = []
    for kept in transcript.rounds:
        rows = torch.arange(len(kept.labels))
        pairs = kept.members if group == 2 else rows.view(2, -1).T
        pairs = pairs[(pairs >= 0).all(1)]
        labels = one_of(kept.labels, attack.positive)
        other = torch.full((len(rows),), -1).scatter(0, pairs.flatten(), labels[pairs.flip(1).flatten()])
        parts.append(other.unflatten(0, (clients, -1)))
    return torch.cat(parts, 1)


def one_of(labels: Tensor, positive: int) -> Tensor:
    """One label a record, [N]; of several labels [N, L], `positive` if the record has it, otherwise another number.

    >>> one_of(torch.tensor([[0, 1, 0], [1, 0, 1]]), positive=1).tolist()
    [1, 2]
    """
    if not several(labels):
        return labels
    return torch.where(labels[:, positive] == 1, positive, positive + 1)
