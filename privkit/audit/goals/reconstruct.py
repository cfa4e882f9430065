"""The goal "reconstruct": compares guesses with the truth, constant guesses and the attack's untrained start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log2
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privkit.attacks.base import NotApplicable, Session, known_to, threat_model
from privkit.attacks.escalate import escalated
from privkit.attacks.goals.control_cast import CONTROL_IMAGES, as_control, played_by
from privkit.attacks.goals.control_clients import Defended
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, Reconstruction, match
from privkit.attacks.goals.reconstruct_controls import SHORTER, fails, wins
from privkit.attacks.outputs import guesses_of
from privkit.attacks.scores.order import equal_tokens
from privkit.audit import scoring
from privkit.audit.defended import untrained
from privkit.audit.goals.context import AttackContext, must_have_one_label, must_read
from privkit.audit.goals.goal import AuditGoal, Cost, Timed
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.order_scores import arrangement_scores, true_arrangement
from privkit.audit.probe import Rehearsal
from privkit.audit.scoring import by_pattern, cell_findings, own_match
from privkit.audit.seed_data import floor_guesses
from privkit.domains.base import Batch, several
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.files.arrays import write_arrays
from privkit.recording.read import Recording
from privkit.reports.columns import START
from privkit.reports.schema import Check, Row
from privkit.reports.strongest import distance, finished_grade
from privkit.run.records import GUESSES, PICTURES
from privkit.settings.config import AuditConfig
from privkit.shared.interval import Interval
from privkit.shared.measures import CLASS_MEAN
from privkit.shared.own_records import OF_THE_DATASET
from privkit.shared.seeds import derive
from privkit.wire.channel import CountingSession, Queries
from privkit.wire.hijack import HONEST_ROUNDS, LiveClients, serve

SHOWN = 8  # number of records of each result that the report shows
_CLOSEST = 5  # number of table columns that a note names


def ask(context: AttackContext) -> Row:
    """Attack the recorded messages, score the guesses, and return the result row."""
    attack: ImageAttack = context.cell.attack.spec
    seed_data, size, mounting = context.seed_data, context.round_size, attack.mounting
    must_be_mountable(context)
    members = context.recording.members[: len(context.recording.members) // mounting.passes]
    seats = members >= 0
    victims = seed_data.victims[members[seats]] if len(seed_data.victims) else seed_data.victims
    domain, looks = victims.domain, seed_data.perception
    rows = members[seats].cpu().numpy()  # guesses have the order of the release, and mixing moves records
    guesses = {
        name: {alignment: {metric: values[rows] for metric, values in found.items()} for alignment, found in by.items()}
        for name, by in seed_data.guesses.items()
    }
    floors = dict(seed_data.floors)
    if mounting.start is not None:  # the untrained start comes first: it soon shows whether the attack is possible
        untaught = mounting.start.run(observation_for(context, known_to(mounting.start)), context.generator()).images
        if len(victims):
            guesses[START] = scoring.scored(domain, victims.x, untaught[seats], size, looks, victims.y)
            floors[START] = scoring.summarise(guesses[START], looks)
    checks = _controls(attack, context)

    context.begin()
    checkpoint = context.checkpoint()
    known = known_to(attack)
    alone = {name: found["unaligned"] for name, found in guesses.items()}

    def mounted(session: Session) -> _Outcome:
        observation = observation_for(context, known)
        queries = observation.query if isinstance(observation.query, Queries) else None
        counted = session if queries is None else CountingSession(session, queries)
        found = attack.run(observation, context.generator(), counted)
        result = guesses_of(attack, found, len(members), seed_data.splits.domain.shape)
        scoring.check_guesses(attack.name, seed_data.splits.domain, result.images)
        if not len(victims):
            return _Outcome(result, observation)
        result = replace(result, images=result.images[seats])
        scores = scoring.scored(domain, victims.x, result.images, size, looks, victims.y)
        closer = scoring.ahead(scores["unaligned"], alone, scoring.directions(looks))
        row = context.row.model_copy(update={"recovered": scoring.summarise(scores, looks), "floors": floors})
        return _Outcome(result, observation, scores, row.model_copy(update={"ahead": closer}))

    most = context.config.escalate if len(victims) and not mounting.ignores_views else 0
    outcome, went = escalated(mounted, _judged, checkpoint, most=most)
    result, observation = outcome.result, outcome.observation
    row = outcome.row or context.row
    _keep(context, victims, result, outcome.scores)
    if len(victims):
        checks += cell_findings(result.converged, row, went)
        checks += _matched_by_chance(context, victims, outcome.scores.get("matched", {}))
        checks += _by_pattern(context, victims, result.images, row)
    told, moved = ({}, "") if result.permutation is None else order(context, result.permutation)
    clients = observation.clients
    caught, charged = noticed(context, clients) if isinstance(clients, LiveClients) else "", {}
    if isinstance(clients, LiveClients) and isinstance(context, TrainedContext):
        charged = context.led(clients.rounds)
    seen = () if several(victims.y) or not len(victims) else looks.floors(victims.x, victims.y)
    columns = _by_column(domain, victims.x, result.images) if isinstance(domain, Tables) and len(victims) else ""
    said = (result.note, went.sentence if most else "", moved, mounting.short_of_published, caught, *seen, columns)
    checkpoint.remove()
    return context.row.model_copy(
        update={
            "recovered": row.recovered,
            "floors": floors,
            "ahead": row.ahead,
            "doubt": context.row.doubt or context.beside_the_release() or _uncontrolled(context.defended()),
            "checks": checks,
            "attack_curve": result.curve,
            "answers": told,
            "queries": observation.query.rounds if isinstance(observation.query, Queries) else None,
            "threat_model": threat_model(attack, [name for name in known if getattr(observation, name) is not None]),
            "notes": tuple(filter(None, said)),
            **charged,
        }
    )


def _matched_by_chance(context: AttackContext, victims: Batch, matched: scoring.RecordScores) -> tuple[Check, ...]:
    """A failed check if random records of the adversary, matched to the truth, are as close to the truth as the
    guesses."""
    own, first = context.seed_data.own_images, victims.domain.kind.measures[0]
    if own is None or first.name not in matched or first.higher_is_closer is None:
        return ()
    drawn = scoring.matched_own(victims.domain, victims.x, own, context.round_size, context.cell.seed)
    return own_match(matched[first.name], drawn, first.higher_is_closer)


def _by_pattern(context: AttackContext, victims: Batch, guess: Tensor, row: Row) -> tuple[Check, ...]:
    """A failed check if guesses of a failed attack show their images in other contrast or sign, mirrored or moved."""
    own = context.seed_data.own_images
    if own is None or not isinstance(victims.domain, Images) or finished_grade(row) == "record":
        return ()
    middle, labels = own.to(victims.x.device).mean(0), row.counts.get("victim_labels", 0)
    return by_pattern(scoring.identified_by_pattern(victims.x, guess, middle), labels) or by_pattern(
        scoring.identified_when_moved(victims.x, guess, middle), labels, "mirrored, turned, or moved by a few pixels"
    )


def _uncontrolled(defense: Defended | None) -> str:
    """A sentence if control experiments cannot show that an attack undoes a user's own defense; else empty."""
    if defense is None or not (defense.own and defense.why_not):
        return ""
    cure = "declare effects, and noise_fields where it adds noise"
    return f"{defense.why_not}, so no control can tell whether an attack undoes it; {cure}"


@dataclass(frozen=True)
class _Outcome:
    result: Reconstruction
    observation: ImageObservation
    scores: dict[str, scoring.RecordScores] = field(default_factory=dict)
    row: Row | None = None


def _judged(outcome: _Outcome) -> tuple[bool, float]:
    """Whether guesses beat the constant guesses, and their error; (True, 0) if there are no scores to compare."""
    row = outcome.row
    if row is None or (found := finished_grade(row)) is None:
        return True, 0.0
    return found != "nothing", distance(row)


def must_be_mountable(context: AttackContext) -> None:
    """Raise `NotApplicable` if the attack cannot be run on these records."""
    attack = context.attack
    must_read(attack, context.seed_data.splits.domain)
    context.refuse()
    if "query" in attack.needs and context.config.queries.rounds == 0:
        raise NotApplicable(f"the threat model forbids queries, and {attack.name} learns from their answers")
    if {"clients", "auxiliary_labels"} & attack.needs:
        must_have_one_label(context)
    if not all(bool(view.smashed.isfinite().all()) for view in context.recording.views):
        raise NotApplicable("the release holds NaN or infinity: the training diverged, or the defense makes them")


def _by_column(table: Tables, truth: Tensor, guess: Tensor) -> str:
    errors = sorted(table.columns(truth, guess).items(), key=lambda column: column[1])[:_CLOSEST]
    return f"smallest errors by column: {', '.join(f'{name} {error:.3f}' for name, error in errors)}"


def order(context: AttackContext, guess: Permutation) -> tuple[dict[str, Interval], str]:
    """Score the order of tokens that an attack found (`guess`); empty if no defense shuffles.

    Returns metrics with intervals, and a sentence with the scores of the guess that leaves all tokens in their released
    order.
    """
    receipts = context.recording.receipts[: len(context.recording.receipts) // context.attack.mounting.passes]
    orders = [true_arrangement(receipt) for receipt in receipts]
    known = [found for found in orders if found is not None]
    truth = torch.cat(known) if known and len(known) == len(orders) else None
    if truth is None or truth.shape != guess.source.shape or context.certificate is None:
        return {}, ""
    batch, quantities = context.config.training.batch_size, context.certificate.quantities
    outcomes = quantities.get("log10_outcomes")
    alike = max(receipt.log10_alike for receipt in context.recording.receipts)  # the certificate's lower bound lacks it
    found = arrangement_scores(
        guess.source.to(truth.device),
        truth,
        batch=batch,
        kinds=equal_tokens(torch.cat([view.smashed for view in context.recording.views[: len(receipts)]]), batch),
        most_bits=None if outcomes is None else (outcomes + alike) * log2(10),
    )
    measured = {"direct": found.direct, "neighbor": found.neighbor, "membership": found.membership}
    accuracies = {name: accuracy for name, accuracy in measured.items() if accuracy is not None}
    told = {name: accuracy.share for name, accuracy in accuracies.items()}
    whose = "message" if found.tokens > truth.shape[1] else "image"
    at_most = (
        f"upper bound from a {100 * found.confidence:g} % limit of the share of tokens in their places, over "
        f"whole {found.unit}s"
    )
    looks = f"orders of the tokens of one {whose} that look different"
    for name, bits, how in (("bits_before", found.bits_before, looks), ("bits_left", found.bits_left, at_most)):
        if bits is not None:
            told[name] = Interval(value=bits, low=bits, high=bits, n=found.units, method=how)
    right = {"direct": "in its place", "neighbor": "beside its neighbor", "membership": "in its image"}
    alone = ", ".join(f"{accuracy.left_alone:.3f} {right[name]}" for name, accuracy in accuracies.items())
    sentence = f"order: if tokens are left as they came, the share of tokens is {alone}"
    if found.bits_left is None:
        so_few = f"so few {found.unit}s ({found.units})"
        sentence += f"; with {so_few}, no attack could show that the order of one {whose} has lost any bit"
    return told, sentence


def noticed(context: AttackContext, clients: LiveClients) -> str:
    """Say in which round a client with the detector SplitGuard would have noticed that the server hijacked the
    training. The sentence also says whether honest training would raise a false alarm."""
    guard = clients.guard
    if guard is None or not guard.scores:
        return "no client was suspicious"
    who = f"a client with SplitGuard ({guard.policy}, threshold {guard.threshold:g}, {guard.patience} wrong batches)"
    if guard.noticed is None:
        return f"{who} would not have noticed the hijack in {guard.rounds} rounds"
    assert isinstance(context, TrainedContext)  # only this context has clients in training
    honest = context.clients()
    _, upper, _ = untrained(context.config, context.cell, context.seed_data)
    rounds = min(guard.rounds, max(HONEST_ROUNDS, guard.noticed + 1))
    serve(honest, upper, rounds, context.config.training, derive(context.cell.seed, "honest server"))
    assert honest.guard is not None
    at = f"{who} would have noticed the hijack at round {guard.noticed + 1} of {guard.rounds}"
    if honest.guard.noticed is None:
        return f"{at}; {honest.guard.rounds} rounds of honest training do not alarm it"
    return f"{at}, but honest training alarms it, too, at round {honest.guard.noticed + 1}: the alarm shows nothing"


def observation_for(context: AttackContext, declared: frozenset[str]) -> ImageObservation:
    """Collect what the adversary observes: the views, and the other fields that the attack declares."""
    seed_data, rules = context.seed_data, context.config.queries
    domain = seed_data.splits.domain
    same_classes = context.config.auxiliary in OF_THE_DATASET
    query = context.query() if "query" in declared and rules.rounds != 0 else None
    return ImageObservation(
        image_shape=cast(tuple[int, int, int], domain.shape),  # read by attacks on images only
        columns=domain.column_sizes if isinstance(domain, Tables) else (),
        words=len(domain.vocabulary) if isinstance(domain, Tokens) else 0,
        batch_size=context.round_size,
        views=context.recording.views,
        auxiliary=seed_data.own_images if "auxiliary" in declared else None,
        auxiliary_labels=seed_data.own_labels if same_classes and "auxiliary_labels" in declared else None,
        query=None if query is None else Queries(query, rules),
        rules=rules,
        lower=context.lower() if "lower" in declared else None,
        block=context.block() if {"query", "lower"} & declared else None,
        upper=context.upper() if "upper" in declared else None,
        upper_history=context.upper_history() if "upper_history" in declared else None,
        clients=context.clients() if "clients" in declared else None,
        imitate=context.imitate() if "imitate" in declared else None,
        memory=seed_data.memory,
    )


def _controls(attack: ImageAttack, context: AttackContext) -> tuple[Check, ...]:
    seed_data = context.seed_data
    if attack.mounting.ignores_views or seed_data.own_images is None:
        return ()
    held = observation_for(context, frozenset())
    held = replace(held, auxiliary=seed_data.own_images, auxiliary_labels=seed_data.own_labels)
    seed = context.cell.seed
    wanted = context.cell.defense.to_json()
    through = context.controls(lambda: wins(attack, held, seed, context.defended()), defense=wanted)
    return through + context.controls(lambda: (fails(attack, held, seed),))


def _keep(
    context: AttackContext, victims: Batch, result: Reconstruction, scores: dict[str, scoring.RecordScores]
) -> None:
    home = context.folder.cell(context.cell.id)
    if not len(victims):
        guesses = result.images.cpu().numpy()
        write_arrays(home / GUESSES, guess=_to_uint8(guesses) if isinstance(victims.domain, Images) else guesses)
        return
    values = {f"{alignment}_{name}": array for alignment, metrics in scores.items() for name, array in metrics.items()}
    shown = _shown(victims, result.images, context)
    write_arrays(home / PICTURES, ids=victims.ids.cpu().numpy(), **values, **shown)


def _shown(victims: Batch, guess: Tensor, context: AttackContext) -> dict[str, NDArray[np.generic]]:
    domain = victims.domain
    if not isinstance(domain, Images):
        both = {"truth": victims.x, "guess": guess}
        return {name: np.array(domain.shown(records[:SHOWN].cpu()), dtype=np.str_) for name, records in both.items()}
    images, guesses = victims.x.cpu().numpy(), guess.cpu().numpy()
    matched = guesses[match(images, guesses, context.round_size)]
    pictures = {"truth": images, "guess": guesses, "matched": matched}
    classes = CLASS_MEAN.name in context.seed_data.guesses
    for name, floor in floor_guesses(context.seed_data.auxiliary, victims[:SHOWN], classes=classes).items():
        pictures[f"floor_{name}"] = floor.cpu().numpy()
    return {name: _to_uint8(found[:SHOWN]) for name, found in pictures.items()}


def _to_uint8(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    levels: NDArray[np.uint8] = np.rint(images.transpose(0, 2, 3, 1).clip(0, 1) * 255).astype(np.uint8)
    return levels


class _Reconstruct(AuditGoal):
    escalates: ClassVar[bool] = True

    ask = staticmethod(ask)

    def refuse_recording(self, attack: ImageAttack, source: Recording) -> None:
        pass

    def rehearsed(self, context: Rehearsal, held: frozenset[str]) -> ImageObservation | None:
        if context.attack.mounting.ignores_views:
            return None
        must_be_mountable(context)
        return observation_for(context, held)

    def cost(self, attack: ImageAttack, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> Cost:
        """Scale an attack's measured time by the numbers of the adversary's own records and of attacked records.

        The controls are a short run on few records and a shorter one on noise. An attack that reads the history of the
        server's segment repeats the training.
        """
        played = played_by(records := min(sizes["auxiliary"], CONTROL_IMAGES), sizes["a_round"])
        epochs = getattr(as_control(attack, records - played, sizes["a_round"]), "epochs", None)
        share = epochs / timed.epochs if isinstance(epochs, int) and timed.epochs else 1.0
        short = share * _scaled(attack, timed, records - played, played, sizes["a_round"])
        return Cost(
            seconds=_scaled(attack, timed, sizes["auxiliary"], sizes["victims"], sizes["a_round"]),
            controls=(1 + 1 / SHORTER) * short,
            steps=sizes["rounds"] if "upper_history" in known_to(attack) else 0,
        )


def _scaled(attack: ImageAttack, timed: Timed, own: float, victims: float, a_round: int) -> float:
    """Scale an attack's time to `own` records of the adversary and `victims` attacked ones.

    A hijack has a fixed number of rounds, so its time depends only on `a_round`, the number of records in a round.
    """
    larger = max(own / timed.records, victims / timed.victims)
    return timed.seconds * (a_round / timed.victims if "clients" in attack.needs else larger)


GOAL = _Reconstruct()
