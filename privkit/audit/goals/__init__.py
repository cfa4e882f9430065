"""How an audit pursues each goal of an attack: it mounts the attack on a defended model and scores its output.

`GOALS` maps a goal to "module:function"; the function takes an `AttackContext` and returns the finished row.
"""

GOALS = {
    "reconstruct": "privkit.audit.goals.reconstruct:ask",
    "labels": "privkit.audit.goals.labels:ask",
    "membership": "privkit.audit.goals.membership:ask",
    "distinguish": "privkit.audit.goals.distinguish:ask",
}
