"""Formats numbers as text, rounded in the direction in which a claim stays true."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def rounded_up(value: float, digits: int) -> str:
    """A finite number as text, rounded up to `digits` significant digits; a positive number becomes at least 1e-300.

    >>> rounded_up(4.3771, 4), rounded_up(1e-5, 3), rounded_up(5e-324, 3)
    ('4.378', '1e-05', '1e-300')
    """
    return _rounded(max(value, 1e-300) if value > 0 else value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int) -> str:
    """A finite number as text, rounded down to `digits` significant digits.

    >>> rounded_down(4.3778, 4)
    '4.377'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    value = float(value)
    text = f"{value:.{digits}g}"
    if (near := float(text)) == value or (near > value) == (rounding == ROUND_CEILING):
        return text  # rounding to the nearest went in the wanted direction
    decimal = Decimal(repr(value))  # the shortest decimal, 1e-05, not the larger binary fraction
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(decimal)):.{digits}g}"
