"""How an audit pursues each goal of an attack: it mounts the attack on a defended model and scores its output.

`GOALS` maps a goal to "module:object", a `privkit.audit.goals.goal.AuditGoal`.
"""

GOALS = {
    "reconstruct": "privkit.audit.goals.reconstruct:GOAL",
    "labels": "privkit.audit.goals.labels:GOAL",
    "membership": "privkit.audit.goals.membership:GOAL",
    "distinguish": "privkit.audit.goals.distinguish:GOAL",
}
