"""Laws: the required properties of parts (defenses, attacks, models, …), tested by `privkit check` and privkit's own
tests.

Each law is a function that takes a part, such as a defense. It returns a sentence on how the part breaks the law, or an
empty string. In the file of each kind of part, `LAWS` maps the name of a law to its function.
"""
