"""Budgets, which set the numbers of records and epochs of a run, and the settings of tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt

from privkit.constraints import Checked
from privkit.errors import unknown
from privkit.parts.registry import read_options, specify
from privkit.settings.values import as_options

_MOST = 1_000_000_000
"""Largest number of images or epochs of a budget: larger than any practical run, and small enough for all formulas."""

_Images = Annotated[int, Ge(1), Le(_MOST)]
_Passes = Annotated[int, Ge(0), Le(_MOST)]


@dataclass(frozen=True, kw_only=True)
class Budget(Checked):
    """The numbers of records and epochs of a run. If a dataset is too small, its records are divided proportionally."""

    private: _Images  # the client's training images
    auxiliary: _Images  # the adversary's images
    test: _Images  # images for the task's accuracy
    victims: _Images  # private images that are attacked, rounded down to a multiple of the batch size
    epochs: _Passes  # epochs of task training
    attack_epochs: _Passes  # epochs of an attack's training, unless the attack names its own
    # largest number of times that these epochs are doubled, as long as each doubling lowers an attack's held-out error
    # by more than 5 %
    attack_doublings: _Passes = 0
    # images on which every epoch is measured, so that the best one can be kept; 0 measures none
    validation: _Passes = 0


@dataclass(frozen=True, kw_only=True)
class Tuning(Checked):
    """Settings of the tuning, which chooses attack parameters on the adversary's own records only."""

    # number of tried sets of values, including the attack as given
    trials: Annotated[int, Ge(1), Le(_MOST), "to mount attacks as they are given, leave tune out"] = 20
    # share of the adversary's own records that are attacked for tuning; at most as many as the audit attacks
    share: Annotated[float, Gt(0), Lt(1)] = 0.25


_SMALL = Budget(private=2500, auxiliary=2000, test=500, victims=500, epochs=8, attack_epochs=10, attack_doublings=1)
BUDGETS = {
    "smoke": Budget(private=200, auxiliary=200, test=100, victims=50, epochs=1, attack_epochs=2),
    "quick": replace(_SMALL, victims=100),
    "small": _SMALL,
    "medium": Budget(private=20_000, auxiliary=10_000, test=10_000, victims=1_000, epochs=30, attack_epochs=30),
    "large": Budget(private=40_000, auxiliary=10_000, test=10_000, victims=1_000, epochs=60, attack_epochs=50),
}
"""Name -> budget. smoke: seconds, for tests. quick: the default, a minute or two on two CPU cores. small: as quick, but
with 500 attacked images. medium: minutes on a GPU. large: the papers' epochs."""


DEFAULT = "quick"

LEARNS_FROM = 4
"""From this number of epochs on, a run fails if no model learned; shorter runs, such as smoke, are for trials."""

_DOUBLINGS = 2


def as_escalation(given: int | None, budget: Budget) -> int:
    """How often the work of a failing attack may be doubled; by default 2, or 0 in runs of fewer than 4 epochs.

    >>> as_escalation(None, BUDGETS["quick"]), as_escalation(None, BUDGETS["smoke"]), as_escalation(1, BUDGETS["smoke"])
    (2, 0, 1)
    """
    if given is not None:
        return given
    return _DOUBLINGS if budget.epochs >= LEARNS_FROM else 0


def as_budget(given: Any) -> tuple[str, Budget]:
    """Read a budget with the user's changes, "small:epochs=3" or {name="small", epochs=3}: its name and its numbers.

    >>> as_budget("smoke:epochs=3")[1].epochs
    3
    """
    if isinstance(given, str):
        name, _, text = given.partition(":")
        options = read_options(given, text)
    else:
        options = as_options("budget", given)
        name = options.pop("name", DEFAULT)
    if not isinstance(name, str) or name not in BUDGETS:
        raise unknown("budget", str(name), BUDGETS)
    return name, specify(f"budget {name}", BUDGETS[name], options)
