"""Sections of the page: a card for each defense, its results, its checks, and the attacks that were not run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from privkit.reports.charts import Chart, epoch_chart
from privkit.reports.frontier import Frontier, Point
from privkit.reports.schema import Provenance, Row, Summary
from privkit.reports.strongest import Strongest, counted, strongest
from privkit.reports.threats import ThreatVerdict
from privkit.shared.certificate import Certificate
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval

_CHECKS_FIRST = ("wins_on_identity", "fails_on_noise")  # the control experiments, which are listed first


@dataclass(frozen=True, kw_only=True)
class _Card:
    row: Row  # the first row of the strongest attack (over seeds if `point` is given); the first row without one
    point: Point | None  # accuracy and recovery over seeds; None if no record was reconstructed
    accuracy: Interval | None  # task accuracy, over seeds if there are several
    strongest: Strongest | None  # the strongest attack on the first seed; None if no attack gave a number
    told: dict[str, Interval]  # attack on labels, members or canaries -> its AUC, over seeds if there are several
    seeds: int  # number of seeds
    refused: dict[str, list[str]]  # reason -> the attacks that gave no number for this reason
    # recovery by the same attack on the undefended model under the same protocol; None if not measured
    undefended: Interval | None = None
    baseline: Interval | None = None  # accuracy of the undefended model; None if not measured


def cards(rows: Sequence[Row], summaries: Sequence[Summary], found: Frontier | None) -> list[_Card]:
    """One card per defense, in the order of the rows. If an untrained attack recovers more than the finished attack,
    the card shows the result of the untrained attack."""
    rows = [counted(row) for row in rows]
    best: dict[str, Strongest] = {}
    for one in strongest(rows):
        best.setdefault(one.row.defense, one)
    points = {point.defense: point for point in found.points} if found else {}
    over = {(summary.defense, summary.attack): summary.values for summary in summaries if not summary.floor}
    groups = by_defense(rows)
    made = {label: _card(group, best.get(label), points.get(label), over) for label, group in groups.items()}
    for label, card in made.items():
        bare = made.get(f"none:protocol={card.row.protocol}", made.get("none"))
        if bare is not None and label != bare.row.defense:
            same = _same(groups[bare.row.defense], card.point, found.metric if found else "", over)
            made[label] = replace(card, undefended=same, baseline=bare.accuracy)
    return list(made.values())


def _same(
    rows: Sequence[Row], point: Point | None, metric: str, over: Mapping[tuple[str, str], Mapping[str, Interval]]
) -> Interval | None:
    row = next((one for one in rows if point and one.attack == point.attack and "unaligned" in one.recovered), None)
    if row is None:
        return None
    return over.get((row.defense, row.attack), {}).get(metric, row.recovered["unaligned"].get(metric))


def _card(
    rows: Sequence[Row],
    best: Strongest | None,
    point: Point | None,
    over: Mapping[tuple[str, str], Mapping[str, Interval]],
) -> _Card:
    row = next((one for one in rows if point and one.attack == point.attack), best.row if best else rows[0])
    refused: dict[str, list[str]] = {}
    for other in rows:
        if other.status != "done" and other.attack not in refused.setdefault(other.reason, []):
            refused[other.reason].append(other.attack)
    accuracy = over.get((row.defense, row.attack), {}).get("accuracy", row.accuracy)
    told: dict[str, Interval] = {}
    for one in (one for one in rows if "auc" in one.answers):
        told.setdefault(one.attack, over.get((row.defense, one.attack), {}).get("auc", one.answers["auc"]))
    seeds = len({other.seed for other in rows})
    return _Card(row=row, point=point, accuracy=accuracy, strongest=best, told=told, seeds=seeds, refused=refused)


def by_defense(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the rows by their defense, in order."""
    return grouped(rows, lambda row: row.defense)


def certificates(rows: Sequence[Row]) -> list[Certificate]:
    """The distinct certificates of one defense that have assumptions."""
    return list({repr(one): one for row in rows if (one := row.certificate) and one.assumptions}.values())


def training_curves(rows: Sequence[Row]) -> list[Chart]:
    """Charts of one defense's training loss by epoch, one chart for each seed."""
    by_seed = {row.seed: row.training_curve for row in rows}
    return [chart for seed, loss in by_seed.items() if (chart := epoch_chart(loss, f"training loss, seed {seed}"))]


def attack_curve(row: Row) -> Chart | None:
    """A chart of the attack's objective by epoch: its error on held-out records, or its loss on the release."""
    return epoch_chart(row.attack_curve, "attack: objective", logarithmic=True)


def check_counts(rows: Sequence[Row]) -> dict[str, tuple[int, int, int]]:
    """For each check, the numbers of results that passed, failed or are undecided. Control experiments come first."""
    counts: dict[str, list[int]] = {name: [0, 0, 0] for name in _CHECKS_FIRST}
    for row in rows:
        for check in row.checks:
            counts.setdefault(check.name, [0, 0, 0])[2 if check.passed is None else 0 if check.passed else 1] += 1
    return {name: (met, failed, open_) for name, (met, failed, open_) in counts.items() if met + failed + open_}


def untried(threats: Sequence[ThreatVerdict]) -> dict[str, dict[str, list[str]]]:
    """Map each threat model to the attacks that were not run: the keys are the names of these attacks, joined by
    commas, and the values are the defenses on which they were not run."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in threats:
        if one.untried:
            found.setdefault(one.threat_model, {}).setdefault(", ".join(one.untried), []).append(one.defense)
    return found


def made_of(rows: Sequence[Row]) -> list[tuple[list[Row], Provenance]]:
    """Result rows grouped by their provenance."""
    groups = grouped(rows, lambda row: json.dumps(row.provenance.model_dump(), sort_keys=True))
    return [(group, group[0].provenance) for group in groups.values()]
