"""Upper bounds on the privacy loss, one theorem per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.bounds.bound import Bound, ClosedForm, Limit
    from privkit.accountants.bounds.step import Step

__all__ = ["BOUNDS", "Bound", "ClosedForm", "Limit", "Step"]

BOUNDS: dict[str, str] = {
    "gaussian": "privkit.accountants.bounds.closed_forms:gaussian_bound",
    "renyi": "privkit.accountants.bounds.renyi_composition:renyi_bound",
    "coarse_composition": "privkit.accountants.bounds.coarse_composition:coarse_composition",
    "pure": "privkit.accountants.bounds.closed_forms:pure_bound",
    "numerical_composition": "privkit.accountants.bounds.numerical_composition:composed_bound",
    "third_record": "privkit.accountants.bounds.numerical_composition:third_record_bound",
}
"""Name of a theorem -> "module:function". The function maps the `Steps` of a run to a `Bound`, or to None if the
theorem does not apply to them."""

__getattr__ = lazy(__name__)
