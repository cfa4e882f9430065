"""The `Mounting` of attacks whose field `epochs` may come from an audit's budget."""

from __future__ import annotations

from dataclasses import Field, replace
from math import ceil
from typing import Any, ClassVar, Protocol

from privkit.attacks.base import Attack, Mounting
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction


class Budgeted(Attack[ImageObservation, Reconstruction], Protocol):
    """An attack that trains for `epochs` epochs; with 0 epochs it is the untrained version of itself."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def epochs(self) -> int | None: ...


def mounted(attack: Budgeted, share: float = 1.0, steps: int = CONTROL_STEPS, **in_controls: object) -> ImageMounting:
    """The `Mounting` of an attack that takes its epochs from an audit (times `share`), unless it sets their number.

    In control experiments it trains `steps` steps, with the values `in_controls` of further fields.
    """
    return Mounting(
        budget_share=share if attack.epochs is None else 0.0,
        start=None if attack.epochs == 0 else replace(attack, epochs=0),
        control=lambda an_epoch: replace(attack, epochs=ceil(steps / an_epoch), **in_controls),
    )


def planned_epochs(epochs: int | None) -> int:
    """The number of training epochs, which an audit must have set by now (else ValueError)."""
    if epochs is None:
        raise ValueError("epochs is None: take the budget's, for example dataclasses.replace(attack, epochs=10)")
    return epochs
