"""One reference value, and the evaluation that must reproduce it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from math import isfinite


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reference value.

    Attributes:
        id: unique; the name of the case in the reference tables.
        what: the quantity, in words.
        compute: the evaluation, without arguments.
        expected: the reference value.
        rel: relative tolerance.
        abs: absolute tolerance.
        source: where the reference value comes from.
    """

    id: str
    what: str
    compute: Callable[[], float]
    expected: float
    rel: float = 0.0
    abs: float = 0.0
    source: str = ""

    def check(self) -> tuple[bool, float]:
        """Whether the evaluation reproduces the value, and what it gave.

        >>> Case(id="x", what="two", compute=lambda: 2.0, expected=2.0).check()
        (True, 2.0)
        """
        computed = float(self.compute())
        return isfinite(computed) and abs(computed - self.expected) <= max(
            self.abs, self.rel * abs(self.expected)
        ), computed


def read(package: str, name: str, evaluators: Mapping[str, Callable[..., float]]) -> tuple[Case, ...]:
    """The cases of a file of JSON lines.

    Args:
        package: where the file lies.
        name: of the file. A line has id, what, evaluate (a name of `evaluators`), inputs (its arguments), expected,
            rel or abs (the tolerance; neither: equal) and source.
        evaluators: name -> function of the inputs, such as the names of the module that reads them.

    Raises:
        KeyError: if a line names no evaluator.
    """
    cases = []
    for line in (files(package) / name).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        compute = partial(evaluators[row.pop("evaluate")], **row.pop("inputs"))
        cases.append(Case(compute=compute, **row))
    return tuple(cases)
