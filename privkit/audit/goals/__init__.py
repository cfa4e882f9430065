"""What an attack asks of a defended model, one file a question: it mounts the attack and scores the answer.

`QUESTIONS` maps an attack's `asks` to "module:function"; the function takes an `AttackContext` and
returns the finished row.
"""

QUESTIONS = {
    "images": "privkit.audit.goals.images:ask",
    "labels": "privkit.audit.goals.labels:ask",
    "members": "privkit.audit.goals.members:ask",
    "canaries": "privkit.audit.goals.canaries:ask",
}
