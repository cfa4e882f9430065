"""Attack goals (reconstruct, labels, membership, distinguish): how an audit runs and scores the attacks of each.

`GOALS` maps a goal to "module:object", a `privkit.audit.goals.goal.AuditGoal`.
"""

GOALS = {
    "reconstruct": "privkit.audit.goals.reconstruct:GOAL",
    "labels": "privkit.audit.goals.labels:GOAL",
    "membership": "privkit.audit.goals.membership:GOAL",
    "distinguish": "privkit.audit.goals.distinguish:GOAL",
}
