"""Two runs side by side: the compared quantities, their differences, and a table of the differences."""

from __future__ import annotations

from privkit.reports.schema import Frozen
from privkit.reports.tables import UNKNOWN, Table, interval
from privkit.shared.interval import Interval


class Difference(Frozen):
    """One measured quantity of one defense under one attack, in two runs, A and B.

    Attributes:
        first_name: defense and attack in A, as "defense / attack".
        second_name: the same in B; it differs from `first_name` if two defenses or two attacks are compared.
        quantity: name of the quantity, such as "mse".
        seeds: the seeds that both runs have.
        first: mean of the quantity over these seeds in A.
        second: the same in B.
        difference: `second` minus `first`, with its interval.
        records: number of different records that are paired; 0 if the quantity is not measured per record.
        p_value: p-value of Wilcoxon's signed-rank test, adjusted by Holm for all tests of the comparison; None if the
            quantity is not measured per record.
        effect: rank-biserial correlation in [-1, 1]; None if `p_value` is None.
    """

    first_name: str
    second_name: str
    quantity: str
    seeds: tuple[int, ...]
    first: float
    second: float
    difference: Interval
    records: int = 0
    p_value: float | None = None
    effect: float | None = None


class Comparison(Frozen):
    """The comparison of two runs, A and B.

    Attributes:
        first: folder of run A.
        second: folder of run B.
        differences: one difference for each compared quantity.
        configuration: the settings in which the runs differ, one text each.
        made_of: the differences of code, files, versions and machine, one text each.
        unpaired: defenses and attacks without a counterpart in the other run.
    """

    first: str
    second: str
    differences: tuple[Difference, ...]
    configuration: tuple[str, ...]
    made_of: tuple[str, ...]
    unpaired: tuple[str, ...]

    def _repr_html_(self) -> str:
        from privkit.reports.html import html_table

        return html_table(comparison_table(self), COMPARISON_NOTE)


_HEADERS = ("defense / attack", "quantity", "seeds", "A", "B", "B − A", "p", "effect")
COMPARISON_NOTE = (
    "B − A with its 95 % interval: over seeds if there are several; else over records, or from the limits of both runs "
    "if no values of records are stored. p: Wilcoxon's signed-rank test of the paired records, two-sided, adjusted by "
    "Holm for all lines; a record that several seeds attack counts once. It speaks of these trained models; only an "
    "interval over seeds speaks of other trainings. "
    "Effect: rank-biserial correlation, from -1 (B is smaller for every record) to 1 (B is larger)."
)


def comparison_table(comparison: Comparison) -> Table:
    """A table with a line for each compared quantity."""
    lines = [
        (
            found.first_name if found.first_name == found.second_name else f"{found.first_name} → {found.second_name}",
            found.quantity,
            str(len(found.seeds)),
            f"{found.first:.4g}",
            f"{found.second:.4g}",
            interval(found.difference, 4),
            UNKNOWN if found.p_value is None else f"{found.p_value:.2g}",
            UNKNOWN if found.effect is None else f"{found.effect:.2f}",
        )
        for found in comparison.differences
    ]
    return Table(headers=_HEADERS, rows=tuple(lines))
