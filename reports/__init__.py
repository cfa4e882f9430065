"""Reports: from result rows (one for each defense, attack and seed) to tables, figures and one HTML page.

Reports use the numbers of the rows as they are. This package imports neither the training code nor the attacks nor
the accountants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if __name__ != "privkit.reports":
    raise ImportError("import privkit.reports, not reports: this folder is a part of the privkit package")

if TYPE_CHECKING:
    from privkit.reports.answers import answers_table, orders_table
    from privkit.reports.budgets import BudgetRow, budget_table
    from privkit.reports.comparison import Comparison, Difference
    from privkit.reports.figures import BudgetCurve
    from privkit.reports.gate import Gate, GateError
    from privkit.reports.page import render
    from privkit.reports.schema import (
        SCHEMA_VERSION,
        Check,
        Manifest,
        Metric,
        Metrics,
        PlannedCell,
        Provenance,
        Row,
        Summary,
    )
    from privkit.reports.tables import Table, summary_table, table
    from privkit.reports.verdict import Judgement, Verdict, judge
    from privkit.shared.costs import Costs
    from privkit.shared.interval import Interval

__all__ = [
    "SCHEMA_VERSION",
    "BudgetCurve",
    "BudgetRow",
    "Check",
    "Comparison",
    "Costs",
    "Difference",
    "Gate",
    "GateError",
    "Interval",
    "Judgement",
    "Manifest",
    "Metric",
    "Metrics",
    "PlannedCell",
    "Provenance",
    "Row",
    "Summary",
    "Table",
    "Verdict",
    "answers_table",
    "budget_table",
    "judge",
    "orders_table",
    "render",
    "summary_table",
    "table",
]

__getattr__ = lazy(__name__)
