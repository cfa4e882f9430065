"""Checks of what a stage returned, before other code reads it: types, shapes and number of records."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.defenses.base import Receipt, Release
from privkit.errors import Misbehaved


def returned(
    name: str, made: object, lead: tuple[int, ...], given: torch.dtype | None = None
) -> tuple[Release, Receipt]:
    """Check what a defense stage returned; return its release and its receipt.

    The stage must return a pair of a `Release` and a `Receipt`, with smashed data and labels for all `lead` = (M, B)
    records. The smashed data must have the dtype that the stage got (`given`; None allows any) or float32. Otherwise
    `Misbehaved` is raised.
    """
    pair = made if isinstance(made, tuple) else (made,)
    if len(pair) != 2 or not isinstance(pair[0], Release) or not isinstance(pair[1], Receipt):
        got = ", ".join(type(one).__name__ for one in pair)
        raise Misbehaved(f"{name} must return a pair (Release, Receipt) from apply, got {got or 'an empty tuple'}")
    for what, value in (("smashed data", pair[0].smashed), ("labels", pair[0].labels)):
        if not isinstance(value, Tensor) or value.shape[:2] != lead:
            got = str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
            raise Misbehaved(
                f"{name} must release {what} for {lead[0]} messages of {lead[1]} records, [{lead[0]}, {lead[1]}, ...], "
                f"got {got}"
            )
    if given is not None and (kept := pair[0].smashed.dtype) not in (given, torch.float32):
        raise Misbehaved(f"{name} must release {given}, as it got, and not {kept}; end with .to(smashed.dtype)")
    return pair
