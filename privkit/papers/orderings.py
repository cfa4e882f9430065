"""Published orderings of methods ("A is more accurate than B"), judged on the results of audits.

An ordering is a paper's statement that one method has a larger value of a quantity (the accuracy or an attack's error)
than another method. It names the method with the larger value first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from re import sub
from typing import Any, Literal

from privkit.errors import UsageError
from privkit.papers.further_seeds import CONFIDENCE, PILOT, judged_differences, needed_seeds
from privkit.papers.values import paper_toml, printed
from privkit.reports.schema import Row
from privkit.run.records import read_rows as run_rows
from privkit.shared.interval import Interval
from privkit.shared.measures import measure

_FIELDS = ("defense", "protocol", "dataset", "model", "partition")
"""Fields of a result row that identify its method; a method may also name `attack` and `auxiliary`."""
QUANTITIES: Mapping[str, Callable[[Row], float | None]] = {
    "accuracy": lambda row: row.accuracy.value if row.accuracy else None,
    "mse": lambda row: row.recovered["unaligned"]["mse"].value if row.recovered else None,
}
"""Quantity that an ordering may compare -> function that reads its value from a result row."""
FLOOR = "mean_image"  # field of a row: the error of guessing the mean of the adversary's images
RunSize = Literal["small", "medium"]
"""Runs smaller than the paper's: "small" takes minutes on one CPU core, "medium" has the paper's network, on a GPU."""
ROWS_OF: Mapping[RunSize, str] = {"small": "measured.jsonl", "medium": "medium.jsonl"}
"""Size of runs -> the file in this package with their result rows."""
OrderingVerdict = Literal["agrees", "ordering agrees", "reversed", "undecided", "at the floor", "not run"]
"""Our verdict on a published ordering; see `Judged`."""


def floor_of(row: Row) -> float | None:
    """The MSE of guessing the mean of the adversary's own images, which needs no release; None if the row lacks it."""
    floor = row.floors.get(FLOOR, {}).get("unaligned", {}).get("mse")
    return None if floor is None else floor.value


@dataclass(frozen=True, kw_only=True)
class _Ordering:
    claim: str  # the statement, such as "A is more accurate than B"
    source: str  # table or figure of the paper
    better: str  # name of the method with the larger value
    worse: str  # name of the method with the smaller value
    quantity: str = "accuracy"  # one of `QUANTITIES`
    # row and column of both printed values in `source`, the better method first; None if the numbers are not printed,
    # or are printed for other data
    numbers: tuple[tuple[str, str], tuple[str, str]] | None = None

    def published(self, paper: str) -> float | None:
        """The printed difference, better minus worse, with percentages as shares; None if no numbers are printed."""
        if self.numbers is None:
            return None
        better, worse = (printed(paper, self.source, row, column) for row, column in self.numbers)
        return (better - worse) / (100 if self.quantity == "accuracy" else 1)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The values of one quantity of a method, by seed."""

    method: str  # the method's name in the paper's orderings
    quantity: str  # one of `QUANTITIES`
    values: Mapping[int, float]  # seed -> value
    # seed -> the error of guessing the mean of the adversary's images, for seeds whose rows have it
    floors: Mapping[int, float] = field(default_factory=dict)
    # mean seconds of a row, over rows that give seconds; an upper bound, since machines were shared
    seconds: float = 0.0
    size: RunSize | None = None  # size of the runs; None for a user's runs

    @property
    def interval(self) -> Interval | None:
        """The mean over seeds with a 95 % interval inside the quantity's range; None for fewer than two seeds."""
        from privkit.reports.seed_intervals import over_values

        if len(self.values) < 2:
            return None
        return over_values(list(self.values.values()), CONFIDENCE, measure(self.quantity).within)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An ordering of two methods, with its verdict on audits' results."""

    ordering: _Ordering  # the published statement
    published: float | None  # the printed difference; None if the numbers are not printed
    # mean difference over common seeds, better minus worse, with Student's 95 % interval; None below two common seeds
    difference: Interval | None
    # "ordering agrees" if the interval lies above 0, and "agrees" if it also contains the printed difference;
    # "reversed" if it lies below 0; otherwise "undecided". "at the floor" if the attacks on both methods have at least
    # the error of guessing the mean image, so that they recover nothing. "not run" without two common seeds.
    verdict: OrderingVerdict
    # number of new seeds that would decide the ordering; 0 if the first three do; see `further_seeds.needed_seeds`
    needed: int | None = 0
    hours: float | None = 0.0  # upper bound of the hours of one CPU core for `needed` seeds of both methods
    anew: bool = False  # whether only new seeds were judged
    size: RunSize | None = None  # size of the judged runs; None for a user's runs


def orderings(paper: str) -> tuple[_Ordering, ...]:
    """Load the orderings ("A is more accurate than B") that a paper claims, from its file `orderings.toml`."""
    return tuple(_Ordering(**entry) for entry in paper_toml("orderings.toml", paper).get("ordering", ()))


def on_other_data(method: str) -> bool:
    """Whether a method was run on the digits that ship with privkit, which no paper uses."""
    return bool(paper_toml("methods.toml")[method]["dataset"] in ("digits", "tiny_digits"))


def needed(paper: str) -> dict[tuple[str, str], None]:
    """The pairs of method and quantity in a paper's orderings, each once, in order."""
    return {(name, one.quantity): None for one in orderings(paper) for name in (one.better, one.worse)}


def wanted(paper: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The quantities in a result row that a paper's orderings need. If methods name the row's attack, only the
    quantities of these methods count."""
    methods = paper_toml("methods.toml")
    matching = [(name, quantity) for name, quantity in needed(paper) if _is(row, methods[name])]
    attacked = [(name, quantity) for name, quantity in matching if "attack" in methods[name]]
    return tuple(dict.fromkeys(quantity for _, quantity in attacked or matching))


def measured(paper: str, rows: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Collect the values (accuracy or attack error) of each method of a paper, by seed, from rows of `audit_rows`.
    Raises `UsageError` if two rows give a method different values for one seed: their configurations differ."""
    rows, methods = list(rows), paper_toml("methods.toml")
    measurements = []
    for name, quantity in needed(paper):
        values: dict[int, float] = {}
        floors: dict[int, float] = {}
        seconds: list[float] = []
        for row in rows:
            if row.get(quantity) is not None and _is(row, methods[name]):
                if quantity == "mse" and row.get(FLOOR) is not None:
                    floors[row["seed"]] = row[FLOOR]
                if row.get("seconds"):
                    seconds.append(row["seconds"])
                value = values.setdefault(row["seed"], row[quantity])
                if value != row[quantity]:
                    raise UsageError(
                        f"{name}, seed {row['seed']}, has {quantity} {value:g} in one row and {row[quantity]:g} in "
                        "another: give rows of one configuration only"
                    )
        mean = sum(seconds) / len(seconds) if seconds else 0.0
        measurements.append(
            Measured(method=name, quantity=quantity, values=values, floors=floors, seconds=round(mean, 1))
        )
    return measurements


def recorded(paper: str) -> dict[RunSize, list[Measured]]:
    """The values of a paper's methods in the result rows that ship with the package, by size of the experiment."""
    return {size: [replace(one, size=size) for one in measured(paper, audit_rows(size=size))] for size in ROWS_OF}


def on_record(paper: str) -> list[Judged]:
    """Judge each ordering ("A is more accurate than B") of a paper by the results that ship with privkit. The verdict
    uses the larger of two experiments, provided that both methods were run there with the first three seeds. If these
    seeds do not decide, and all needed new seeds were run, only the new seeds are judged
    (`further_seeds.judged_differences`)."""
    small, medium = recorded(paper).values()
    whole = {(one.method, one.quantity) for one in medium if set(PILOT) <= set(one.values)}

    def judged(less: Judged, more: Judged) -> Judged:
        sides = {(name, less.ordering.quantity) for name in (less.ordering.better, less.ordering.worse)}
        return replace(more, size="medium") if sides <= whole else replace(less, size="small")

    pairs = zip(
        ordering_verdicts(paper, small, judged_differences),
        ordering_verdicts(paper, medium, judged_differences),
        strict=True,
    )
    return [judged(*pair) for pair in pairs]


def ordering_verdicts(
    paper: str,
    measurements: Sequence[Measured],
    counted: Callable[[Mapping[int, float]], Mapping[int, float]] = dict,
) -> list[Judged]:
    """Judge each ordering of a paper by the differences between runs with equal seeds. `counted` selects the
    differences (seed -> difference) that are judged, by default all."""
    from privkit.reports.seed_intervals import over_values

    found = {(one.method, one.quantity): one for one in measurements}
    judged = []
    for ordering in orderings(paper):
        better, worse = (found[name, ordering.quantity] for name in (ordering.better, ordering.worse))
        common, stated = sorted(set(better.values) & set(worse.values)), ordering.published(paper)
        gaps = {seed: better.values[seed] - worse.values[seed] for seed in common}
        counting, needed = counted(gaps), needed_seeds(gaps)
        gap = over_values(list(counting.values()), CONFIDENCE) if len(counting) > 1 else None
        verdict = _verdict(gap, stated)
        if gap is not None and all(map(_recovers_nothing, (better, worse))):
            verdict = "at the floor"
        judged.append(
            Judged(
                ordering=ordering,
                published=stated,
                difference=gap,
                verdict=verdict,
                needed=needed,
                hours=None if needed is None else needed * (better.seconds + worse.seconds) / 3600,
                anew=gap is not None and not set(counting) & set(PILOT),
            )
        )
    return judged


def _recovers_nothing(one: Measured) -> bool:
    """Whether the attack's mean error over all seeds is at least the error of guessing the mean image."""
    known = [seed for seed in one.values if seed in one.floors]
    return bool(known) and sum(one.values[seed] - one.floors[seed] for seed in known) >= 0


def _verdict(gap: Interval | None, published: float | None) -> OrderingVerdict:
    if gap is None:
        return "not run"
    if gap.low > 0:
        return "agrees" if published is not None and gap.low <= published <= gap.high else "ordering agrees"
    return "reversed" if gap.high < 0 else "undecided"


def audit_rows(path: Path | None = None, size: RunSize = "small") -> list[dict[str, Any]]:
    """Read result rows (one attack on one defense with one seed) from a run folder or a file of JSON lines. Without a
    path, read privkit's own rows of this `size`. Raises `UsageError` if the file or one of its lines cannot be read."""
    if path is None:
        name = ROWS_OF[size]
        text = (files("privkit.papers") / name).read_text(encoding="utf-8")
    else:
        if path.is_dir():
            of_rows = {**QUANTITIES, FLOOR: floor_of}
            return [row.model_dump() | {name: of(row) for name, of in of_rows.items()} for row in run_rows(path)]
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): give a run folder or a file of its rows") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
            missing = [field for field in (*_FIELDS, "seed") if field not in row]
            if not any(name in row for name in QUANTITIES):
                missing.append(" or ".join(QUANTITIES))
            if missing:
                raise KeyError(missing[0])
            if isinstance(row.get("accuracy"), dict):  # a line of a run folder's results.jsonl
                row["accuracy"] = row["accuracy"]["value"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{name}, line {number}, is not a row of an audit: {error}") from error
        rows.append(row)
    return rows


def _is(row: Mapping[str, Any], method: Mapping[str, str]) -> bool:
    model = row["model"] if ":" in method["model"] else row["model"][: len(method["model"])]
    protocol = sub(r"[:,]grouping=\w+$", "", row["protocol"])  # an experiment's setting, which no method names
    given = {**row, "defense": without_protocol(row["defense"]), "model": model, "protocol": protocol}
    return all(given.get(field) == value for field, value in method.items())


def without_protocol(defense: str) -> str:
    """A defense's label without its option `protocol`, which results hold in a separate field."""
    return sub(r"[:,]protocol=.*$", "", defense)
