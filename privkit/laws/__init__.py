"""Laws (required properties) of each part, as functions that `privkit check` and privkit's own tests use.

A law is a function that takes a part, such as a defense, and returns a sentence on how the part breaks the law, or an
empty string. In each file, `LAWS` maps each law, in words, to its function.
"""
