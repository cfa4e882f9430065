"""Tunes an attack's parameters on the adversary's own records: it attacks some of them and trains on the others.

The records that the audit attacks are not read here. Each trial of parameter values is stored as a line of a file. The
next trial follows from the seed and the previous lines, so an interrupted search continues with the same trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from privkit.attacks.base import AttackDiverged, NotApplicable, known_to
from privkit.attacks.goals.reconstruct import ImageAttack
from privkit.attacks.outputs import guesses_of
from privkit.attacks.query_rules import QueryRules
from privkit.attacks.search_space import Choice, Range, search_space, why_untuned
from privkit.audit.goals.reconstruct import must_be_mountable, observation_for
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.scoring import scored
from privkit.files.paths import read_bytes
from privkit.files.sealed import Broken, opened, sealed
from privkit.files.storage import append_line, write_bytes
from privkit.parts.registry import Component, parse, read_part
from privkit.reports.schema import Tuned
from privkit.reports.tables import rounds_of
from privkit.run.records import TRIALS
from privkit.shared.measures import deciding, measure
from privkit.shared.own_records import OF_THE_DATASET
from privkit.shared.seeds import derive
from privkit.wire.channel import Queries, record_rounds, shared_lower

_DIGITS = 3  # significant digits of a tuned number, so that it can be written down
_RANDOM = 5  # trials drawn at random before the sampler learns from their outcomes
_SEEDS = 2**32
_Space = Mapping[str, Range | Choice]


def tuned(context: TrainedContext) -> tuple[TrainedContext, str]:
    """The context with the attack's parameters that work best on the adversary's own records, and a sentence about
    them.

    The given parameters are tried first, so the chosen ones are never worse on these records.
    """
    plan, attack = context.config.tune, context.cell.attack
    if plan is None:
        return context, ""
    if reason := why_untuned(attack.spec) or _sees_nothing(context):
        return context, f"{attack.label} was not tuned: {reason}"
    must_be_mountable(context)
    rehearsal, asked = _rehearsal(context, plan.share)
    metric = deciding(list(next(iter(context.seed_data.floors.values()))["unaligned"]))
    space, seed = search_space(attack.spec), derive(context.cell.seed, "tune", attack.name)
    path, rules = context.folder.cell(context.cell.id) / TRIALS, context.config.queries
    past = _read(path, context.cell.id)
    asked += sum(trial.queries for trial in past)
    context.progress.stage(f"tune {attack.label} on {context.cell.defense.label}, seed {context.cell.seed}", "trials")
    for number in range(len(past), plan.trials):
        given = {name: getattr(attack.spec, name) for name in space}
        values = suggested(space, past, seed) if number else given
        known = next((trial for trial in past if trial.values == values), None)
        trial = _tried(rehearsal, values, _left(rules, asked), metric) if known is None else replace(known, queries=0)
        if number == 0 and trial.reason:
            own = len(rehearsal.seed_data.auxiliary)
            raise NotApplicable(f"{trial.reason} (tuning, with {own} own records and after {rounds_of(asked)})")
        objective = None if trial.objective == inf else trial.objective  # JSON has no infinity
        line = {"cell": context.cell.id, "trial": number, **asdict(trial), "objective": objective}
        append_line(path, sealed(line))
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
    known = known_to(context.attack)
    if "query" in known and context.config.queries.rounds != 0:
        return ""
    if "lower" in known and shared_lower(context.model.edge) is not None:
        return ""
    return "here its adversary may ask no query and knows no lower segment, so it sees no release of own records"


def _rehearsal(context: TrainedContext, share: float) -> tuple[TrainedContext, int]:
    """A copy of the context in which some of the adversary's records are attacked, and the number of query rounds that
    give the releases of these records; 0 if the adversary computes the releases itself."""
    data, size, attack = context.seed_data, context.round_size, context.attack
    own, seed = data.auxiliary, derive(context.cell.seed, "tune")
    if len(own) < 2 * size:
        raise NotApplicable(
            f"tuning needs two rounds of own records ({2 * size}), one of them as victims, but there are {len(own)}: "
            f"bring more with --budget …:auxiliary=…, or leave --tune out"
        )
    count = max(size, min(int(share * len(own)), len(data.victims)) // size * size)
    order = torch.randperm(len(own), generator=Generator().manual_seed(seed)).to(own.x.device)
    played, rest = own[order[:count]], own[order[count:]]
    # the labels are those of another task, and the defense may mix labels
    if context.config.auxiliary not in OF_THE_DATASET:
        played = replace(played, y=torch.zeros_like(data.victims.y[:1]).expand(count, *data.victims.y.shape[1:]))
    batch, passes = context.config.training.batch_size, attack.mounting.passes
    recording = record_rounds(context.model.edge, played, batch_size=batch, seed=seed, passes=passes)
    # without queries, the attack computes releases itself
    asks = "query" in known_to(attack) and context.config.queries.rounds != 0
    rehearsal = replace(context, seed_data=replace(data, victims=played, auxiliary=rest), recording=recording)
    return rehearsal, len(recording.views) if asks else 0


def _left(rules: QueryRules, asked: int) -> QueryRules:
    if not rules.rounds:  # the number of rounds is unlimited, or no query is allowed
        return rules
    if asked >= rules.rounds:
        raise NotApplicable(
            f"tuning used up the {rules.rounds:,} rounds of own images that the threat model allows: allow more with "
            "--queries rounds=…, or tune with fewer trials"
        )
    return replace(rules, rounds=rules.rounds - asked)


def _tried(rehearsal: TrainedContext, values: Mapping[str, Any], rules: QueryRules, metric: str) -> Trial:
    context = replace(rehearsal, config=replace(rehearsal.config, queries=rules))
    queries: Queries | None = None
    reason, objective = "", inf
    try:
        attack: ImageAttack = _changed(context.cell.attack, values).spec
        observation = observation_for(context, known_to(attack))
        queries = observation.query if isinstance(observation.query, Queries) else None
        found = attack.run(observation, context.generator())
    except (NotApplicable, AttackDiverged, ValueError) as error:
        reason = str(error)
    else:
        members = context.recording.members[: len(context.recording.members) // attack.mounting.passes]
        seats = members >= 0
        truth = context.seed_data.victims[members[seats]]
        guess = guesses_of(attack, found, len(members), truth.domain.shape).images
        error_of = scored(truth.domain, truth.x, guess[seats], context.round_size)["unaligned"][metric]
        objective = float(error_of.mean()) * (-1 if measure(metric).higher_is_closer else 1)
    asked = 0 if queries is None else queries.rounds
    return Trial(values=dict(values), objective=objective, reason=reason, queries=asked)


def _changed(attack: Component, values: Mapping[str, Any]) -> Component:
    name, options = read_part(attack.label)
    label = parse("attacks", {"name": name, **options, **values}).label
    return replace(attack.replace(**values), label=label)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One set of tried parameter values, with its result."""

    values: dict[str, Any]  # the attack's field -> tried value; other fields keep the user's values
    objective: float  # the guesses' error, smaller for a stronger attack; infinite if the trial failed
    reason: str = ""  # why the trial failed
    queries: int = 0  # rounds of own records that the trial sent


def _read(path: Path, cell: str) -> list[Trial]:
    """Read the trials of an interrupted tuning; a damaged line and all lines after it are removed from the file."""
    data = read_bytes(path) if path.exists() else b""
    trials, whole = [], b""
    for number, line in enumerate(data.splitlines()):
        try:
            fields = opened(line, cell=cell, trial=number)
            objective = inf if fields["objective"] is None else fields["objective"]
            told = {name: fields[name] for name in ("values", "reason", "queries")}
            trials.append(Trial(**told, objective=objective))
        except (Broken, KeyError):
            break
        whole += line + b"\n"
    if whole != data:
        write_bytes(path, whole)
    return trials


def suggested(space: _Space, past: Sequence[Trial], seed: int) -> dict[str, Any]:
    """The attack parameters to try next, after the trials `past`; past values outside `space` are ignored.

    Source: the tree-structured Parzen estimator of Bergstra et al. 2011, by optuna.
    """
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    laws: dict[str, BaseDistribution] = {
        name: FloatDistribution(found.low, found.high, log=found.log)
        if isinstance(found, Range)
        else CategoricalDistribution(found.values)
        for name, found in space.items()
    }
    sampler = optuna.samplers.TPESampler(seed=derive(seed, "trial", len(past)) % _SEEDS, n_startup_trials=_RANDOM)
    study = optuna.create_study(sampler=sampler)
    for trial in past:
        params = {name: value for name, value in trial.values.items() if value in space[name]}
        held = {name: laws[name] for name in params}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=held, value=trial.objective))
    drawn = study.ask(laws).params
    for name, found in space.items():
        if isinstance(found, Range):
            drawn[name] = min(max(float(f"{drawn[name]:.{_DIGITS}g}"), found.low), found.high)
    return drawn
