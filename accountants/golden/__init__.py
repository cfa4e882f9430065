"""Reference values (`cases.jsonl`) for the accountants' results. `privkit doctor` recomputes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.resources import files
from math import isfinite
from typing import Any

from privkit.accountants import answer
from privkit.accountants.bounds.numerical_composition import composed_bound
from privkit.accountants.calibration import calibrate
from privkit.accountants.compile import steps
from privkit.accountants.spec.records import from_json

__all__ = ["Case", "cases", "read_cases"]

Specification = dict[str, Any]
"""A specification as `spec.records.to_json` gives it; fields that are left out have their default."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reference value. A computed value matches it if they differ by no more than the larger of two tolerances:
    `abs`, and `rel` times the size of the reference value.

    Attributes:
        id: unique name of the case in the reference tables.
        what: the quantity, in words.
        compute: function that computes the quantity.
        expected: the reference value.
        rel: relative tolerance.
        abs: absolute tolerance.
        source: where the reference value comes from.
    """

    id: str
    what: str
    compute: Callable[[], Any]
    expected: float
    rel: float = 0.0
    abs: float = 0.0
    source: str = ""

    def check(self) -> tuple[bool, float]:
        """Whether the computed value matches the reference within the tolerances, and the computed value."""
        computed, allowed = float(self.compute()), max(self.abs, self.rel * abs(self.expected))
        return isfinite(computed) and abs(computed - self.expected) <= allowed, computed


def read_cases(package: str, name: str, evaluators: Mapping[str, Callable[..., Any]]) -> tuple[Case, ...]:
    """Read the reference values in the file `name` (JSON lines) of a `package`, each with the call that recomputes it.

    A line has the keys id, what, evaluate (a name in `evaluators`, or "module:function" below `privkit.accountants`),
    inputs (the arguments of this function), expected, rel or abs (the tolerance) and source.
    """
    cases = []
    for line in (files(package) / name).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        module, _, function = row.pop("evaluate").rpartition(":")
        evaluate = getattr(import_module(f"privkit.accountants.{module}"), function) if module else evaluators[function]
        cases.append(Case(compute=partial(evaluate, **row.pop("inputs")), **row))
    return tuple(cases)


def cases() -> tuple[Case, ...]:
    """All reference values that ship with the package."""
    return read_cases(__name__, "cases.jsonl", _EVALUATORS)


def _composed(mechanism: Specification, delta: float) -> float:
    bound = composed_bound(steps(from_json(mechanism)))
    assert bound is not None
    return bound.epsilon(delta).value


_EVALUATORS: dict[str, Callable[..., float]] = {
    "epsilon": lambda mechanism, delta: answer.epsilon(from_json(mechanism), delta).epsilon,
    "composed": _composed,  # ε by numerical composition of single rounds
    "delta": lambda mechanism, epsilon: answer.delta(from_json(mechanism), epsilon).delta or 0.0,
    "rdp": lambda mechanism, order: answer.rdp(from_json(mechanism), [order]).values[0],
    "calibrated_sigma": lambda mechanism, **target: calibrate(from_json(mechanism), "sigma", **target).value,
}
"""Certified numbers of a mechanism that is given as JSON."""
