"""The source of the adversary's own records: which data they are drawn from."""

from __future__ import annotations

OF_THE_DATASET = ("disjoint", "training", "candidates")
"""Records of the audited dataset; any other source is a dataset of its own.

"disjoint" ones are neither private nor attacked. "training" ones are the clients' private records. "candidates" are
disjoint ones with the attacked records among them, so that the adversary has to find out which of them crossed.
"""


def hold_attacked(source: str, attacked: str) -> bool:
    """Whether an adversary with records from `source` holds the attacked records ("private" or "test") themselves.

    >>> hold_attacked("candidates", "test"), hold_attacked("training", "test"), hold_attacked("training", "private")
    (True, False, True)
    """
    return source == "candidates" or (source, attacked) == ("training", "private")
