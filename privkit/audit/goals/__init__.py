"""The goals of attacks (reconstruct, labels, membership, distinguish): how an audit runs and scores the attacks on each
goal.

`GOALS` maps a goal's name to the place of its `privkit.audit.goals.goal.AuditGoal` in the code, "module:object".
"""

GOALS = {
    "reconstruct": "privkit.audit.goals.reconstruct:GOAL",
    "labels": "privkit.audit.goals.labels:GOAL",
    "membership": "privkit.audit.goals.membership:GOAL",
    "distinguish": "privkit.audit.goals.distinguish:GOAL",
}
