"""What attacks are after. A goal owns what its adversary observes, what an attack returns, its controls and scores.

| goal | file | observation | output |
| --- | --- | --- | --- |
| images, and the order of tokens | `reconstruct`, `order` | `ImageObservation` | `Reconstruction`, `Permutation` |
| labels | `labels` | `LabelObservation` | `Scores` |
| who took part in training | `membership` | `MembershipObservation` | `Scores` |
| which of two known contents was sent | `distinguish` | `CanaryObservation` | `Scores` |
"""

GOALS: dict[str, str] = {
    "reconstruct": "privkit.attacks.goals.reconstruct:ImageObservation",
    "labels": "privkit.attacks.goals.labels:LabelObservation",
    "membership": "privkit.attacks.goals.membership:MembershipObservation",
    "distinguish": "privkit.attacks.goals.distinguish:CanaryObservation",
}
"""Goal -> "module:class" of what its adversary observes."""
