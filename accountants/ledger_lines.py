"""Lines of a ledger: a mechanism, its rounds, and the budget of the filter that admitted them."""

from __future__ import annotations

import json
from functools import lru_cache
from numbers import Integral
from typing import Any

from privkit.accountants import validate
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism

MECHANISM = ', "mechanism": '
"""What stands before a mechanism, the last field of a line."""


@lru_cache(maxsize=256)
def json_and_mechanism(mechanism: SplitMechanism) -> tuple[str, SplitMechanism]:
    """A mechanism as JSON, and as it will be read again: numbers of other libraries become Python's."""
    text = json.dumps(records.to_json(mechanism), default=_python_number)
    return text, _mechanism_of_json(text)


@lru_cache(maxsize=256)
def _mechanism_of_json(text: str) -> SplitMechanism:
    spec = records.from_json(json.loads(text))
    if not isinstance(spec, SplitMechanism):
        raise ValueError(f"a charge is for a split_mechanism, got {text[:40]}")
    return spec


def charge_of_line(line: str) -> tuple[SplitMechanism, int, tuple[float, float] | None]:
    """The mechanism, its rounds, and the budget (ε, δ) of the filter that admitted them, if one did."""
    head, _, text = line.partition(MECHANISM)  # cannot stand in the note, whose quotes are escaped
    fields = json.loads(head + "}")
    kept = fields.get("filter")
    budget = None if kept is None else (float(kept[0]), float(kept[1]))
    return _mechanism_of_json(text[:-1]), validate.whole("rounds", fields.get("rounds")), budget


def _python_number(number: Any) -> int | float:
    return int(number) if isinstance(number, Integral) else float(number)
