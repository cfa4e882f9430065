"""The goal "labels": infers the label of each record from the gradients that cross a cut during training.

If labels are sent to the server, a client is the attacker and reads the returned gradients. In a U-shaped model, whose
clients keep their labels, the server is the attacker and reads what crosses both cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable, Scores, Session, known_to, require
from privkit.attacks.escalate import escalated
from privkit.attacks.fit import Stage
from privkit.attacks.goals.labels import LabelAttack, LabelObservation, controls
from privkit.attacks.outputs import scores_of
from privkit.attacks.scores.labels import cluster_accuracy, label_accuracy
from privkit.attacks.scores.leak import opposed
from privkit.audit.contained import is_own_part
from privkit.audit.defended import train_again
from privkit.audit.goals.context import AttackContext, better_than_chance, must_have_one_label, told_apart
from privkit.audit.goals.goal import AuditGoal, Cost, Timed
from privkit.audit.goals.label_adversary import Cut, known_rows, observed, of_places, other_labels, own_labels, party
from privkit.audit.goals.label_answers import Asked, best_cut
from privkit.audit.goals.trained import TrainedContext, must_get_gradients
from privkit.audit.probe import Rehearsal
from privkit.domains.base import several
from privkit.domains.tokens.domain import Tokens
from privkit.recording.read import Recording
from privkit.reports.schema import Row
from privkit.settings.config import AuditConfig
from privkit.shared.interval import Interval
from privkit.training import Round
from privkit.wire.channel import holds_all
from privkit.wire.transcript import Transcript

Stages = Callable[[str], Session]  # name -> the session of one client's attack on some rounds
Remembered = dict[int, Tensor]
"""Client -> ids of the records whose labels it knows, which stay the same in all epochs."""
Epoch = tuple[Tensor, Remembered]
"""The ids of the N records that each client sent in one epoch, [clients, N], and the records with known labels."""
_KEPT: dict[tuple[str, str, int | str, bool, str], Transcript] = {}  # at most one replayed epoch


def ask(context: AttackContext) -> Row:
    """Attack the gradients of every client, in recorded rounds or in a repeated training, and return the result row."""
    attack: LabelAttack = context.cell.attack.spec
    cuts, many = _mountable(context)
    texts = cuts == ("second",)
    checks = context.planted(lambda: controls(attack, context.cell.seed))
    context.begin()
    checkpoint, recorded, short = context.checkpoint(), context.rounds(), ""
    every, pooled = (recorded is None and attack.epoch == epochs for epochs in ("every", "pooled"))
    multiple, knows_own = several(context.seed_data.victims.y), "own_labels" in known_to(attack)
    pooled, regrouped = pooled and not knows_own, pooled and knows_own
    if recorded is None and isinstance(context, TrainedContext) and not (every or pooled):
        recorded = _repeated(context)
        recorded, short = of_places(recorded, many) if texts else (recorded, short)

    def mounted(session: Session) -> _Answered:
        saved = session.load() or {}

        def stage(name: str) -> Session:
            return Stage(session, saved, name)

        if recorded is not None:
            found, records = [_at_cuts(cuts, recorded, context, stage)], list[Tensor]()
        else:
            assert isinstance(context, TrainedContext)
            found, records = _each_epoch(cuts, context, stage)
            if not found:
                raise NotApplicable("the model was trained for 0 epochs, so no gradient came back")
        auc, by_epoch, (scores, truth, rounds) = best_cut(attack, cuts, found, records if pooled else None)
        positive = truth == attack.positive
        answers = context.told(scores, positive, rounds)
        if not multiple:
            answers |= named_accuracy(scores, truth, clusters=not texts)
        against = opposed(scores.values.double().cpu().numpy(), positive.cpu().numpy(), rounds.cpu().numpy())
        return _Answered(by_epoch, truth, answers, auc, against)

    # If an attack reads all epochs, each doubling would repeat the training of the model.
    doublings = context.config.escalate if recorded is not None and hasattr(attack, "epochs") else 0
    found, went = escalated(mounted, lambda one: better_than_chance(one.answers), checkpoint, most=doublings)
    by_epoch, truth, answers = found.by_epoch, found.truth, found.answers
    labeled = attack.mounting.labeled
    asker = party(context) if cuts == ("own",) else _both_cuts(found.auc)
    who = "the adversary" if asker else "each client"
    curve = tuple(told_apart(one, of == attack.positive, when)["auc"] for one, of, when in by_epoch) if every else ()
    checkpoint.remove()
    most = truth.bincount().max().item() / len(truth)
    notes = {
        went.sentence: bool(doublings and went.sentence),
        f"each record has {many} labels: the attack asked whether label {attack.positive} is among them": multiple,
        asker: bool(asker),
        found.against: bool(found.against),
        short: bool(short),
        f"{who} knows {labeled} labeled record{'s' * (labeled > 1)} of each class; these do not count": bool(labeled),
        f"the most frequent label's share, which needs no attack, is {most:.3f}": "label_accuracy" in answers,
        "each client knows its own labels, and attacks the label of the record that is mixed with its own": knows_own,
        "each epoch mixes a record with another one, so epochs cannot be pooled: the last one is read": regrouped,
        f"each record's scores in {len(by_epoch)} epochs are averaged": pooled and len(by_epoch) > 1,
        f"the attack ran in each of {len(curve)} epochs; the answers are from the last": every,
    }
    said = tuple(note for note, holds in notes.items() if holds)
    told = {"answers": answers, "auc_curve": curve, "checks": checks, "notes": said}
    return context.row.model_copy(update=told)


def _mountable(context: AttackContext) -> tuple[tuple[Cut, ...], int]:
    """The cuts at which an attack reads gradients, and the number of labels from which it chooses."""
    attack: LabelAttack = context.cell.attack.spec
    context.refuse()
    cuts: tuple[Cut, ...] = ("second", "first") if context.keeps_labels() else ("own",)
    splits = context.seed_data.splits
    many, domain = splits.classes, splits.domain
    if context.predicts_texts() and isinstance(domain, Tokens):
        if "tail" not in attack.needs:
            raise NotApplicable("it names one label per record, and here each place of a text has one: the next token")
        cuts, many = ("second",), len(domain.vocabulary)
    if attack.mounting.gradients and isinstance(context, TrainedContext) and cuts == ("own",):
        must_get_gradients(context)
    if cuts != ("own",) and isinstance(context, TrainedContext) and not holds_all(context.model.edge):
        raise NotApplicable("the server of a U-shape computes on all parts of a release; leave out --parts")
    if attack.mounting.labeled:
        must_have_one_label(context)
    if attack.positive >= many:
        raise NotApplicable(f"positive={attack.positive} is not a label: there are {many} classes")
    return cuts, many


@dataclass(frozen=True)
class _Answered:
    by_epoch: list[Asked]
    truth: Tensor
    answers: dict[str, Interval]
    auc: dict[Cut, float]
    against: str  # a sentence if rounds leak in opposite directions, from `opposed`


def _both_cuts(auc: Mapping[Cut, float]) -> str:
    """A sentence with the AUC at each cut of a U-shape.

    >>> _both_cuts({"second": 0.98, "first": 0.5}).partition(": ")[2]
    'AUC 0.980 at the second cut, 0.500 at the first cut; the row has the clearer'
    """
    told = ", ".join(f"{value:.3f} at the {cut} cut" for cut, value in auc.items())
    return f"the server of a U-shape was asked for the clients' labels: AUC {told}; the row has the clearer"


def named_accuracy(scores: Scores, labels: Tensor, *, clusters: bool = True) -> dict[str, Interval]:
    """The share of the N `labels` [N] that were inferred correctly; empty if the attack scores one label only.

    If `clusters`, also the share after the best renaming of labels; texts have too many different labels for this.
    """
    if scores.of_labels is None:
        return {}
    truth, guesses = labels.cpu().numpy(), scores.of_labels.argmax(1).cpu().numpy()
    right = {"label_accuracy": label_accuracy(truth, guesses)}
    return right | ({"cluster_accuracy": cluster_accuracy(truth, guesses)} if clusters else {})


def _at_cuts(
    cuts: Sequence[Cut], transcript: Transcript, context: AttackContext, stage: Stages, of_epoch: Epoch | None = None
) -> dict[Cut, Asked]:
    """Run the attack (see `asked`) at each cut where it can run; raises `NotApplicable` if there is no such cut."""
    found, reasons = dict[Cut, Asked](), list[NotApplicable]()
    for cut in cuts:
        try:
            found[cut] = asked(transcript, context, stage, of_epoch, cut)
        except NotApplicable as reason:
            reasons.append(reason)
    if not found:
        raise reasons[-1]
    return found


def asked(
    transcript: Transcript, context: AttackContext, stage: Stages, of_epoch: Epoch | None = None, cut: Cut = "own"
) -> Asked:
    """Run a label attack on every client, or on a U-shape's server; return the score, label and round of each record.

    `of_epoch` is None if only one epoch is attacked.
    """
    attack: LabelAttack = context.cell.attack.spec
    parts, of_labels = list[tuple[Tensor, ...]](), list[Tensor]()
    owned, rounds = own_labels(attack, transcript, cut)
    clients = len(owned)
    truths = other_labels(attack, transcript, context, clients) if "own_labels" in known_to(attack) else owned
    first = transcript.rounds[0].view.round
    for client, (own, truth) in enumerate(zip(owned, truths, strict=True)):
        known = known_rows(attack, own, rounds)
        if of_epoch is not None and attack.mounting.labeled:
            known = _again(known, of_epoch[0][client], of_epoch[1], client)
        observation = observed(transcript, context, client, own, known, cut)
        where = "" if cut == "own" else f", {cut} cut"
        if cut != "own":
            require(attack, observation)
            if attack.mounting.gradients and observation.views[0].cut_gradient is None:
                raise NotApplicable(f"no gradient was recorded at the {cut} cut")
        found = attack.run(observation, context.generator(), stage(f"round {first}, client {client}{where}"))
        scores = scores_of(attack, found)
        # Two kinds of records are not scored: those with known labels, and those that are mixed with no other record.
        asked_for = ~torch.isin(scores.examples, known) & (truth[scores.examples] >= 0)
        judged, values = scores.examples[asked_for], scores.values[asked_for]
        batch = rounds[judged] * clients + client
        parts.append((values, client * len(own) + judged, truth[judged], batch))
        if scores.of_labels is not None:
            of_labels.append(scores.of_labels[asked_for])
    values, examples, true, batches = (torch.cat(column) for column in zip(*parts, strict=True))
    positive = true == attack.positive
    if bool(positive.all()) or not bool(positive.any()):
        raise NotApplicable(f"all or none of the {len(positive)} rows have label {attack.positive}: ask for another")
    scored = Scores(values=values, examples=examples, of_labels=torch.cat(of_labels) if of_labels else None)
    return scored, true, batches


def _transcript(attack: LabelAttack, wanted: Callable[[int], bool] | None = None) -> Transcript:
    return Transcript(wanted, inputs="lower" in known_to(attack))


def _repeated(context: TrainedContext) -> Transcript:
    """Repeat the training, record the attacked epoch, and cache the record for the next attack on this model."""
    attack: LabelAttack = context.cell.attack.spec
    reader = attack.name if is_own_part(attack) else ""  # a user's own attack may change the transcript in place
    key = (str(context.folder.origin), context.cell.model_id, attack.epoch, "lower" in known_to(attack), reader)
    if key not in _KEPT:
        steps, epochs = context.steps, context.config.budget.epochs
        asked_for = -1 if isinstance(attack.epoch, str) else attack.epoch
        epoch = asked_for if asked_for >= 0 else epochs + asked_for
        if not 0 <= epoch < epochs:
            raise NotApplicable(f"epoch={attack.epoch} is none of the {epochs} epochs of training")
        transcript = _transcript(attack, lambda number: number // steps == epoch)
        train_again(context.config, context.cell, context.seed_data, transcript, context.progress)
        _KEPT.clear()
        _KEPT[key] = transcript
    return _KEPT[key]


def _each_epoch(
    cuts: Sequence[Cut], context: TrainedContext, stage: Stages
) -> tuple[list[dict[Cut, Asked]], list[Tensor]]:
    """Repeat the training and run a label attack after each epoch, so that only one epoch's rounds are in memory.

    Returns, for each epoch, the attack's results at each cut and the ids of the scored records. A client knows its own
    records' ids, even if the records are augmented.
    """
    transcript, steps, remembered = _transcript(context.cell.attack.spec), context.steps, Remembered()
    found, records = list[dict[Cut, Asked]](), list[Tensor]()

    def play(*given: Any, number: int = 0, **options: Any) -> Round:
        played = transcript(*given, number=number, **options)
        if (number + 1) % steps == 0:
            of_clients = context.order(number // steps).transpose(0, 1).flatten(1).cpu()
            found.append(_at_cuts(cuts, transcript, context, stage, (of_clients, remembered)))
            scored, *_ = next(iter(found[-1].values()))
            records.append(of_clients.flatten()[scored.examples.cpu()])
            transcript.rounds.clear()
        return played

    train_again(context.config, context.cell, context.seed_data, play, context.progress)
    return found, records


def _again(known: Tensor, records: Tensor, remembered: Remembered, client: int) -> Tensor:
    """Find a client's records with known labels among the `records` [N] of a later epoch; return their indices.
    The first call, with the indices `known` in the first epoch, fills `remembered`.

    >>> before: Remembered = {}
    >>> sent = torch.tensor([5, 8]), torch.tensor([8, 5])
    >>> [_again(torch.tensor([0]), records, before, 7).tolist() for records in sent]
    [[0], [1]]
    """
    return torch.isin(records, remembered.setdefault(client, records[known])).nonzero().flatten()


class _Labels(AuditGoal):
    escalates: ClassVar[bool] = True

    ask = staticmethod(ask)

    def refuse_recording(self, attack: LabelAttack, source: Recording) -> None:
        described = source.description
        if described.clients > 1 or described.mixed > 1:
            raise NotApplicable(f"{attack.name} reads the rounds of one client, and several were recorded together")
        if source.labels is None:
            raise NotApplicable("no true label was recorded, so nothing can be scored; record truth.labels")
        if attack.mounting.gradients and source.views[0].cut_gradient is None and not source.second:
            raise NotApplicable(
                f"{attack.name} reads the gradient that comes back, and none was recorded; record training rounds in "
                "which the release needs a gradient, since a frozen lower segment gets none"
            )
        if {"lower", "auxiliary", "own_labels"} & known_to(attack):
            raise NotApplicable(f"{attack.name} needs a client's images, weights or labels, which are not recorded")

    def rehearsed(self, context: Rehearsal, held: frozenset[str]) -> LabelObservation | None:
        """The observation of one client, or of the server at one cut; None for attacks without training."""
        attack: LabelAttack = context.cell.attack.spec
        if not hasattr(attack, "epochs"):
            return None
        (cut, *_), many = _mountable(context)
        transcript = _transcript(attack)
        train_again(context.config, context.cell, context.seed_data, transcript, context.progress)
        if context.predicts_texts():
            transcript, _ = of_places(transcript, many)
        owned, rounds = own_labels(attack, transcript, cut)
        return observed(transcript, context, 0, owned[0], known_rows(attack, owned[0], rounds), cut)

    def cost(self, attack: LabelAttack, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> Cost:
        """Estimate the cost of repeating the training and attacking each client, in one epoch or all, at all cuts.

        An attack that reads gradients learns from all records. Other attacks and the controls learn only from the few
        records with known labels.
        """
        protocol, epochs = config.protocol.spec, config.budget.epochs
        times = protocol.active * (2 if protocol.labels == "kept" else 1)
        times *= epochs if attack.epoch in ("pooled", "every") else 1
        larger = sizes["private"] / timed.records if attack.mounting.gradients else 1.0
        return Cost(seconds=timed.seconds * times * larger, controls=2 * timed.seconds, steps=sizes["rounds"])


GOAL = _Labels()
