"""The settings of an audit: TOML and flags in, a configuration out; unknown names are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.attacks.query_rules import QueryRules
from privkit.errors import UsageError, shortened, unknown
from privkit.files.toml_text import TomlError, parse_toml, read_text
from privkit.metrics import METRICS
from privkit.metrics.feature_names import check_names
from privkit.parts.registry import Component, load, parse, read_options, specify, table
from privkit.run.cell_limits import read_memory
from privkit.settings import early
from privkit.settings.config import BUDGETS, AuditConfig, Budget, Tuning, distinct
from privkit.settings.pairing import paired
from privkit.settings.quick_attacks import AUTO, Chosen, choose
from privkit.settings.same_domain import check_same_domain, domain_of, model_for
from privkit.settings.values import (
    TRUST,
    as_device,
    as_gate,
    as_kept,
    as_many,
    as_options,
    as_seconds,
    as_seeds,
    as_threads,
)
from privkit.shared.measures import CONSTANT_ATTACKS, KINDS

if TYPE_CHECKING:
    from privkit.attacks.base import AnyAttack
    from privkit.reports.gate import Gate


DATA_ROOT_VARIABLE = "PRIVKIT_DATA"

KEYS = (
    "recorded",
    "defense",
    "attack",
    "dataset",
    "model",
    "protocol",
    "partition",
    "seed",
    "budget",
    "training",
    "delta",
    "auxiliary",
    "victims",
    "queries",
    "tune",
    "features",
    "metric",
    "parts",
    "device",
    "data_root",
    "download",
    "skip_bad_rows",
    "threads",
    "cell_seconds",
    "cell_memory",
    "gate",
)
"""What a configuration file may hold; a flag of the same name overrides it."""

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "recorded": ((str, Path), "the path of a folder"),
    "data_root": ((str, Path), "the path of a folder"),
    "download": (bool, "true or false"),
    "skip_bad_rows": (bool, "true or false"),
    "device": (str, "auto, cpu, cuda, or cuda:0, cuda:1, …"),
    "victims": (str, "private or test"),
    "delta": (float, "a number in (0, 1), such as 1e-5"),
}
"""What the settings are that no other reader checks."""

DEFAULTS: dict[str, Any] = {
    "defense": ["batch_shuffle"],
    "attack": ["auto"],
    "dataset": "digits",
    "model": "vit_micro",
    "partition": "iid",
    "delta": 1e-5,
    "seed": [0],
    "budget": "quick",
    "training": {},
    "queries": {},
    "auxiliary": "disjoint",
    "device": "auto",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file; unknown keys are errors with a suggestion."""
    try:
        settings = parse_toml(read_text(path))
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except TomlError as error:
        raise UsageError(f"{path} is no valid TOML: {error}") from None
    for key in settings:
        if key == TRUST:
            raise UsageError(
                f"{path.name} holds trust, and no file decides on what runs here; name the modules on the command "
                "line, --trust MODULE, or in Python, trust=[…]"
            )
        if key not in KEYS:
            raise unknown(f"key of {path.name}", key, KEYS)
    return settings


def resolve(settings: Mapping[str, Any]) -> AuditConfig:
    """Turn settings (keys of `KEYS`, and `trust`; absent ones take the default) into a configuration.

    Raises:
        UsageError: for anything unknown or not allowed, in one sentence.

    >>> resolve({"defense": "patch_shuffle", "budget": "smoke:epochs=3"}).budget.epochs
    3
    """
    for key in settings:
        if key not in (*KEYS, TRUST):
            raise unknown("setting", str(key), KEYS)
    if settings.get(TRUST) and settings.get("recorded") is None:
        raise UsageError("trust says what a recording may run, and none is named; add --recorded, or leave trust out")
    s = {**DEFAULTS, **{key: value for key, value in settings.items() if value is not None}}
    for key, (kinds, what) in _TYPES.items():
        if key in s and not isinstance(s[key], kinds):
            raise UsageError(f"{key} must be {what}, got {shortened(s[key])}")
    victims, seeds, threads = s.get("victims"), as_seeds(s["seed"]), as_threads(s.get("threads"))
    device = as_device(s["device"])
    seconds = as_seconds(s.get("cell_seconds"))
    memory = None if s.get("cell_memory") is None else read_memory(s["cell_memory"])
    if victims not in (None, "private", "test"):
        raise unknown("victims", str(victims), ["private", "test"])
    if not 0 < s["delta"] < 1:
        raise UsageError(f"delta must lie in (0, 1), got {s['delta']}")
    gates = tuple(as_gate(text) for text in as_many(s.get("gate", [])))
    budget_name, budget = _budget(s["budget"])
    queries = specify("queries", QueryRules, as_options("queries", s["queries"]))
    plan = None if s.get("tune") is None else specify("tune", Tuning, as_options("tune", s["tune"]))
    features = _features(s.get("features", []))
    early.check(s)  # what follows imports torch
    from privkit.training.spec import TrainingSpec

    recorded = None
    if "recorded" in s:
        from privkit.recording.parts import recorded_parts

        recorded = recorded_parts(settings, budget)
    pairs = paired(as_many(s["defense"]), s.get("protocol")) if recorded is None else recorded.pairs
    named = _attacks(as_many(s["attack"]))
    attacks = distinct(budgeted(parse("attacks", given), budget) for given in named)
    dataset = parse("datasets", s["dataset"]) if recorded is None else recorded.dataset
    if s.get("skip_bad_rows"):
        dataset = _skipping(dataset)
    if gates and all(defense.name == "none" for _, defenses in pairs for defense in defenses):
        raise UsageError("a gate judges defenses, and none is audited here; name one with --defense, or drop --gate")
    root = s.get("data_root") or os.environ.get(DATA_ROOT_VARIABLE)
    wished = as_options("training", s["training"]) if recorded is None else recorded.training
    protocols: list[dict[str, Any]] = []
    for protocol, defenses in pairs:
        training = specify("training", TrainingSpec, {"batch_size": _natural_batch(protocol.spec.clients), **wished})
        training.check_epochs(budget.epochs)
        if training.keep == "best" and not (budget.validation and budget.epochs):
            raise UsageError(
                "training: keep=best needs validation images and an epoch; use a budget such as small:validation=500"
            )
        protocols.append({"protocol": protocol, "defenses": defenses, "training": training})
        if AUTO in as_many(s["attack"]):
            chosen = None if recorded is None else recorded.chosen()
            shared = training.freeze_lower or protocol.spec.average != "never"
            protocols[-1] |= _automatic(defenses, dataset, budget, chosen, shared)
        elif not attacks:
            raise UsageError("name at least one defense and one attack")
    config = AuditConfig(
        **protocols[0],
        attacks=attacks,
        dataset=dataset,
        model=model_for(dataset, settings.get("model")) if recorded is None else recorded.model,
        partition=parse("partitions", s["partition"]),
        delta=s["delta"],
        seeds=seeds,
        budget=budget,
        budget_name=budget_name,
        auxiliary=_auxiliary(s["auxiliary"], dataset),
        victims=victims,
        queries=queries,
        held=_held(s.get("parts", []), [defense for _, part in pairs for defense in part]),
        features=features,
        metrics=_metrics(s.get("metric", []), gates),
        device=device,
        data_root=Path(root).expanduser() if root else None,
        download=s.get("download", False),
        threads=threads,
        cell_seconds=seconds,
        cell_memory=memory,
        gates=gates,
        recording=None if recorded is None else recorded.recording,
        settings=as_kept(s if recorded is None else settings, root),
    )
    config = replace(config, tune=_tuning(plan, config.every_attack))
    check_same_domain(dataset, auxiliary=config.auxiliary, augment=config.training.augment, features=config.features)
    if config.metrics and not KINDS[domain_of(dataset)].pictures:
        raise UsageError(
            f"metric={config.metrics[0].label} looks at images, and {dataset.name} holds none; leave it out"
        )
    return replace(config, also=tuple(replace(config, **others) for others in protocols[1:]))


def _skipping(dataset: Component) -> Component:
    """The dataset without its bad rows.

    Raises:
        UsageError: if it has no rows of text that could be bad.
    """
    if getattr(dataset.spec, "skip_bad_rows", None) is not None:
        beside = "," if ":" in dataset.label else ":"
        given = dataset.label if dataset.spec.skip_bad_rows else f"{dataset.label}{beside}skip_bad_rows=true"
        return parse("datasets", given)
    having = [name for name, target in sorted(table("datasets").items()) if hasattr(load(target), "skip_bad_rows")]
    raise UsageError(
        f"skip_bad_rows=true leaves out rows of text files, and {dataset.name} reads none; leave it out, or choose one "
        f"of {', '.join(having)}"
    )


def _held(given: Any, defenses: Sequence[Component]) -> tuple[str, ...]:
    """Names of the parts that the adversary holds; each is a part of every release that is split."""
    names = tuple(dict.fromkeys(as_many(given)))
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


def _features(given: Any) -> tuple[str, ...]:
    """Names of feature networks; they are loaded when the run begins."""
    names = as_many(given)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"features must be names of networks, got {shortened(given)}")
    check_names(names)
    return tuple(names)


def _metrics(given: Any, gates: Sequence[Gate]) -> tuple[Component, ...]:
    """Own metrics, each with a column of its own, which gates may name.

    Raises:
        UsageError: for metrics that need not be asked for, two of one name, and gates on a metric that is not there.
    """
    from privkit.metrics.own import PREFIX, check_declared, column

    metrics: dict[str, Component] = {}
    for text in as_many(given):
        if isinstance(text, str) and text in METRICS:
            raise UsageError(f"{text} is measured wherever it means something; metric takes your own, module:object")
        metric = parse("metrics", text)
        try:
            check_declared(metric.spec)
        except ValueError as error:
            raise UsageError(f"metric {metric.label}: {error}") from None
        if (name := column(metric.spec)) in metrics:
            raise UsageError(f"{metrics[name].label} and {metric.label} are both called {metric.spec.name}; rename one")
        metrics[name] = metric
    for gate in gates:
        name = gate.column.removeprefix("unaligned_").removeprefix("matched_").removesuffix("_worst")
        if name.startswith(PREFIX) and name not in metrics:
            raise unknown(f"column of the gate {gate}", name, metrics)
    return tuple(metrics.values())


def _tuning(plan: Tuning | None, attacks: Sequence[Component]) -> Tuning | None:
    """How attacks are tuned, None if they are not.

    Raises:
        UsageError: if there is no attack that can be tuned, or optuna is not installed.
    """
    if plan is None:
        return None
    from privkit.attacks.search_space import why_untuned

    reasons = [f"{attack.label}: {why_untuned(attack.spec)}" for attack in attacks if why_untuned(attack.spec)]
    if len(reasons) == len(attacks):
        raise UsageError(f"tune finds nothing to tune ({'; '.join(reasons)}); leave it out, or name another attack")
    if find_spec("optuna") is None:
        raise UsageError("tune needs the package optuna: pip install 'privkit[tune]', or leave tune out")
    return plan


def _attacks(given: Sequence[Any]) -> Sequence[Any]:
    """`all` stands for every attack, since constant guesses are floors of every row; `auto` depends on the defense."""
    every = [name for name in table("attacks") if name not in CONSTANT_ATTACKS]
    return [name for entry in given if entry != AUTO for name in (every if entry == "all" else [entry])]


def _automatic(
    defenses: Sequence[Component], dataset: Component, budget: Budget, instead: Chosen | None, shared: bool
) -> dict[str, Any]:
    """The fields of a configuration that say what `auto` mounts on each defense, or on what was recorded of it."""
    domain = domain_of(dataset)
    chosen = {defense.label: instead or choose(defense, domain, shared=shared) for defense in defenses}
    mounted = {
        label: distinct(budgeted(parse("attacks", attack), budget) for attack in one.attacks)
        for label, one in chosen.items()
    }
    return {"automatic": mounted, "remarks": {label: one.remark for label, one in chosen.items() if one.remark}}


def _natural_batch(clients: int) -> int:
    """Fifty images a round over all clients, but at least five of each."""
    return max(5, 50 // clients)


def _auxiliary(given: Any, dataset: Component) -> str:
    """Where the adversary's images come from; never the private dataset itself, part by part unknown."""
    if given in ("disjoint", "training"):
        return str(given)
    named = parse("datasets", given)
    if named.name == dataset.name and _place(named) == _place(dataset):
        raise UsageError(
            f"auxiliary={named.label} is the private dataset itself, so private images would be among the adversary's; "
            "use disjoint (other images of it) or training (the private ones, on purpose)"
        )
    return named.label


def _place(dataset: Component) -> Path | None:
    """Where a dataset's own files are; None if its name says it."""
    path = getattr(dataset.spec, "path", None)
    return Path(path).resolve() if isinstance(path, str) else None


def budgeted(attack: Component, budget: Budget) -> Component:
    """Check what an attack declares, and give it its share of the budget's epochs, unless it named its own.

    Raises:
        UsageError: if a plug-in's attack lacks something of the contract.
    """
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


def _budget(given: Any) -> tuple[str, Budget]:
    """A preset, with overrides: "small:epochs=3" or {name="small", epochs=3}."""
    if isinstance(given, str):
        name, _, text = given.partition(":")
        options = read_options(given, text)
    else:
        options = as_options("budget", given)
        name = options.pop("name", DEFAULTS["budget"])
    if not isinstance(name, str) or name not in BUDGETS:
        raise unknown("budget", str(name), BUDGETS)
    return name, specify(f"budget {name}", BUDGETS[name], options)
