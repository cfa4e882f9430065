"""Measures a table of a paper again: audits its methods, and shows the results beside the printed numbers.

The audited methods are those that the paper compares in its orderings (statements such as "A is more accurate than B").
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privkit.audit.run import run_audit
from privkit.errors import UsageError, unknown
from privkit.papers import PAPERS, paper
from privkit.papers.coverage import coverage
from privkit.papers.orderings import FLOOR, QUANTITIES, floor_of, measured, orderings, wanted, without_protocol
from privkit.papers.presets import PUBLISHED_WORK, preset_settings
from privkit.papers.reproduced import SCALES, Reproduced, Scale, claim_patterns, comparisons, judged_rows, tables
from privkit.run.progress import Progress
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve

_TINY: Mapping[str, Any] = {
    "dataset": "digits",
    "auxiliary": "disjoint",
    "victims": "private",
    "budget": "smoke:private=600,auxiliary=400,test=500,victims=100,epochs=10",
    "seed": [0, 1, 2],
    "threads": 1,
}
"""Settings that replace those of an experiment at tiny scale."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One audit result (a defense, an attack and a seed) that a published ordering or effect needs."""

    experiment: str  # the experiment's configuration, such as cutmixsl/table_2_small
    config: AuditConfig  # an audit with this result alone
    row: dict[str, Any]  # fields that identify the method; dataset and model are the experiment's at any scale
    quantities: tuple[str, ...]  # the quantities to be recorded: "accuracy", "mse"


def work(
    experiment: str, path: Path, changes: Mapping[str, Any], judged: str = "", runs: Collection[tuple[str, str]] = ()
) -> Iterator[Work]:
    """Yield the audits (one defense, attack and seed each) of an experiment that a paper's orderings need.

    Args:
        experiment: name of the experiment, such as cutmixsl/table_2_small, whose settings are in the file `path`.
        changes: settings that replace the experiment's own; results still name the experiment's data and model.
        judged: the paper with the orderings; by default the experiment's paper.
        runs: pairs (experiment, defense) of additional audits, whose results also name their experiment.
    """
    judged = judged or experiment.partition("/")[0]
    settings = {**PUBLISHED_WORK, **preset_settings(path)}
    root = {key: value for key, value in changes.items() if key == "data_root"}
    parts = zip(resolve({**settings, **root}).parts, resolve({**settings, **changes}).parts, strict=True)
    for named, part in parts:
        for defense in part.defenses:
            for attack in part.attacks:
                for seed in part.seeds:
                    row = {
                        "defense": without_protocol(defense.label),
                        "attack": attack.label,
                        "protocol": part.protocol.label,
                        "dataset": named.dataset.label,
                        "model": named.model.label,
                        "partition": part.partition.label,
                        "auxiliary": named.auxiliary,
                        "seed": seed,
                    }
                    quantities = wanted(judged, row)
                    if (path.stem, defense.label) in runs:
                        row, quantities = {**row, "experiment": path.stem}, ("accuracy",)
                    if quantities:
                        alone = replace(part, defenses=(defense,), attacks=(attack,), seeds=(seed,), also=())
                        yield Work(experiment=experiment, config=alone, row=row, quantities=quantities)


def measure_cell(one: Work, out: Path) -> dict[str, Any]:
    """Compute one result, and return its row with the needed quantities. Raises `UsageError` if the audit fails."""
    run = run_audit(one.config, out=out / one.config.fingerprint)
    (row,) = run.rows
    trained = row.status == "not_applicable" and set(one.quantities) == {"accuracy"}  # accuracy needs no attack
    if row.status != "done" and not trained:
        raise UsageError(f"{row.cell} is {row.status}: {row.reason}")
    found = {name: QUANTITIES[name](row) or 0.0 for name in one.quantities}
    if "mse" in found and (floor := floor_of(row)) is not None:
        found[FLOOR] = floor
    own = {"dataset": one.config.dataset.label, "model": one.config.model.label}
    ran = {name: label for name, label in own.items() if label != one.row[name]}  # smaller ones at tiny scale
    rounded = {name: round(value, 6) for name, value in found.items()}
    return {**one.row, **rounded, **({"ran": ran} if ran else {})}


def needed_cells(name: str, table: str, scale: Scale, data_root: str | None = None) -> list[Work]:
    """The audits (one defense, attack and seed each) that are needed to judge a table of a paper. A table is judged by
    orderings ("A is more accurate than B") and by effects, i.e. differences that a bug of released code may cause.
    Below the paper's scale, reduced experiments of other papers are used as well, because papers share methods."""
    if table not in tables(name):
        raise unknown(f"table of {name}", table, tables(name))
    methods = {(own, one.quantity) for one in orderings(name) if one.source == table for own in (one.better, one.worse)}
    ending = "_medium" if scale == "medium" else "_small"
    named = {entry.experiment for entry in coverage(name).entries if entry.table == table}
    chosen = {
        f"{one}/{path.stem}": path
        for one in (name, *(other for other in PAPERS if other != name))
        for path in paper(one).experiments
        if (one == name and path.stem in named if scale == "paper" else path.stem.endswith(ending))
    }
    root: dict[str, Any] = {} if data_root is None else {"data_root": data_root}
    effects = paper(name).effects
    runs = effects.needed_runs(claim_patterns(name, table)) if effects and scale in ("tiny", "small") else set()
    cells: dict[tuple[Any, ...], Work] = {}
    for experiment, path in chosen.items():
        own = list(work(experiment, path, root, name, runs))
        needed = ["experiment" in one.row or bool(methods_of(name, one) & methods) for one in own]
        if scale == "tiny" and any(needed):
            own = list(work(experiment, path, root | _shrunk(preset_settings(path)), name, runs))
        for one, found in zip(own, needed, strict=True):
            if found:
                cells.setdefault(tuple(one.row.values()), one)
    return list(cells.values())


def planned_cells(name: str, table: str, scale: Scale, data_root: str | None = None) -> list[Work]:
    """The audits of `needed_cells`. Raises `UsageError` if there is none and no claim is compared without a run."""
    cells = needed_cells(name, table, scale, data_root)
    if not cells and not comparisons(name, table, []):
        raise UsageError(why_not(name, table, scale))
    return cells


def reproduce(
    name: str,
    table: str,
    *,
    scale: Scale = "tiny",
    data_root: str | None = None,
    out: Path | str = "privkit-runs/reproduce",
    progress: Progress | None = None,
) -> Reproduced:
    """Measure a table of a paper again by audits, or continue an interrupted measurement; return results and verdicts.

    Args:
        table: name of the table, as `privkit papers NAME --coverage` lists it.
        scale: size of the experiments: "tiny" (digits that ship with privkit), "small" (the paper's data or, in
            some papers, digits, at reduced size), "medium" (also the paper's network) or "paper".
        out: the folder for the audits' results.

    Raises:
        UsageError: if there is no such paper, table or scale, or if the table cannot be measured.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    progress = progress or Progress()
    cells = planned_cells(name, table, scale, data_root)
    rows = []
    for number, one in enumerate(cells, start=1):
        called = f"{one.row['defense']}, {one.row['protocol']}, seed {one.row['seed']}"
        progress.cell(number, len(cells), called)
        rows.append(measure_cell(one, Path(out) / scale))
        progress.ended("done")
    return judged_rows(name, table, scale, rows)


def methods_of(name: str, one: Work) -> set[tuple[str, str]]:
    """The pairs of method and quantity in the paper's orderings to which a result contributes."""
    row = {**one.row, **dict.fromkeys(one.quantities, 0.0)}
    return {(each.method, each.quantity) for each in measured(name, [row]) if each.values}


def _shrunk(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that replace an experiment's own at tiny scale, so that each result takes seconds."""
    model = str(settings.get("model", ""))
    cut = "embedding" if "cut=embedding" in model else "block1"
    small: dict[str, Any] = {"model": f"vit_micro:cut={cut}"} if model.startswith(("vit", "t2t", "pit")) else {}
    if model.startswith("vgg"):
        small = {"model": "cnn:cut=conv2"}
    if "keep" in settings.get("training", {}):  # the best of ten epochs would be chosen on few images
        small["training"] = {**settings["training"], "keep": "last"}
    named = str(settings.get("dataset", "")).partition(":")[0]
    if named in ("digits", "tiny_digits"):
        small["dataset"] = settings["dataset"]
    elif named in ("imdb", "names", "amazon_reviews"):
        small["dataset"] = "definitions"
    return {**_TINY, **small}


def why_not(name: str, table: str, scale: Scale) -> str:
    """A sentence that says why nothing in a table can be measured, and what to do instead."""
    entries = [entry for entry in coverage(name).entries if entry.table == table]
    files = dict.fromkeys(f"{entry.experiment}.toml" for entry in entries if entry.experiment)
    if files:
        return (
            f"no ordering of {name}, {table}, can be judged at scale {scale}; audit its experiment instead: "
            f"privkit audit --config FILE with {' or '.join(files)} (privkit papers {name} lists the files)"
        )
    reasons = " ".join(dict.fromkeys(entry.reason for entry in entries if entry.reason))
    return f"an audit measures no number of {name}, {table}: {reasons or 'it prints no number'}"
