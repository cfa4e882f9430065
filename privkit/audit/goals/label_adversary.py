"""What a label attack observes (as a client, a U-shape's server or some parties), and how its answers are combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable, Scores, View, known_to
from privkit.attacks.goals.labels import LabelAttack, LabelObservation, first_of_each
from privkit.attacks.scores.leak import pooled_auc
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
_CONTRADICTS = -0.3  # below this correlation, the scores of two epochs count as having opposite signs
Asked = tuple[Scores, Tensor, Tensor]
"""Scores of records, counted client after client; the label of each record; and its round."""


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

    The scores of all `words` words at all positions may not fit into memory, so only the first rounds are used, up to
    `_MOST_SCORES` scores. The returned sentence says if rounds are left out.
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

    They are a few examples of each label in `own` [N]. If the attack asks for none of each label, they are the first
    positive example of each round; `rounds` [N] are the examples' rounds.
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
    """The label of the other client's record in the mixture of each sent record, [clients, N]; −1 if there is none.

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


def best_cut(
    attack: LabelAttack, cuts: Sequence[Cut], found: Sequence[dict[Cut, Asked]], records: list[Tensor] | None
) -> tuple[dict[Cut, float], list[Asked], Asked]:
    """Return the AUC at each cut of a U-shape and, for the best cut, the scores of each epoch and their average.

    The best cut has the largest AUC of the averaged scores. If only one label is scored, scores may have either sign,
    and the AUC farthest from 1/2 counts. `records` holds the ids of each epoch's records; None uses the last epoch
    only.
    """
    said = {cut: [one[cut] for one in found] for cut in cuts if all(cut in one for one in found)}
    if not said:
        raise NotApplicable(f"{attack.name} gave answers in some epochs only, at either cut")
    whole = {cut: one[-1] if records is None else _pooled(one, records) for cut, one in said.items()}
    auc = {
        cut: pooled_auc(scores.values.double().cpu().numpy(), (of == attack.positive).cpu().numpy()).auc.value
        for cut, (scores, of, _) in whole.items()
    }
    signed = {cut: scores.of_labels is not None for cut, (scores, *_) in whole.items()}
    best = max(auc, key=lambda cut: auc[cut] if signed[cut] else abs(auc[cut] - 0.5))
    return auc, said[best], whole[best]


def _pooled(epochs: list[Asked], records: list[Tensor]) -> Asked:
    """Average the scores over epochs for each record of the last epoch, after standardizing the scores of each epoch.

    An epoch whose scores contradict the earlier ones is negated: some attacks do not know the sign of their scores.
    """
    last, labels, rounds = epochs[-1]
    if len(epochs) == 1:
        return epochs[-1]
    of_labels = [scores.of_labels for scores, *_ in epochs if scores.of_labels is not None]
    pooled = Scores(
        values=_means(_turned([scores.values for scores, *_ in epochs], records), records),
        examples=last.examples,
        of_labels=_means(of_labels, records) if of_labels else None,
    )
    return pooled, labels, rounds


def _turned(epochs: list[Tensor], records: list[Tensor]) -> list[Tensor]:
    """Negate the scores of each epoch whose correlation with the mean of the earlier epochs is below `_CONTRADICTS`.

    >>> scores, same = torch.tensor([0.0, 1.0, 3.0]), [torch.arange(3), torch.arange(3)]
    >>> _turned([scores, -2 * scores], same)[1].tolist()
    [0.0, 2.0, 6.0]
    """
    turned = epochs[:1]
    for number in range(1, len(epochs)):
        values, of = epochs[number].double(), records[number]
        last = [*records[:number], of]  # `_means` returns values for the records of its last epoch
        before = _means([*turned, torch.zeros_like(epochs[number])], last)
        away, ahead = values - values.mean(), before - before.mean()
        alike = float((away * ahead).sum() / (away.norm() * ahead.norm()).clamp_min(1e-300))
        turned.append(-epochs[number] if alike < _CONTRADICTS else epochs[number])
    return turned


def _means(epochs: list[Tensor], records: list[Tensor]) -> Tensor:
    """The mean over epochs of each record's standardized values, [N] or [N, L], for the N records of the last epoch."""
    count = 1 + int(torch.cat(records).max())
    sums, times = epochs[-1].new_zeros(count, *epochs[-1].shape[1:], dtype=torch.float64), torch.zeros(count)
    for values, of in zip(epochs, records, strict=True):
        values = values.double()
        sums.index_add_(0, of, (values - values.mean()) / values.std().clamp_min(1e-300))
        times += of.bincount(minlength=count)
    last = records[-1]
    return sums[last] / times[last].view(-1, *[1] * (sums.ndim - 1))
