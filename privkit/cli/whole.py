"""Whole numbers as flags have them."""

from __future__ import annotations

import re

import typer

from privkit.errors import shortened


def whole(given: str | int) -> int:
    """The number that a flag's text writes in digits; a range or a list is none, and a default is itself.

    Libraries that read numbers may take "0-4" for -4.

    Raises:
        BadParameter: with what is allowed.

    >>> whole("12"), whole("-1")
    (12, -1)
    """
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", str(given)):
        raise typer.BadParameter(f"one whole number such as 4, got {shortened(given)}")
    return int(given)


def seed(given: str | int) -> int:
    """A seed, of which several are given one by one.

    Raises:
        BadParameter: with what is allowed.
    """
    if re.search(r"[-,:\s]", str(given).strip().lstrip("-")):
        raise typer.BadParameter(
            f"one whole number, got {shortened(given)}; repeat the flag for several: --seed 0 --seed 1"
        )
    return whole(given)
