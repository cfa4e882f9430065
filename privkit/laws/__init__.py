"""Laws: the required properties of parts (defenses, attacks, models, …), tested by `privkit check` and privkit's own
tests.

Each law is a function that takes a part, such as a defense, and returns a sentence on how the part breaks the law, or
an empty string. In each file, `LAWS` maps each law, in words, to its function.
"""
