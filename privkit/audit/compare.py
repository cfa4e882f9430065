"""Compares two runs on the same data: pairs results by defense, attack and seed, and attacked records by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privkit.attacks.scores.image import Values
from privkit.errors import UsageError
from privkit.files.arrays import read_arrays
from privkit.files.paths import inside, root
from privkit.files.sealed import checked_bytes
from privkit.reports.columns import assumed, numbers
from privkit.reports.comparison import Comparison, Difference
from privkit.reports.origins import differences
from privkit.reports.schema import Manifest, Metric, Provenance, Row
from privkit.reports.seed_intervals import over_values
from privkit.reports.strongest import undefended
from privkit.run.differences import config_differences
from privkit.run.records import PICTURES, read_run
from privkit.shared.interval import Interval
from privkit.shared.measures import ANSWERS, KINDS, TASK, measure

if TYPE_CHECKING:
    from privkit.audit.run import AuditRun

# data that two runs must share; auxiliary records may differ, since they belong to the adversary
_DATA = ("private", "test")
_SCALARS = [measure.name for measure in (*TASK, *ANSWERS.values()) if measure.compared]
_SCALARS += ["epsilon", "epsilon_of_labels", "declared_epsilon", "declared_epsilon_of_labels"]
_SCALARS += ["empirical_epsilon", "bytes_up"]
"""Columns with one number per result row, and none per record."""
_CALLED = ("in A", "in B")
_Groups = dict[tuple[str, str], dict[int, Row]]  # (defense, attack) -> seed -> row


@dataclass(frozen=True, kw_only=True)
class _Run:
    path: Path
    manifest: Manifest
    rows: Sequence[Row]

    def groups(self) -> _Groups:
        found: _Groups = {}
        for row in self.rows:
            if row.status == "done":
                found.setdefault((row.defense, row.attack), {})[row.seed] = row
        return found

    def values(self, row: Row, names: Sequence[str]) -> tuple[list[int], dict[str, Values]]:
        path = inside(self.path, "cells", row.cell) / PICTURES
        wanted = {"ids": ("i", 1), **dict.fromkeys(names, ("f", 1))}
        arrays = read_arrays(path, checked_bytes(path, row.files.get(PICTURES)), wanted)
        return arrays["ids"].tolist(), {name: arrays[name] for name in names}


def compare(first: Path | str | AuditRun, second: Path | str | AuditRun) -> Comparison:
    """Compare the results of audit run B with the results of audit run A.

    Results of the same defense, attack and seed are compared. If each run has exactly one defense (or attack) that the
    other run lacks, these two are compared. Metrics of an attack's guesses are compared record by record.

    Args:
        first: run A, as the result of `run_audit` or as the folder of a finished run.
        second: run B, in the same form.

    Returns:
        The difference B − A of each metric with interval and p-value, the settings and code versions in which the
        runs differ, and the results without a counterpart in the other run.

    Raises:
        RunFolderError: if `first` or `second` is not a run folder.
        UsageError: if the runs have different private, test or attacked records, or no result in common.
        DamagedFile: if a file is damaged.
    """
    a, b = _read(first), _read(second)
    _same_data(a, b)
    pairs, alone = _pairs(a.groups(), b.groups())
    found = [difference for one, other in pairs for difference in _compared(a, b, one, other)]
    if not found:
        raise UsageError(
            f"{a.path} and {b.path} have no numbers of the same defense, attack and seed: {'; '.join(alone)}; "
            "compare runs of the same attack and seeds"
        )
    tested = [fields for fields in found if "p_value" in fields]
    for fields, p_value in zip(tested, _holm([fields["p_value"] for fields in tested]), strict=True):
        fields["p_value"] = p_value
    made_of = dict.fromkeys(
        change.replace(" there", " in A").replace(" here", " in B")
        for one, other in pairs
        for seed in one.keys() & other.keys()
        for change in differences(*_origins(one[seed], other[seed]), seed=seed)
    )
    return Comparison(
        first=str(a.path),
        second=str(b.path),
        differences=tuple(Difference(**fields) for fields in found),
        configuration=tuple(config_differences(a.manifest.config, b.manifest.config, called=_CALLED)),
        made_of=tuple(made_of),
        unpaired=tuple(alone),
    )


def _read(given: Path | str | AuditRun) -> _Run:
    path = root(given if isinstance(given, str | Path) else given.folder)
    manifest, rows = read_run(path)
    return _Run(path=path, manifest=manifest, rows=rows)


def _same_data(a: _Run, b: _Run) -> None:
    known = [[row for row in run.rows if row.provenance.data] for run in (a, b)]  # a row of a lost worker has no data
    hashes: list[dict[tuple[int, str], set[str | None]]] = [{}, {}]
    for found, rows in zip(hashes, known, strict=True):
        for row, part in product(rows, _DATA):
            found.setdefault((row.seed, part), set()).add(row.provenance.data.get(part))
    common = hashes[0].keys() & hashes[1].keys()
    if not common:
        seeds = [", ".join(map(str, sorted({row.seed for row in rows}))) or "none" for rows in known]
        raise UsageError(f"no seed in common ({seeds[0]} in A, {seeds[1]} in B); compare runs of one seed")
    other = sorted((seed, part) for seed, part in common if hashes[0][seed, part] != hashes[1][seed, part])
    if other:
        seed, part = other[0]
        labels = " and ".join(dict.fromkeys(row.dataset for run in (a, b) for row in run.rows))
        raise UsageError(
            f"the runs have other {part} records with seed {seed} (datasets: {labels}), so that nothing can be paired; "
            "compare runs with the same --dataset, --budget and --seed"
        )


def _pairs(first: _Groups, second: _Groups) -> tuple[list[tuple[dict[int, Row], dict[int, Row]]], list[str]]:
    """Pair the results of two runs, each {seed: result row}; name each defense and attack without a partner."""
    pairs = [(first[key], second[key]) for key in first if key in second]
    left, right = [key for key in first if key not in second], [key for key in second if key not in first]
    # first pair the same attack on two defenses, then two attacks on the same defense; the undefended model comes last:
    # an attack on it runs only if this attack failed on a defense, so perhaps in only one of the runs
    for bare, place in ((False, 1), (False, 0), (True, 1), (True, 0)):
        for shared in dict.fromkeys(key[place] for key in left):
            alike = [[key for key in keys if key[place] == shared] for keys in (left, right)]
            ours, theirs = ([key for key in keys if bare or not undefended(key[0])] for keys in alike)
            if len(ours) == len(theirs) == 1:
                pairs.append((first[ours[0]], second[theirs[0]]))
                left.remove(ours[0])
                right.remove(theirs[0])
    named = [(keys, where) for keys, where in zip((left, right), _CALLED, strict=True)]
    return pairs, [f"{defense} / {attack} only {where}" for keys, where in named for defense, attack in keys]


def _origins(one: Row, other: Row) -> tuple[Provenance, Provenance]:
    """The provenance of two result rows. If their attacks or defenses differ, only entries that both have are kept."""
    if (one.defense, one.attack) == (other.defense, other.attack):
        return one.provenance, other.provenance
    mine, its = one.provenance, other.provenance
    kept = {name: getattr(mine, name).keys() & getattr(its, name).keys() for name in Provenance.model_fields}

    def shared(made: Provenance) -> Provenance:
        return Provenance(**{name: {key: getattr(made, name)[key] for key in sorted(kept[name])} for name in kept})

    return shared(mine), shared(its)


def _compared(a: _Run, b: _Run, one: dict[int, Row], other: dict[int, Row]) -> list[dict[str, Any]]:
    seeds = tuple(seed for seed in one if seed in other)
    if not seeds:
        return []
    ours, theirs = ([rows[seed] for seed in seeds] for rows in (one, other))
    first, second = (f"{rows[0].defense} / {rows[0].attack}" for rows in (ours, theirs))
    same = {"first_name": first, "second_name": second, "seeds": seeds}
    return [same | fields for fields in (*_by_record(a, b, ours, theirs), *_by_row(ours, theirs))]


def _by_record(a: _Run, b: _Run, ours: Sequence[Row], theirs: Sequence[Row]) -> list[dict[str, Any]]:
    """Compare the metrics of guesses record by record, for attacked records that both runs have."""
    rows, likenesses = [*ours, *theirs], {kind.likeness for kind in KINDS.values()}
    metrics = [
        f"{alignment}_{name}"
        for alignment in ("unaligned", "matched")
        for name in ours[0].recovered.get(alignment, {})
        if measure(name).compared and (alignment == "unaligned" or name in likenesses)
        if all(name in row.recovered.get(alignment, {}) for row in rows)
    ]
    if not metrics or not all(PICTURES in row.files for row in rows):
        return []
    values: dict[str, tuple[list[Values], list[Values]]] = {name: ([], []) for name in metrics}
    paired_ids: list[list[int]] = []
    for mine, its in zip(ours, theirs, strict=True):
        (ids, first), (others, second) = a.values(mine, metrics), b.values(its, metrics)
        shared = sorted(set(ids) & set(others))
        if not shared:
            raise UsageError(f"the runs attack other records with seed {mine.seed}; compare runs of the same --victims")
        paired_ids.append(shared)
        here, there = ([where.index(record) for record in shared] for where in (ids, others))
        for name in metrics:
            values[name][0].append(first[name][here])
            values[name][1].append(second[name][there])
    found = []
    for name, (one, other) in values.items():
        if not all(np.isfinite(part).all() for part in (*one, *other)):
            continue
        result = paired(one, other, paired_ids)
        found.append(
            {
                "quantity": name.removeprefix("unaligned_"),
                "first": float(np.mean([part.mean() for part in one])),
                "second": float(np.mean([part.mean() for part in other])),
                "records": len({record for seed in paired_ids for record in seed}),
                **result._asdict(),
            }
        )
    return found


def _by_row(ours: Sequence[Row], theirs: Sequence[Row]) -> list[dict[str, Any]]:
    first, second = [numbers(row) for row in ours], [numbers(row) for row in theirs]
    found = []
    for name in _SCALARS:
        if all(name in row for row in (*first, *second)):
            one, other = ([_as_interval(row[name]) for row in rows] for rows in (first, second))
            if one == other and one[0].method == "exact":
                continue  # an exact number that is equal in both runs
            found.append(
                {
                    "quantity": name + assumed(name, [*ours, *theirs]),
                    "first": float(np.mean([value.value for value in one])),
                    "second": float(np.mean([value.value for value in other])),
                    "difference": unpaired(one, other),
                }
            )
    return found


def _as_interval(value: Interval | float) -> Interval:
    if isinstance(value, Metric | Interval):
        return value
    return Interval(value=float(value), low=float(value), high=float(value), n=1, method="exact")


class _Paired(NamedTuple):
    difference: Interval  # mean of second − first, with its interval over seeds or, for one seed, over records
    p_value: float  # two-sided p-value of the hypothesis that differences are symmetric around 0
    effect: float  # matched-pairs rank-biserial correlation in [-1, 1]


def paired(first: Sequence[Values], second: Sequence[Values], ids: Sequence[Sequence[int]] | None = None) -> _Paired:
    """Compare two measurements of the same records, each with one array [N] per seed, by Wilcoxon's signed-rank test.

    `ids` names the records of each seed; None if all differ. A record that several seeds share counts once, with its
    mean change. The p-value holds for the given trained models only; an interval over seeds shows the variation between
    trainings.

    Source: Wilcoxon 1945, with zeros as in Pratt 1959; Kerby 2014 (rank-biserial correlation); Student 1908
    (intervals).
    """
    from scipy.stats import rankdata, wilcoxon

    changes = [b - a for a, b in zip(first, second, strict=True)]
    together = np.concatenate(changes)
    if ids is not None:
        _, record = np.unique(np.concatenate(ids), return_inverse=True)
        together = np.bincount(record, together) / np.bincount(record)
    ranks = rankdata(np.abs(together))
    up, down = float(ranks[together > 0].sum()), float(ranks[together < 0].sum())
    means = [float(change.mean()) for change in changes]
    difference = over_values(means if len(means) > 1 else together.tolist(), 0.95)
    if not up + down:
        return _Paired(difference, 1.0, 0.0)
    p_value = float(wilcoxon(together, zero_method="pratt").pvalue)
    return _Paired(difference, p_value, (up - down) / (up + down))


def unpaired(first: Sequence[Interval], second: Sequence[Interval]) -> Interval:
    """The difference (second − first) of two measurements with one value per seed and none per record.

    With several seeds, the interval is Student's. With one seed, it combines the intervals of both values as if the
    values were independent (Zou and Donner 2008); it is too wide if both were measured on the same records.
    """
    changes = [0.0 if a.value == b.value else b.value - a.value for a, b in zip(first, second, strict=True)]
    if len(changes) > 1 and all(map(isfinite, changes)):
        return over_values(changes, 0.95)
    (a, b), change = (first[0], second[0]), float(np.mean(changes))
    if not isfinite(change):
        return Interval(value=change, low=change, high=change, n=len(changes), method="infinite")
    low = sqrt((b.value - b.low) ** 2 + (a.high - a.value) ** 2)
    high = sqrt((b.high - b.value) ** 2 + (a.value - a.low) ** 2)
    return Interval(value=change, low=change - low, high=change + high, n=a.n, method="from the limits of both")


def _holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for the number of tests (Holm 1979).

    >>> [round(p, 3) for p in _holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order, count = np.argsort(p_values, kind="stable"), len(p_values)
    adjusted = np.empty(count)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(count, 0, -1) * np.asarray(p_values)[order]))
    values: list[float] = adjusted.tolist()
    return values
