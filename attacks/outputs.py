"""Checks of an attack's output before it is scored: type, shape and number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from privkit.attacks.base import AnyAttack, Scores

if TYPE_CHECKING:
    from privkit.attacks.goals.reconstruct import Reconstruction


class BadOutput(Exception):
    """Raised if an attack's output does not suit its goal; the error's text says what to return."""


def guesses_of(attack: AnyAttack, found: object, rows: int, shape: tuple[int, ...]) -> Reconstruction:
    """Check that an attack returned a `Reconstruction` with images [rows, *shape], and return it.

    >>> from privkit.attacks.inversion.floors import MidGrey
    >>> guesses_of(MidGrey(), None, 2, (1, 8, 8))
    Traceback (most recent call last):
    privkit.attacks.outputs.BadOutput: mid_grey must return a Reconstruction with a guess for each record, images \
    [2, 1, 8, 8], got NoneType
    """
    from privkit.attacks.goals.reconstruct import Reconstruction

    images = found.images if isinstance(found, Reconstruction) else None
    if not (isinstance(found, Reconstruction) and isinstance(images, Tensor) and images.shape == (rows, *shape)):
        got = f"images {_seen(images)}" if isinstance(found, Reconstruction) else _seen(found)
        wanted = f"a Reconstruction with a guess for each record, images {[rows, *shape]}"
        raise BadOutput(f"{attack.name} must return {wanted}, got {got}")
    return found


def scores_of(attack: AnyAttack, found: object) -> Scores:
    """Return an attack's `Scores` if there is one number per example, none NaN; anything else raises `BadOutput`."""
    if not isinstance(found, Scores):
        raise BadOutput(f"{attack.name} must return Scores, one number per example, got {_seen(found)}")
    values, examples = found.values, found.examples
    tensors = isinstance(values, Tensor) and isinstance(examples, Tensor)
    if not tensors or values.ndim != 1 or values.shape != examples.shape:
        got = f"values {_seen(values)} and examples {_seen(examples)}"
        raise BadOutput(f"{attack.name} must return Scores of values [N] and examples [N], got {got}")
    if bool(values.isnan().any()):
        raise BadOutput(f"{attack.name} must return a number for each example, got NaN among its scores")
    return found


def _seen(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
