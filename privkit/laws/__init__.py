"""Laws (required properties) of each part, as functions that `privkit check` and privkit's own tests use.

A law takes a part, such as a defense, and returns a sentence on how the part breaks the law, or an empty text. `LAWS`
in each file maps each law, in words, to its function.
"""
