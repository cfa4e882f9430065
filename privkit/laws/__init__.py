"""Laws that each part must keep, as functions; `privkit check` and the tests of privkit's own parts both use them.

A law takes a part and returns a sentence that says how the part breaks it, or an empty text if the law holds. `LAWS` in
each file maps the law, in words, to its function.
"""
