"""What each part must keep, as functions: `privkit check` and the tests of privkit's own parts ask the same ones.

A law takes a part and says in a sentence how it is broken; an empty text says that it holds. `LAWS` of each file maps
the law, in words, to its function.
"""
