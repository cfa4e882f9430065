"""The tables of a run: a table of all result rows, and further tables for attacks that return scores or an order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from privkit.reports.schema import Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.tables import UNKNOWN, Table, interval, note_of, summary_note, summary_table, table
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.measures import ORDERS, TOLD_APART, Measure, measure
from privkit.shared.rounding import rounded_down, rounded_up

_SHOWN = [one for one in TOLD_APART if one.name != "cluster_accuracy"]
_OF_ORDERS = [one for one in ORDERS if not one.unit]
_HEADERS = (
    *("defense", "attack", "seed", *(one.heading for one in _SHOWN)),
    *("proven: TPR, advantage at most", "ε at least ↓", "ε claimed"),
)
ANSWERS_NOTE = (
    "AUC .5 is chance; an AUC below .5 leaks as much as one above. Brackets are 95 % intervals: DeLong's for the "
    "pooled AUC, Student's over rounds, Clopper–Pearson's for the true positive rate, and bands of both kinds of "
    "scores for the advantage (the largest TPR − FPR). If the AUC's whole interval lies below .5, rate and advantage "
    "are those of the reversed scores; rows of older runs keep the attack's direction. Labels: share of records whose "
    "label is named. Proven: no attack exceeds this, by the claim's whole trade-off curve. ε at least: lower bound "
    "from one run of canaries, for any mechanism unless a curve is assumed. If canaries refute the claim, the run "
    "exits with 1."
)
_ORDER_HEADERS = ("defense", "attack", "seed", *(one.heading for one in _OF_ORDERS), measure("bits_left").heading)
ORDER_NOTE = (
    "Places, neighbors, membership: shares of tokens that the attack puts into the right place, beside the right "
    "neighbor, into the right image. Bits left: an upper bound on the entropy of the order that remains after this "
    "attack, from a 95 % confidence limit of the share of right places. It is the order of a message if tokens move "
    "between images, otherwise that of an image. Without a number, too few tokens are in the right place, or there are "
    "too few messages, to show anything."
)


def run_tables(rows: Sequence[Row]) -> list[tuple[Table, str]]:
    """The tables of a run, each with a note. The first has means over seeds or, for one seed, a line per result row."""
    summaries = over_seeds(rows)
    first = (summary_table(summaries, rows), summary_note(summaries)) if summaries else (table(rows), note_of(rows))
    others = ((answers_table(rows), ANSWERS_NOTE), (orders_table(rows), ORDER_NOTE))
    return [first, *((made, note) for made, note in others if made is not None)]


def answers_table(rows: Sequence[Row]) -> Table | None:
    """A table with a line for each of `rows` whose attack returns scores; None if there is no such row."""
    return _asked(rows, "auc", _HEADERS, _SHOWN, lambda row: (_proven(row), *_shown(row.empirical_bound)))


def orders_table(rows: Sequence[Row]) -> Table | None:
    """A table with a line for each of `rows` whose attack returns an order; None if there is no such row."""
    return _asked(rows, "direct", _ORDER_HEADERS, _OF_ORDERS, lambda row: (_bits(row),))


def _asked(
    rows: Sequence[Row],
    answer: str,
    headers: tuple[str, ...],
    measures: Sequence[Measure],
    beside: Callable[[Row], tuple[str, ...]],
) -> Table | None:
    lines = []
    for row in (row for row in rows if answer in row.answers):
        numbers = (interval(row.answers.get(one.name), one.digits) for one in measures)
        lines.append((row.defense, row.attack, str(row.seed), *numbers, *beside(row)))
    return Table(headers=headers, rows=tuple(lines)) if lines else None


def _shown(bound: EmpiricalBound | None) -> tuple[str, str]:
    if bound is None:
        return UNKNOWN, UNKNOWN
    refuted = ", refuted" * bound.refuted
    claimed = "nothing" if bound.claimed == float("inf") else f"{rounded_up(bound.claimed, 3)}{refuted}"
    assumed = f", assumed: {bound.assumed}" if bound.assumed else ""
    return f"{rounded_down(bound.epsilon, 3)} at δ={rounded_down(bound.delta, 3)}{assumed}", claimed


def _proven(row: Row) -> str:
    """The proven limits on any attack's true positive rate at 1 % false positives, and on its advantage (TPR − FPR)."""
    if row.limits is None or row.empirical_bound is None or (row.certificate and row.certificate.standing != "proven"):
        return UNKNOWN
    return f"{rounded_up(row.limits.at(0.01), 3)}, {rounded_up(row.limits.advantage, 3)}"


def _bits(row: Row) -> str:
    left, before = row.answers.get("bits_left"), row.answers.get("bits_before")
    if left is None or before is None or left.value >= before.value:
        return UNKNOWN
    return f"{left.value:.0f} of {before.value:.0f}"
