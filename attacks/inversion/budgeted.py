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
    """The conditions (`Mounting`) of an attack that takes its epochs from an audit, unless it sets their number.

    Args:
        share: factor > 0; the attack's epochs are this factor times the audit's epochs.
        steps: number of training steps in control experiments (in which the attack must succeed, or must fail).
        in_controls: values of further fields in control experiments.
    """
    return Mounting(
        budget_share=share if attack.epochs is None else 0.0,
        start=None if attack.epochs == 0 else replace(attack, epochs=0),
        control=lambda an_epoch: replace(attack, epochs=ceil(steps / an_epoch), **in_controls),
    )


def planned_epochs(epochs: int | None) -> int:
    """Return `epochs`, an attack's number of training epochs, if it is a number.

    Raises:
        ValueError: if `epochs` is None, since no audit supplied its number.
    """
    if epochs is None:
        raise ValueError("epochs is None: take the budget's, for example dataclasses.replace(attack, epochs=10)")
    return epochs
