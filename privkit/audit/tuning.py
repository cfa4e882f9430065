"""An attack's fields chosen on the adversary's own records: some of them play victims, the others train the attack.

The adversary plays both sides, so nothing here reads an attacked record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Generator

from privkit.attacks.base import AttackDiverged, NotApplicable, known_to
from privkit.attacks.goals.reconstruct import ImageAttack
from privkit.attacks.query_rules import QueryRules
from privkit.attacks.search_space import search_space, why_untuned
from privkit.audit import trials as study
from privkit.audit.goals.reconstruct import must_be_mountable, observe
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.scoring import scored
from privkit.audit.trials import Trial
from privkit.parts.registry import Component, parse, read_part
from privkit.reports.schema import Tuned
from privkit.run.records import TRIALS
from privkit.shared.measures import deciding, measure
from privkit.shared.seeds import derive
from privkit.wire.channel import record, shared_lower
from privkit.wire.queries import Queries


def tuned(context: TrainedContext) -> tuple[TrainedContext, str]:
    """The cell with the best fields of its attack on the adversary's own records, and a sentence on the choice.

    The first trial is the attack as given, so the choice is never weaker on these records.

    Raises:
        NotApplicable: if the attack as given cannot be mounted, own records are too few for both sides, or the queries
            that the threat model allows are used up.
    """
    plan, attack = context.config.tune, context.cell.attack
    if plan is None:
        return context, ""
    if reason := why_untuned(attack.spec) or _sees_nothing(context):
        return context, f"{attack.label} was not tuned: {reason}"
    must_be_mountable(context)
    rehearsal, asked = _rehearsal(context, plan.share)
    metric, space, seed = _metric(rehearsal), search_space(attack.spec), derive(context.cell.seed, "tune", attack.name)
    path, rules = context.folder.cell(context.cell.id) / TRIALS, context.config.queries
    past = study.read(path, context.cell.id)
    asked += sum(trial.queries for trial in past)
    context.progress.stage(f"tune {attack.label} on {context.cell.defense.label}, seed {context.cell.seed}", "trials")
    for number in range(len(past), plan.trials):
        given = {name: getattr(attack.spec, name) for name in space}
        values = study.suggested(space, past, seed) if number else given
        known = next((trial for trial in past if trial.values == values), None)
        trial = _tried(rehearsal, values, _left(rules, asked), metric) if known is None else replace(known, queries=0)
        if number == 0 and trial.reason:
            own = len(rehearsal.seed_data.auxiliary)
            raise NotApplicable(f"{trial.reason} (tuning, with {own} own records and after {asked} rounds of queries)")
        study.append(path, context.cell.id, number, trial)
        past.append(trial)
        asked += trial.queries
        context.progress.step(len(past), plan.trials, min(trial.objective for trial in past))
    best = min(past, key=lambda trial: trial.objective)
    chosen, sign = _changed(attack, best.values), -1 if measure(metric).higher_is_closer else 1
    found = Tuned(
        chosen=chosen.label,
        fields=tuple(space),
        metric=measure(metric).title,
        given=sign * past[0].objective,
        best=sign * best.objective,
        trials=len(past),
        failed=sum(bool(trial.reason) for trial in past),
        played=len(rehearsal.seed_data.victims),
        own=len(rehearsal.seed_data.auxiliary),
        queries=asked,
    )
    config = replace(context.config, queries=_left(rules, asked))
    cell, row = replace(context.cell, attack=chosen), context.row.model_copy(update={"tuned": found})
    return replace(context, cell=cell, config=config, row=row), found.sentence


def _sees_nothing(context: TrainedContext) -> str:
    """Why this adversary cannot see the release of own records here; empty if it can."""
    known = known_to(context.attack)
    if "query" in known and context.config.queries.rounds != 0:
        return ""
    if "lower" in known and shared_lower(context.model.edge) is not None:
        return ""
    return "here its adversary may ask no query and knows no lower segment, so it sees no release of own records"


def _rehearsal(context: TrainedContext, share: float) -> tuple[TrainedContext, int]:
    """The cell with own records on both sides, and the queries that showed the adversary their release."""
    data, size, attack = context.seed_data, context.round_size, context.attack
    own, seed = data.auxiliary, derive(context.cell.seed, "tune")
    if len(own) < 2 * size:
        raise NotApplicable(
            f"tuning needs two rounds of own records ({2 * size}), one of them to play victims, and there are "
            f"{len(own)}: bring more with --budget …:auxiliary=…, or leave --tune out"
        )
    count = max(size, min(int(share * len(own)), len(data.victims)) // size * size)
    order = torch.randperm(len(own), generator=Generator().manual_seed(seed)).to(own.x.device)
    played, rest = own[order[:count]], own[order[count:]]
    if context.config.auxiliary not in ("disjoint", "training"):  # labels of another task, which the defense may mix
        played = replace(played, y=torch.zeros_like(data.victims.y[:1]).expand(count, *data.victims.y.shape[1:]))
    batch, passes = context.config.training.batch_size, attack.mounting.passes
    recording = record(context.model.edge, played, batch_size=batch, seed=seed, passes=passes)
    asks = "query" in known_to(attack) and context.config.queries.rounds != 0  # else it computes the release itself
    rehearsal = replace(context, seed_data=replace(data, victims=played, auxiliary=rest), recording=recording)
    return rehearsal, len(recording.views) if asks else 0


def _left(rules: QueryRules, asked: int) -> QueryRules:
    """What the threat model still allows to ask."""
    if not rules.rounds:  # any number, or none from the beginning
        return rules
    if asked >= rules.rounds:
        raise NotApplicable(
            f"tuning used up the {rules.rounds:,} rounds of own images that the threat model allows: allow more with "
            "--queries rounds=…, or tune with fewer trials"
        )
    return replace(rules, rounds=rules.rounds - asked)


def _tried(rehearsal: TrainedContext, values: Mapping[str, Any], rules: QueryRules, metric: str) -> Trial:
    """The attack with these values, mounted on own records that play victims."""
    context = replace(rehearsal, config=replace(rehearsal.config, queries=rules))
    queries: Queries | None = None
    reason, objective = "", inf
    try:
        attack: ImageAttack = _changed(context.cell.attack, values).spec
        observation = observe(context, known_to(attack))
        queries = observation.query if isinstance(observation.query, Queries) else None
        guess = attack.run(observation, context.generator()).images
    except (NotApplicable, AttackDiverged, ValueError) as error:
        reason = str(error)
    else:
        members = context.recording.members[: len(context.recording.members) // attack.mounting.passes]
        seats = members >= 0
        truth = context.seed_data.victims[members[seats]]
        error_of = scored(truth.domain, truth.x, guess[seats], context.round_size)["unaligned"][metric]
        objective = float(error_of.mean()) * (-1 if measure(metric).higher_is_closer else 1)
    asked = 0 if queries is None else queries.rounds
    return Trial(values=dict(values), objective=objective, reason=reason, queries=asked)


def _metric(context: TrainedContext) -> str:
    return deciding(list(next(iter(context.seed_data.floors.values()))["unaligned"]))


def _changed(attack: Component, values: Mapping[str, Any]) -> Component:
    """The attack with other values, and the label that names it by hand."""
    name, options = read_part(attack.label)
    label = parse("attacks", {"name": name, **options, **values}).label
    return replace(attack.replace(**values), label=label)
