"""What a label attack observes. The adversary is a client, a U-shape's server, or some parties of a vertical split."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable, View, known_to
from privkit.attacks.goals.labels import LabelAttack, LabelObservation, first_of_each
from privkit.attacks.scores.tokens import PADDING
from privkit.audit.goals.context import AttackContext
from privkit.audit.goals.trained import TrainedContext
from privkit.defenses.split_parts import held_parts
from privkit.domains.base import several
from privkit.models.vertical import Parties, parties_of
from privkit.shared.own_records import OF_THE_DATASET
from privkit.training import Clients
from privkit.training.losses import next_tokens
from privkit.wire.channel import HeldParts
from privkit.wire.transcript import Transcript

Cut = Literal["own", "second", "first"]
"""Where gradients are read: at a client's own segment, or by the server of a U-shape at one of its cuts."""
_MOST_SCORES = 2**28  # largest number of scores, one per word and position: a gigabyte, which the audit copies thrice


def observed(
    transcript: Transcript, context: AttackContext, client: int, own: Tensor, known: Tensor, cut: Cut
) -> LabelObservation:
    """What one client, or the server of a U-shape, observes, with only the fields that the attack declares. `own` [N]
    are the labels of the client's records, and `known` the indices of records whose labels the attack is given."""
    declared, rounds, data = known_to(context.cell.attack.spec), transcript.rounds, context.seed_data
    clients, same_classes = len(rounds[0].received), context.config.auxiliary in OF_THE_DATASET
    common = LabelObservation(
        image_shape=data.splits.domain.shape,
        batch_size=context.round_size,
        known_rows=known if len(known) else None,
        known_labels=own[known] if len(known) else None,
        label_shares=context.label_shares() if "label_shares" in declared and not several(data.victims.y) else None,
        other_images=data.own_images if "other_images" in declared else None,
        other_labels=data.own_labels if "other_labels" in declared and same_classes else None,
    )
    if cut != "own":
        views, sent = (transcript.of_server(client, at) for at in (cut, "first"))
        rows = torch.cat([view.smashed for view in sent]) if "releases" in declared else None
        tail = context.tail() if "tail" in declared and isinstance(context, TrainedContext) else None
        return replace(common, views=views, releases=rows, tail=tail)
    model = context.model if isinstance(context, TrainedContext) else None
    images = [kept.images.unflatten(0, (clients, -1))[client] for kept in rounds if kept.images is not None]
    upper = None
    if "upper" in declared:  # a client's gradient has also passed the defense, which the client knows
        upper = model.edge.behind_lower(model.upper) if model else context.upper()
    seen = replace(
        common,
        views=transcript.received(client),
        upper=upper,
        lower=model.edge.lowers.copy(client) if model and "lower" in declared else None,
        lower_weights=[kept.own_lower(client) for kept in rounds] if "lower" in declared else None,
        auxiliary=torch.cat(images) if "auxiliary" in declared else None,
        own_labels=own if "own_labels" in declared else None,
    )
    parties = None if model is None or not model.edge.held else parties_of(model.edge.lowers)
    return seen if model is None or parties is None else to_parties(seen, parties, model.edge)


def of_places(transcript: Transcript, words: int) -> tuple[Transcript, str]:
    """Split texts in recorded rounds into one example for each position; its label is the next token, −1 for padding.

    Scores for all `words` words of the vocabulary at all positions may not fit into memory, so only the first rounds
    are used, up to `_MOST_SCORES` scores. The returned sentence says if rounds are left out.
    """
    made, left = Transcript(), _MOST_SCORES // words
    for kept in transcript.rounds:
        following = next_tokens(kept.labels).flatten()
        if made.rounds and len(following) > left:
            read = f"the first {len(made.rounds)} of {len(transcript.rounds)} rounds are read"
            return made, f"{read}, by all {words} words"
        left -= len(following)
        rows = [
            replace(view, smashed=view.smashed.flatten(0, 1), cut_gradient=view.cut_gradient.flatten(0, 1))
            for view in kept.returned
            if view.cut_gradient is not None
        ]
        labels = torch.where(following == PADDING, -1, following)
        made.rounds.append(replace(kept, returned=tuple(rows), labels=labels))
    return made, ""


def to_parties(seen: LabelObservation, parties: Parties, edge: Clients) -> LabelObservation:
    """Reduce an observation of a vertically split model to what the attacking parties see: their own columns, their own
    outputs, and the gradients of these outputs, but not the server's `upper` segment."""
    lower, weights = seen.lower, seen.lower_weights
    numbers = [number for number, name in enumerate(edge.defense.storages) if name in edge.held]

    def own(view: View) -> View:
        cut = view.cut_gradient if view.cut_gradient is None else held_parts(view.cut_gradient, edge.defense, edge.held)
        return replace(view, smashed=held_parts(view.smashed, edge.defense, edge.held), cut_gradient=cut)

    def known(records: Tensor | None) -> Tensor | None:
        return None if records is None else parties.of(records, numbers)

    return replace(
        seen,
        views=[own(view) for view in seen.views],
        lower=None if lower is None else nn.Sequential(lower, HeldParts(edge)),
        lower_weights=weights and [{f"0.{name}": weight for name, weight in state.items()} for state in weights],
        auxiliary=known(seen.auxiliary),
        other_images=known(seen.other_images),
        upper=None,
    )


def known_rows(attack: LabelAttack, own: Tensor, rounds: Tensor) -> Tensor:
    """Indices of the examples whose labels the adversary knows, int64; empty if the attack uses no known labels.

    The known examples are a few of each label in `own` [N]. If the attack asks for no examples of each label, they are
    the first positive example of each round; `rounds` [N] are the examples' rounds.
    """
    if "known_rows" not in known_to(attack):
        return own[:0]
    if not attack.mounting.labeled:
        return _first_positives(own == attack.positive, rounds)
    return first_of_each(own, attack.mounting.labeled)


def _first_positives(positive: Tensor, rounds: Tensor) -> Tensor:
    rows = positive.nonzero().flatten()
    if not len(rows):
        return rows
    first = torch.ones(len(rows), dtype=torch.bool)
    first[1:] = rounds[rows][1:] != rounds[rows][:-1]
    return rows[first]


def party(context: AttackContext) -> str:
    """The sentence that names the attacking parties of a vertical split; empty for other splits."""
    edge = context.model.edge if isinstance(context, TrainedContext) else None
    if edge is None or parties_of(edge.lowers) is None:
        return ""
    who = " and ".join(edge.held) if edge.held else "all parties together"
    return f"the adversary is {who} of a vertical split, with its columns, its outputs and the gradients of these"


def own_labels(attack: LabelAttack, transcript: Transcript, cut: Cut) -> tuple[Tensor, Tensor]:
    """The labels of the N records that each client sent, [clients, N], and the round in which each was sent, [N]."""
    clients = len(transcript.rounds[0].received) if transcript.rounds else 0
    read = transcript.rounds[0].received[0].cut_gradient is not None if clients else False
    if not clients or not (read or cut != "own" or not attack.mounting.gradients):
        raise NotApplicable("no client gets a gradient of its own images: they are mixed before the lower segment")
    labels = [one_of(kept.labels, attack.positive).unflatten(0, (clients, -1)) for kept in transcript.rounds]
    return torch.cat(labels, 1), torch.arange(len(labels)).repeat_interleave(labels[0].shape[1])


def other_labels(attack: LabelAttack, transcript: Transcript, context: AttackContext, clients: int) -> Tensor:
    """For each sent record, the label of the other client's record in the same mixture, [clients, N]; −1 if there is
    none.

    Either the defense mixes the records of two clients, or two clients get the mean of their gradients.
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
    """Reduce several labels per record, [N, L], to one: `positive` if the record has it, otherwise `positive + 1`."""
    if not several(labels):
        return labels
    return torch.where(labels[:, positive] == 1, positive, positive + 1)
