"""Means of every defense and attack over the seeds of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privkit.reports.columns import START
from privkit.reports.schema import Metrics, Row, Summary
from privkit.reports.seed_intervals import over_intervals
from privkit.shared.interval import Interval
from privkit.shared.measures import likeness, measure

_Key = tuple[str, str, str, str]  # defense, attack, floor and protocol
_Values = dict[int, dict[str, Interval]]  # seed -> name -> value with its limits


def over_seeds(rows: Sequence[Row], confidence: float = 0.95) -> list[Summary]:
    """The means over seeds for every defense and attack, and for every guess without the release (floor). A single seed
    gives no summary. A mean's interval (`seed_intervals.over_intervals`) covers random splits, weights and draws."""
    groups: dict[_Key, _Values] = {}
    done = [row for row in rows if row.status == "done"]
    for row in done:
        values = _means(row.recovered) | row.answers
        values |= {"accuracy": row.accuracy} if row.accuracy else {}
        groups.setdefault((row.defense, row.attack, "", ""), {})[row.seed] = values
    for row in done:
        for name, metrics in row.floors.items():
            key = (row.defense, row.attack, name, "") if name == START else ("", "", name, row.protocol)
            groups.setdefault(key, {})[row.seed] = _means(metrics)
    made = []
    for (defense, attack, floor, protocol), by_seed in _merged(groups).items():
        first, *others = by_seed.values()
        if not others:
            continue
        means = {}
        for name in (name for name in first if all(name in other for other in others)):
            found, of = [values[name] for values in (first, *others)], measure(name)
            means[name] = over_intervals(found, confidence, of.within, fitted=of.fitted)
        named = {"defense": defense, "attack": attack, "floor": floor, "protocol": protocol}
        made.append(Summary(**named, seeds=tuple(by_seed), values=means))
    return made


def _merged(groups: Mapping[_Key, _Values]) -> dict[_Key, _Values]:
    found: dict[_Key, _Values] = {}
    for named, values in groups.items():
        alike = all(other == values for key, other in groups.items() if key[:3] == named[:3])
        found.setdefault((*named[:3], "" if alike else named[3]), values)
    return found


def _means(metrics: Mapping[str, Metrics]) -> dict[str, Interval]:
    means: dict[str, Interval] = dict(metrics.get("unaligned", {}))
    matched = metrics.get("matched", {})
    return means | {f"matched_{name}": matched[name] for name in filter(None, [likeness(list(matched))])}
