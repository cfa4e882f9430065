"""The goals of attacks, such as images or labels: what attacks observe and return, and how they are tested.

| goal | file | observation | output |
| --- | --- | --- | --- |
| images, and the order of tokens | `reconstruct`, `order` | `ImageObservation` | `Reconstruction`, `Permutation` |
| labels | `labels` | `LabelObservation` | `Scores` |
| who took part in training | `membership` | `MembershipObservation` | `Scores` |
| which of two known contents was sent | `distinguish` | `CanaryObservation` | `Scores` |
"""

from privkit.attacks.goals.goal import Goal, goal_of

__all__ = ["GOALS", "Goal", "goal_of"]

GOALS: dict[str, str] = {
    "reconstruct": "privkit.attacks.goals.reconstruct_controls:GOAL",
    "labels": "privkit.attacks.goals.labels:GOAL",
    "membership": "privkit.attacks.goals.membership:GOAL",
    "distinguish": "privkit.attacks.goals.distinguish:GOAL",
}
"""Goal -> "module:object" of its `Goal`. An attack may also name its author's own goal in this form."""
