"""The goals of attacks, such as images or labels: what attacks observe and return, and how they are tested.

| goal | file | observation | output |
| --- | --- | --- | --- |
| images, and the order of tokens | `reconstruct`, `order` | `ImageObservation` | `Reconstruction`, `Permutation` |
| labels | `labels` | `LabelObservation` | `Scores` |
| who took part in training | `membership` | `MembershipObservation` | `Scores` |
| which of two known contents was sent | `distinguish` | `CanaryObservation` | `Scores` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.attacks.goals import distinguish, labels, membership, order, reconstruct, reconstruct_controls
    from privkit.attacks.goals.control import Control
    from privkit.attacks.goals.distinguish import CanaryAttack, CanaryObservation
    from privkit.attacks.goals.goal import Goal, goal_of
    from privkit.attacks.goals.labels import LabelAttack, LabelObservation
    from privkit.attacks.goals.membership import MembershipObservation
    from privkit.attacks.goals.order import Permutation
    from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction

__all__ = [
    "GOALS",
    "CanaryAttack",
    "CanaryObservation",
    "Control",
    "Goal",
    "ImageObservation",
    "LabelAttack",
    "LabelObservation",
    "MembershipObservation",
    "Permutation",
    "Reconstruction",
    "distinguish",
    "goal_of",
    "labels",
    "membership",
    "order",
    "reconstruct",
    "reconstruct_controls",
]

GOALS: dict[str, str] = {
    "reconstruct": "privkit.attacks.goals.reconstruct_controls:GOAL",
    "labels": "privkit.attacks.goals.labels:GOAL",
    "membership": "privkit.attacks.goals.membership:GOAL",
    "distinguish": "privkit.attacks.goals.distinguish:GOAL",
}
"""Goal -> "module:object", a `Goal`; an attack may also name a goal of its author's own in this way."""

__getattr__ = lazy(__name__)
