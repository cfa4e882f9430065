"""All numbers of a result row by column name, for CSV files, gates (a user's conditions) and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import isnan, nan
from typing import TYPE_CHECKING

from privkit.reports import escape
from privkit.reports.schema import Row, Summary
from privkit.shared.costs import Costs
from privkit.shared.interval import Interval
from privkit.shared.measures import ANSWERS, OF_RECORDS, TASK

if TYPE_CHECKING:
    from privkit.reports.verdict import Verdict

START = "zero_steps"  # key in a row's `floors`: the attack's guesses before its first step
CLAIM, DECLARATION = "claim_stands", "declaration_stands"
"""Names of the checks that compare a claimed ε with canaries, and a declared mechanism with its data."""
LEARNED, CONVERGED, OWN_MATCH = "learned", "converged", "matched_beats_own_records"
"""Names of checks: has the model learned its task, has an attack trained long enough, and do matched guesses beat the
adversary's own records?"""
BY_PATTERN = "not_identified_by_pattern"
"""Name of the check for guesses that are far from their images, but show them with another contrast or sign."""
DECLARED = "declared_"  # prefix of a number that would be proven if privkit had run the mechanism itself
_LIMITS = ("advantage", "tpr_at_1_percent")
_OF_LABELS = "_of_labels"  # ending of a proven or declared number that holds for labels only
_PROVEN = (
    *("updates_epsilon", *(f"{kind}epsilon{of}" for kind in ("", DECLARED) for of in ("", _OF_LABELS))),
    *(f"{kind}{name}{of}" for kind in ("proven_", DECLARED) for name in _LIMITS for of in ("", _OF_LABELS)),
    *("log10_permutations", "log10_target_permutations", "log10_target_share", "log10_outcomes"),
    *("payload_share", "positions_seen", "own_share", "own_image_share", "same_image_meets", "other_image_meets"),
    *("kept_in_place", "tokens_left", "largest_ratio", "largest_ratio_drawn", "most_positions_drawn"),
    *("noise_smashed", "noise_labels", "sensitivity_smashed", "sensitivity", "coordinates", "height", "width"),
)
_TASK = tuple(measure.name for measure in TASK)
OF_DEFENSE = frozenset((*_TASK, *_PROVEN, *(field.name for field in fields(Costs))))
"""Columns with values of a defense, which are the same for each attack."""
SHORT = {**{name: f"unaligned_{name}" for name in OF_RECORDS}, "tpr": "tpr_at_1_percent"}
"""Short name -> column. For a metric of guesses, this is the column of unmatched guesses, since an adversary has no
others."""
OWN = "own_"  # prefix of a user's own metric
GATED = (
    *_TASK,
    *OF_RECORDS,
    *(f"{how}_{name}{of}" for how in ("unaligned", "matched") for name in OF_RECORDS for of in ("", "_worst")),
    *ANSWERS,
    "tpr",
    *_PROVEN,
    "empirical_epsilon",
    *(field.name for field in fields(Costs)),
)
"""Columns that a gate may name."""
_BOUND = (
    *("claimed", "epsilon", "assumed", "curve_epsilon", "delta", "confidence"),
    *("canaries", "inserted", "ceiling", "statement"),
)
"""Fields of an empirical bound that are columns."""
_OF_ROW = {
    *("cell", "status", "reason", "defense", "attack", "threat_model", "dataset", "model", "seed"),
    *("auxiliary", "attacked", "batch_size"),
}


def gated(name: str) -> str | None:
    """The column to which a gate (a user's pass/fail condition) refers by `name`; None if there is no such column. The
    name of a user's own metric is accepted without a check, since only a run knows these metrics."""
    if name.removeprefix("unaligned_").removeprefix("matched_").startswith(OWN):
        return name if not name.startswith(OWN) else f"unaligned_{name}"
    return SHORT.get(name, name) if name in SHORT or name in GATED else None


def numbers(row: Row) -> dict[str, Interval | float]:
    """The measured and proven values of a result row by column name: an interval if there is one, otherwise a number.

    `epsilon` is the proven ε of the release, infinite if nothing is proven. Proven columns end in `_of_labels` if a
    certificate covers only labels, and start with `declared_` if privkit did not run the mechanism itself. A formula
    that is not a proof gives no column of ε. `empirical_epsilon` is the lower bound from canaries (records that an
    auditor inserts).
    """
    found: dict[str, Interval | float] = {}
    if row.accuracy:
        found["accuracy"] = row.accuracy
    found |= {f"task_{name}": score for name, score in row.task.items()}
    named = {"": row.recovered}
    named |= {("start_" if name == START else f"floor_{name}_"): metrics for name, metrics in row.floors.items()}
    for prefix, alignments in named.items():
        for alignment, metrics in alignments.items():
            for name, metric in metrics.items():
                found[f"{prefix}{alignment}_{name}"] = metric
                found[f"{prefix}{alignment}_{name}_worst"] = metric.worst
    found |= row.answers
    if row.empirical_bound is not None:
        found["empirical_epsilon"] = row.empirical_bound.epsilon
    if (proof := row.certificate) is not None:
        kind = DECLARED if proof.standing == "declared" else ""
        only = _OF_LABELS if proof.covers == "labels" else ""
        if proof.sound:
            found[f"{kind}epsilon{only}"] = proof.epsilon
        found |= proof.quantities
        if row.limits is not None:
            rates = (row.limits.advantage, row.limits.at(0.01))
            found |= {f"{kind or 'proven_'}{name}{only}": rate for name, rate in zip(_LIMITS, rates, strict=True)}
    return found | (asdict(row.costs) if row.costs else {})


def assumed(name: str, rows: Sequence[Row]) -> str:
    """The assumption on which an empirical ε rests, as text to be printed after the number; empty for other columns."""
    if name != "empirical_epsilon":
        return ""
    bounds = [row.empirical_bound for row in rows if row.empirical_bound is not None]
    families = dict.fromkeys(bound.assumed or "nothing" for bound in bounds)
    return f" (assumed: {'; '.join(families)})" if families.keys() - {"nothing"} else ""


def flat_record(row: Row) -> dict[str, object]:
    """A result row as one flat record: its names, its numbers with their limits, its checks and its provenance."""
    flat: dict[str, object] = row.model_dump(include=_OF_ROW)
    if row.parts:
        flat |= {"parts": " ".join(row.parts)}
    flat |= {f"{name}_images": count for name, count in row.counts.items()}
    if row.best_epoch:
        flat |= {"kept": row.kept, "best_epoch": row.best_epoch}
    flat |= flattened(numbers(row)) | _bound(row)
    if row.seconds is not None:
        flat |= {f"seconds_{stage}": seconds for stage, seconds in row.seconds.model_dump().items()}
    if row.certificate is not None:
        flat |= {"claim": row.certificate.statement, "claim_remark": row.remark, "standing": row.certificate.standing}
    flat |= {f"check_{check.name}": check.passed for check in row.checks}
    for section, parts in row.provenance.model_dump().items():
        flat |= {f"made_of_{section}_{key}": value for key, value in parts.items()}
    return flat


def to_csv(rows: Sequence[Row], verdict: Verdict | None = None) -> str:
    """All numbers of all rows as CSV, unrounded. A verdict adds its gates (a user's conditions) as columns, and a line
    for each cell (defense, attack and seed) without a result."""
    lines = [flat_record(row) for row in rows]
    if verdict is not None:
        places = {row.cell: line for row, line in zip(rows, lines, strict=True)}
        for check in verdict.checks:
            if check.kind == "gate" and check.cell in places:
                line, column = places[check.cell], f"gate_{check.name}"
                met = [line[column], check.met] if column in line else [check.met]
                line[column] = False if False in met else None if None in met else True
        lines += [cell.model_dump() for cell in verdict.cells if cell.status == "missing"]
    return flat_csv(lines)


def seeds_csv(summaries: Sequence[Summary]) -> str:
    """Means over seeds as CSV, unrounded, with a line per defense and attack, and per guess without the release."""
    named = [one.model_dump(include={"defense", "attack", "floor", "protocol"}) for one in summaries]
    seeds = [{"seeds": " ".join(map(str, one.seeds))} for one in summaries]
    return flat_csv([one | its | flattened(of.values) for one, its, of in zip(named, seeds, summaries, strict=True)])


def answers_csv(rows: Sequence[Row], answer: str) -> str:
    """CSV with the unrounded results of attacks that return scores (`answer` "auc") or an order ("direct")."""
    lines = []
    for row in rows:
        if answer in row.answers:
            named: dict[str, object] = {"defense": row.defense, "attack": row.attack, "seed": row.seed}
            beside = {name: value for name, value in numbers(row).items() if name in _PROVEN}
            lines.append(named | flattened(row.answers) | _bound(row) | flattened(beside))
    return flat_csv(lines)


def flat_csv(lines: Sequence[dict[str, object]]) -> str:
    """Flat dicts as CSV, one line each; text that a spreadsheet would run as a formula is escaped."""
    flat = [{str(escape.csv_cell(key)): escape.csv_cell(value) for key, value in line.items()} for line in lines]
    columns = list(dict.fromkeys(key for line in flat for key in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def ends(name: str, value: Interval | float) -> tuple[float, float, float]:
    """The value of a column and both ends of its interval, as a gate (pass/fail condition) compares them. For a number
    without an interval, all three are equal. An AUC below 1/2 counts as 1 − AUC, since it leaks as much."""
    if not isinstance(value, Interval):
        return float(value), float(value), float(value)
    middle, low, high = value.value, value.low, value.high
    if isnan(middle) or isnan(low) or isnan(high):
        return nan, nan, nan
    if name.startswith("auc"):
        return max(middle, 1 - middle), max(low, 1 - high, 0.5), max(high, 1 - low)
    return middle, low, high


def flattened(values: Mapping[str, Interval | float]) -> dict[str, object]:
    """Numbers as columns: each value, and for an interval also the columns `…_low` and `…_high`."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Interval):
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            flat[name] = value
    return flat


def _bound(row: Row) -> dict[str, object]:
    bound = row.empirical_bound
    return {} if bound is None else {f"empirical_{name}": getattr(bound, name) for name in _BOUND}
