"""Orderings of methods that papers publish, judged on the rows of audits: does "A is more accurate than B" show?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from privkit.errors import UsageError
from privkit.interval import Interval
from privkit.run.records import read_rows as run_rows
from privkit.toml_text import parse_toml

FIELDS = ("defense", "protocol", "dataset", "model", "partition")
"""Fields of a row that say which method it is."""
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """A published statement that one method is more accurate than another.

    Attributes:
        claim: the statement.
        source: table or figure of the paper.
        better: name of the method that is more accurate.
        worse: name of the other method.
    """

    claim: str
    source: str
    better: str
    worse: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Accuracies of one method, seed by seed.

    Attributes:
        method: its name in the paper's orderings.
        accuracy: seed -> test accuracy in [0, 1].
    """

    method: str
    accuracy: Mapping[int, float]

    @property
    def interval(self) -> Interval | None:
        """Mean over seeds with a 95 % interval that stays in [0, 1]; None below two seeds."""
        from privkit.audit.seed_intervals import UNIT, over_values

        return over_values(list(self.accuracy.values()), CONFIDENCE, UNIT) if len(self.accuracy) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An ordering and what the rows say of it.

    Attributes:
        ordering: the published statement.
        difference: of the accuracies of the same seeds, better minus worse, with Student's 95 % interval; None below
            two common seeds.
        verdict: "reproduced" if the interval lies above 0, "reversed" if below, else "undecided"; "not run" without
            two common seeds.
    """

    ordering: Ordering
    difference: Interval | None
    verdict: Literal["reproduced", "reversed", "undecided", "not run"]


def orderings(paper: str) -> tuple[Ordering, ...]:
    """A paper's orderings, from `orderings.toml` of its folder.

    >>> orderings("dp_cutmixsl")[0].claim
    'CutMixSL > PSL + Mixup'
    """
    return tuple(Ordering(**entry) for entry in _toml(f"privkit.papers.{paper}", "orderings.toml").get("ordering", ()))


def measured(paper: str, rows: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The accuracies of a paper's methods among the rows of audits.

    Args:
        paper: name of its folder.
        rows: with the fields `defense`, `protocol`, `dataset`, `model`, `partition`, `seed` and `accuracy`.

    Raises:
        UsageError: if two rows of one method and seed have different accuracies: they are of different runs.
    """
    rows, methods = list(rows), _toml("privkit.papers", "methods.toml")
    measurements = []
    for name in dict.fromkeys(name for one in orderings(paper) for name in (one.better, one.worse)):
        accuracy: dict[int, float] = {}
        for row in rows:
            if _is(row, methods[name]):
                value = accuracy.setdefault(row["seed"], row["accuracy"])
                if value != row["accuracy"]:
                    raise UsageError(
                        f"{name}, seed {row['seed']}, has the accuracies {value:g} and {row['accuracy']:g}: give "
                        "rows of one configuration only"
                    )
        measurements.append(Measured(method=name, accuracy=accuracy))
    return measurements


def judge(paper: str, measurements: Sequence[Measured]) -> list[Judged]:
    """The verdict on each ordering of a paper, from differences of the same seeds."""
    from privkit.audit.seed_intervals import over_values

    accuracy = {one.method: one.accuracy for one in measurements}
    judged = []
    for ordering in orderings(paper):
        better, worse = accuracy[ordering.better], accuracy[ordering.worse]
        common = sorted(set(better) & set(worse))
        if len(common) < 2:
            judged.append(Judged(ordering=ordering, difference=None, verdict="not run"))
            continue
        gap = over_values([better[seed] - worse[seed] for seed in common], CONFIDENCE)
        verdict: Literal["reproduced", "reversed", "undecided"] = (
            "reproduced" if gap.low > 0 else "reversed" if gap.high < 0 else "undecided"
        )
        judged.append(Judged(ordering=ordering, difference=gap, verdict=verdict))
    return judged


def read_rows(path: Path | None = None) -> list[dict[str, Any]]:
    """Rows of a run folder or of a file of JSON lines; by default those that ship with the package.

    Raises:
        UsageError: if there is no such file, or a line is no row.
    """
    if path is None:
        text, name = (files("privkit.papers") / "measured.jsonl").read_text(encoding="utf-8"), "measured.jsonl"
    else:
        if path.is_dir():
            return [row.model_dump() | {"accuracy": row.accuracy.value} for row in run_rows(path) if row.accuracy]
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): give a run folder or a file of its rows") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
            accuracy = row["accuracy"]
            row["accuracy"] = accuracy["value"] if isinstance(accuracy, dict) else accuracy
            missing = [field for field in (*FIELDS, "seed") if field not in row]
            if missing:
                raise KeyError(missing[0])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{name}, line {number}, is no row of an audit: {error}") from error
        if row["accuracy"] is not None:
            rows.append(row)
    return rows


def _is(row: Mapping[str, Any], method: Mapping[str, str]) -> bool:
    """Whether a row is of a method; the method's model is the beginning of the row's."""
    given = {**row, "defense": _without_protocol(row["defense"]), "model": row["model"][: len(method["model"])]}
    return all(given[field] == method[field] for field in FIELDS)


def _without_protocol(defense: str) -> str:
    """A defense as a row names it, without the protocol, which is a field of its own.

    >>> _without_protocol("random_cutmix:group=3,protocol=cutmixsl"), _without_protocol("none:protocol=psl")
    ('random_cutmix:group=3', 'none')
    """
    name, _, options = defense.partition(":")
    kept = ",".join(option for option in options.split(",") if not option.startswith("protocol="))
    return f"{name}:{kept}" if kept else name


@cache
def _toml(package: str, name: str) -> dict[str, Any]:
    """A TOML file of a package; empty if there is none."""
    file = files(package) / name
    return parse_toml(file.read_text(encoding="utf-8")) if file.is_file() else {}
