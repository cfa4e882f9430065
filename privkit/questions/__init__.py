"""What an attack asks of a defended model, one file a question: it mounts the attack and scores the answer.

`QUESTIONS` maps an attack's `asks` to "module:function"; the function takes a `Scene` and returns the finished row.
"""

QUESTIONS = {
    "images": "privkit.questions.images:ask",
    "labels": "privkit.questions.labels:ask",
    "members": "privkit.questions.members:ask",
    "canaries": "privkit.questions.canaries:ask",
}
