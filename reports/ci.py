"""Formats a verdict for CI systems: JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from privkit.reports import escape
from privkit.reports.threats import ThreatVerdict
from privkit.reports.verdict import CellState, Judgement, Verdict
from privkit.shared.threat_models import threat_name


def junit(verdict: Verdict, seconds: Mapping[str, float] | None = None, threats: Sequence[ThreatVerdict] = ()) -> str:
    """The verdict on a run as JUnit XML: a test case for each cell (defense, attack and seed), check and gate.

    A failed gate (a user's condition) or check is a failure. A failed or missing cell is an error. Undecided checks are
    skipped, and so are cells that are not applicable or not needed. Each threat model's verdict is a property.
    `seconds` maps a cell's id to its duration.
    """
    took = seconds or {}
    cases = [_cell(cell, took.get(cell.cell, 0.0)) for cell in verdict.cells] + [
        _check(check) for check in verdict.checks
    ]
    suite = ElementTree.Element("testsuite", name="privkit", tests=str(len(cases)))
    for tag, counted in {"failure": "failures", "error": "errors", "skipped": "skipped"}.items():
        suite.set(counted, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(took.get(cell.cell, 0.0) for cell in verdict.cells):.3f}")
    if threats:
        properties = ElementTree.SubElement(suite, "properties")
        for one in threats:
            name = escape.markup(f"{one.defense}, {threat_name(one.threat_model)}")
            ElementTree.SubElement(properties, "property", name=name, value=escape.markup(one.sentence))
    suite.extend(cases)
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _cell(cell: CellState, seconds: float) -> ElementTree.Element:
    tags = {"error": "error", "missing": "error", "not_applicable": "skipped", "not_needed": "skipped"}
    name, reason = f"cell: {cell.attack}, seed {cell.seed}", cell.reason or "it has no result; repeat the run's command"
    return _case(cell.defense, name, tags.get(cell.status, ""), reason, seconds)


def _check(check: Judgement) -> ElementTree.Element:
    tag = {True: "", False: "failure", None: "skipped"}[check.met]
    where = ", ".join(filter(None, [check.attack, "" if check.seed is None else f"seed {check.seed}"]))
    return _case(check.defense or "all defenses", f"{check.kind} {check.name}: {where}", tag, check.sentence)


def _case(defense: str, name: str, tag: str, message: str, seconds: float = 0.0) -> ElementTree.Element:
    named = {"classname": escape.markup(defense), "name": escape.markup(name), "time": f"{seconds:.3f}"}
    case = ElementTree.Element("testcase", named)
    if tag:
        ElementTree.SubElement(case, tag, message=escape.markup(message))
    return case


def github(verdict: Verdict) -> list[str]:
    """Annotations for GitHub Actions, one line for each failed check or gate, and for each planned result that is
    missing or an error."""
    without = [cell for cell in verdict.cells if cell.status in ("error", "missing")]
    told = [
        *verdict.failures,
        *(f"{cell.defense} / {cell.attack}, seed {cell.seed}: {cell.reason or cell.status}" for cell in without),
    ]
    return [f"::error title=privkit::{escape.workflow_message(text)}" for text in told]
