"""Turns settings (TOML and flags) into the configuration of an audit; unknown names are errors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.errors import UsageError, shortened, unknown
from privkit.files.toml_text import TomlError, parse_toml, read_text
from privkit.metrics import METRICS
from privkit.parts.registry import Component, load, name_and_options, parse, part_table, specify, stages_given
from privkit.settings import early, table
from privkit.settings.budgets import Budget, Tuning, as_escalation
from privkit.settings.config import AuditConfig, Source, distinct
from privkit.settings.pairing import defense_pairs
from privkit.settings.quick_attacks import AMONG_CANDIDATES, AUTO, choose
from privkit.settings.same_domain import check_same_domain, domain_of, model_for
from privkit.settings.table import AuditSettings, ExecutionSettings
from privkit.settings.values import as_options
from privkit.shared.measures import CONSTANT_ATTACKS
from privkit.shared.own_records import OF_THE_DATASET

if TYPE_CHECKING:
    from privkit.attacks.base import AnyAttack
    from privkit.reports.gate import Gate
    from privkit.training.spec import TrainingSpec


_OF_TRAININGS = ("data_root", "download", "tune")
"""Settings without effect on an audit of a recording; for every other refused setting, the recording has a value."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file; raises `UsageError` for unknown keys, with a suggestion.

    A file may name a `preset` (a paper's settings); settings in the file take precedence over the preset.
    """
    try:
        settings = parse_toml(read_text(path))
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except TomlError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    for key in settings:
        if key == "trust":
            raise UsageError(
                f"{path.name} holds trust, but a file must not decide which code runs here; name the modules on the "
                "command line, --trust MODULE, or in Python, trust=[…]"
            )
        if key not in (*table.KEYS, "preset"):
            raise unknown(f"key of {path.name}", key, (*table.KEYS, "preset"))
    return settings


def resolve(settings: Mapping[str, Any]) -> AuditConfig:
    """Turn settings, named as in `table.SETTINGS`, into a configuration; absent settings take their defaults.

    Raises:
        UsageError: if a setting is unknown or not allowed; the message is one sentence.

    >>> resolve({"defense": "patch_shuffle", "budget": "smoke:epochs=3"}).budget.epochs
    3
    """
    given = table.with_defaults(settings)
    if settings.get("trust") and settings.get("recorded") is None:
        raise UsageError("trust says what a recording may run, and none is named; add --recorded, or leave trust out")
    asked, execution = table.checked(AuditSettings, given), table.checked(ExecutionSettings, given)
    if (root := os.environ.get(table.DATA_ROOT_VARIABLE)) and not execution.data_root:
        execution = replace(execution, data_root=Path(root).expanduser())
    _must_be_text({**given, "data_root": execution.data_root})
    _check_early(settings, given, asked)  # what follows imports torch
    source = _source(settings, asked)
    attacks, other = _attacks(asked), _other(asked.auxiliary, source.dataset)
    protocols = [_under(protocol, defenses, asked, source) for protocol, defenses in source.pairs]
    config = AuditConfig(
        **vars(execution),
        **protocols[0],
        attacks=attacks,
        dataset=source.dataset,
        model=source.model,
        partition=parse("partitions", asked.partition),
        delta=asked.delta,
        seeds=asked.seed,
        budget=asked.budget[1],
        auxiliary=other.label if other else str(asked.auxiliary),
        other=other,
        victims=asked.victims,
        queries=asked.queries,
        escalate=as_escalation(asked.escalate, asked.budget[1]),
        held=_held(asked.parts, [defense for _, defenses in source.pairs for defense in defenses]),
        features=asked.features,
        metrics=_metrics(asked.metric, asked.gate),
        gates=asked.gate,
        recording=source.recording,
    )
    config = replace(config, tune=_tuning(asked.tune, config.every_attack), settings=_kept(settings, given, config))
    check_same_domain(config)
    return replace(config, also=tuple(replace(config, **others) for others in protocols[1:]))


def _must_be_text(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a setting, such as a path, that UTF-8 cannot encode: a manifest cannot hold it."""
    for name, value in settings.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{name} holds bytes that are not UTF-8, got {value!r:.200}; rename the file or folder"
            ) from None


def _kept(settings: Mapping[str, Any], given: Mapping[str, Any], config: AuditConfig) -> dict[str, Any]:
    """The settings that a manifest stores: for a recording, those that the user gave; otherwise all. The data root is
    always stored."""
    root = config.data_root
    chosen = {"data_root": None if root is None else root.absolute()}
    return table.kept({**settings, **chosen} if config.recording else {"model": config.model.label, **given, **chosen})


def _source(settings: Mapping[str, Any], asked: AuditSettings) -> Source:
    if asked.recorded is not None:
        from privkit.settings.recorded import recorded_parts

        return recorded_parts(settings, asked.budget[1])
    dataset = parse("datasets", asked.dataset)
    dataset = _skipping(dataset) if asked.skip_bad_rows else dataset
    return Source(
        dataset=dataset,
        model=model_for(dataset, asked.model),
        pairs=defense_pairs(asked.defense, asked.protocol),
        training=as_options("training", asked.training),
    )


def _check_early(settings: Mapping[str, Any], given: Mapping[str, Any], asked: AuditSettings) -> None:
    """Refuse wrong names, options and domains, and settings without effect, without importing torch."""
    for text in asked.metric:
        if isinstance(text, str) and text in METRICS:
            raise UsageError(f"{text} is measured where it applies; metric takes a metric of your own, module:object")
    early.check_parts({**given, "model": settings.get("model")})  # the default model always fits
    if asked.recorded is not None:
        _check_recorded(settings)
    elif asked.gate and all(_is_none(defense) for defense in asked.defense):
        raise UsageError("a gate judges defenses, and none is audited here; name one with --defense, or drop --gate")
    keep, budget = as_options("training", asked.training).get("keep"), asked.budget[1]
    if keep == "best" and not (budget.validation and budget.epochs):
        raise UsageError("training: keep=best needs validation images and an epoch; use budget=small:validation=500")
    if keep == "best_test" and (budget.validation or not budget.epochs):
        raise UsageError(
            "training: keep=best_test chooses an epoch on the test images; train one at least, and leave validation "
            "out of the budget, or use keep=best"
        )


def _is_none(defense: Any) -> bool:
    return stages_given(defense) is None and name_and_options("defenses", defense)[0] == "none"


def _check_recorded(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a training, which a recording replaces, and a folder without a valid `recording.json`."""
    from privkit.recording.schema import FILE, description, description_file

    beside = {name for name, setting in table.SETTINGS.items() if setting.recorded}
    others = [key for key, value in settings.items() if value not in (None, [], False) and key not in beside]
    if others:
        name, flag = others[0], table.SETTINGS[others[0]].flag
        why = f"{name} does not go with a recording" if name in _OF_TRAININGS else f"a recording brings its own {name}"
        allowed = ", ".join(sorted(beside - {"recorded"}))
        raise UsageError(f"{why}, so leave {flag} out; an audit of a recording may have {allowed}")
    folder = Path(settings["recorded"]).expanduser()
    description(description_file(folder), folder / FILE)


def _under(protocol: Component, defenses: Sequence[Component], asked: AuditSettings, source: Source) -> dict[str, Any]:
    """The fields of a configuration that depend on the protocol. They contain the attacks that `auto` names for each
    defense."""
    budget, domain = asked.budget[1], domain_of(source.dataset)
    training = _training(protocol, budget, source.training)
    fields = {"protocol": protocol, "defenses": defenses, "training": training}
    if not asked.attack:
        raise UsageError("name at least one defense and one attack")
    if AUTO not in asked.attack:
        return fields
    shared = training.freeze_lower or protocol.spec.average != "never"
    chosen = {
        defense.label: source.chosen() if source.chosen else choose(defense, domain, shared=shared)
        for defense in defenses
    }
    among = AMONG_CANDIDATES if asked.auxiliary == "candidates" else ()
    beside = (*_beside(protocol, source.model, domain), *among)
    mounted = {
        label: distinct(budgeted(parse("attacks", attack), budget) for attack in (*one.attacks, *beside))
        for label, one in chosen.items()
    }
    remarks = {label: one.remark for label, one in chosen.items() if one.remark}
    return {**fields, "automatic": mounted, "remarks": remarks}


def _training(protocol: Component, budget: Budget, wished: Mapping[str, Any]) -> TrainingSpec:
    from privkit.training.spec import TrainingSpec

    batch = max(5, 50 // protocol.spec.clients)  # fifty records per round over all clients, but at least five of each
    options = {"batch_size": batch, **wished}
    training: TrainingSpec = specify("training", TrainingSpec, options)
    training.check_epochs(budget.epochs)
    return training


def _skipping(dataset: Component) -> Component:
    if getattr(dataset.spec, "skip_bad_rows", None) is not None:
        beside = "," if ":" in dataset.label else ":"
        given = dataset.label if dataset.spec.skip_bad_rows else f"{dataset.label}{beside}skip_bad_rows=true"
        return parse("datasets", given)
    having = [name for name, target in sorted(part_table("datasets").items()) if hasattr(load(target), "skip_bad_rows")]
    raise UsageError(
        f"skip_bad_rows=true leaves out rows of text files, and {dataset.name} reads none; leave it out, or choose one "
        f"of {', '.join(having)}"
    )


def _held(given: Sequence[Any], defenses: Sequence[Component]) -> tuple[str, ...]:
    """Names of the parts of a release that the adversary holds; every defense that splits must have these parts."""
    if strange := [name for name in given if not isinstance(name, str)]:
        raise UsageError(f"a part of a release has a name, such as part_1, got {shortened(strange[0])}")
    names = tuple(dict.fromkeys(given))
    split = [defense for defense in defenses if defense.spec.storages]
    if names and not split:
        raise UsageError(
            f"parts={shortened(list(names))}, but no defense here splits its release, so nobody holds a part of one; "
            "add the stage split_parts to a defense, or leave parts out"
        )
    for name in names:
        for defense in split:
            if name not in defense.spec.storages:
                raise unknown(f"part of {defense.label}", str(name), defense.spec.storages)
    return names


def _metrics(given: Sequence[Any], gates: Sequence[Gate]) -> tuple[Component, ...]:
    from privkit.metrics.own import PREFIX, check_metric, column

    metrics: dict[str, Component] = {}
    for text in given:
        metric = parse("metrics", text)
        try:
            check_metric(metric.spec)
        except ValueError as error:
            raise UsageError(f"metric {metric.label}: {error}") from None
        if (name := column(metric.spec)) in metrics:
            raise UsageError(f"{metrics[name].label} and {metric.label} are both called {metric.spec.name}; rename one")
        metrics[name] = metric
    for gate in gates:
        name = gate.measure
        if name.startswith(PREFIX) and not metrics:
            raise UsageError(
                f"the gate {gate} names {name}, the column of a metric of your own, and none is given; add --metric "
                "module:object, or take another column"
            )
        if name.startswith(PREFIX) and name not in metrics:
            raise unknown(f"column of the gate {gate}", name, metrics)
    return tuple(metrics.values())


def _tuning(plan: Tuning | None, attacks: Sequence[Component]) -> Tuning | None:
    if plan is None:
        return None
    from privkit.attacks.search_space import why_untuned

    reasons = [f"{attack.label}: {why_untuned(attack.spec)}" for attack in attacks if why_untuned(attack.spec)]
    if len(reasons) == len(attacks):
        raise UsageError(f"tune finds nothing to tune ({'; '.join(reasons)}); leave it out, or name another attack")
    if find_spec("optuna") is None:
        raise UsageError("tune needs the package optuna: pip install 'privkit-sl[tune]', or leave tune out")
    return plan


def _attacks(asked: AuditSettings) -> tuple[Component, ...]:
    """The attacks that the user named. `auto` is left out, since the attacks that it stands for depend on the defense.

    `all` means every attack except constant guesses, which every result includes anyway.
    """
    every = [name for name in part_table("attacks") if name not in CONSTANT_ATTACKS]
    named = [name for entry in asked.attack if entry != AUTO for name in (every if entry == "all" else [entry])]
    return distinct(budgeted(parse("attacks", given), asked.budget[1]) for given in named)


def _beside(protocol: Component, model: Component, domain: str) -> tuple[str, ...]:
    """Attacks that `auto` adds on each defense for the model or, if the model adds none, for the protocol."""
    from privkit.parts.threats import threat

    named = getattr(model.spec, "quick_attacks", ()) or getattr(protocol.spec, "quick_attacks", ())
    reads = {attack: threat(attack.partition(":")[0])[1] for attack in named}
    return tuple(attack for attack, domains in reads.items() if not domains or {domain, "any"} & {*domains})


def _other(given: Any, dataset: Component) -> Component | None:
    """The adversary's dataset, or None if its images come from the private dataset. The private dataset itself is
    refused, since it contains private images."""
    if given in OF_THE_DATASET:
        return None
    named = parse("datasets", given)
    if named.name == dataset.name and _source_of(named) == _source_of(dataset):
        raise UsageError(
            f"auxiliary={named.label} is the private dataset itself, so private images would be among the adversary's; "
            "use disjoint (other images of it), training or candidates (the private or attacked ones, on purpose)"
        )
    return named


def _source_of(dataset: Component) -> set[Path]:
    """The files that a dataset's options name, of those inside the data root by relative paths; empty for official
    files."""
    path, *inside = (getattr(dataset.spec, option, None) for option in ("path", "file", "files"))
    found = {Path(path).resolve()} if isinstance(path, str) else set()
    for named in inside:
        found |= {Path(os.path.normpath(file)) for file in ([named] if isinstance(named, str) else named or ())}
    return found


def budgeted(attack: Component, budget: Budget) -> Component:
    """Set an attack's epochs from the budget unless the user named them. Raises `UsageError` for an attack with a
    faulty declaration."""
    from privkit.attacks.declaration import check_declared

    spec: AnyAttack = attack.spec
    try:
        check_declared(spec)
    except TypeError as error:
        raise UsageError(f"attack {attack.name}: {error}; repair the file or package that brings it") from None
    share = spec.mounting.budget_share
    if not share:
        return attack
    own = {field.name for field in fields(spec)} if is_dataclass(spec) else set[str]()
    doublings = {"doublings": budget.attack_doublings} if "doublings" in own else {}
    return attack.replace(epochs=ceil(share * budget.attack_epochs), **doublings)
