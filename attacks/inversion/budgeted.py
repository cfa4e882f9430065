"""How an audit runs attacks whose number of epochs can come from the audit's budget."""

from __future__ import annotations

from dataclasses import Field, replace
from math import ceil
from typing import Any, ClassVar, Protocol

from privkit.attacks.base import Attack, Mounting
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction


class Budgeted(Attack[ImageObservation, Reconstruction], Protocol):
    """An attack that trains for `epochs` epochs; 0 means no training, None leaves the number to the audit's budget."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def epochs(self) -> int | None: ...


def mounted(attack: Budgeted, share: float = 1.0, steps: int = CONTROL_STEPS, **in_controls: object) -> ImageMounting:
    """Build the `Mounting` of an attack, i.e. the conditions under which an audit runs it.

    If the attack's `epochs` is None, it takes `share` times the audit's epochs. In control experiments (tests of the
    attack), it trains for about `steps` steps, with the attack's fields in `in_controls` changed.
    """
    return Mounting(
        budget_share=share if attack.epochs is None else 0.0,
        start=None if attack.epochs == 0 else replace(attack, epochs=0),
        control=lambda an_epoch: replace(attack, epochs=ceil(steps / an_epoch), **in_controls),
    )


def planned_epochs(epochs: int | None) -> int:
    """Return `epochs`. None raises ValueError, since an audit must have set the number by now."""
    if epochs is None:
        raise ValueError("epochs is None: take the budget's, for example dataclasses.replace(attack, epochs=10)")
    return epochs
