"""The source of the adversary's own records, i.e. the data from which they are drawn."""

from __future__ import annotations

OF_THE_DATASET = ("disjoint", "training", "candidates")
"""Sources within the audited dataset; any other source names another dataset.

"disjoint" records are neither private nor attacked. "training" records are the clients' private records. "candidates"
are disjoint records with the attacked records among them, so that the adversary has to find out which were released.
"""


def hold_attacked(source: str, attacked: str) -> bool:
    """Whether an adversary with records from `source` holds the attacked records ("private" or "test") themselves.

    >>> hold_attacked("candidates", "test"), hold_attacked("training", "test"), hold_attacked("training", "private")
    (True, False, True)
    """
    return source == "candidates" or (source, attacked) == ("training", "private")
