"""Threat models: what each adversary may do, and which weaker threat models it includes."""

from __future__ import annotations

from typing import Literal

ThreatModel = Literal["query", "weights", "many_passes", "weights_and_many_passes", "passive", "malicious"]

THREAT_MODELS: dict[ThreatModel, str] = {
    "query": "records of its own through the defended edge, and one pass of the attacked ones",
    "weights": "the clients' lower segment beside queries, and one pass",
    "many_passes": "queries, and several passes of the attacked records",
    "weights_and_many_passes": "queries, the segment and several passes: the server that trains with the clients",
    "passive": "what crosses the cut; it sends nothing and asks nothing",
    "malicious": "a part in training: it answers clients or inserts records as it likes",
}
"""Threat model -> what its adversary has, in the order of every table."""

INCLUDES: dict[ThreatModel, tuple[ThreatModel, ...]] = {
    "query": ("query", "passive"),
    "weights": ("weights", "query", "passive"),
    "many_passes": ("many_passes", "query", "passive"),
    "weights_and_many_passes": ("weights_and_many_passes", "many_passes", "weights", "query", "passive"),
    "passive": ("passive",),
    "malicious": ("malicious", "passive"),
}
"""Threat model -> those whose attacks its adversary can mount, its own first; weights and many passes do not nest."""


def threat_name(model: str) -> str:
    """The name of a threat model in tables and sentences.

    >>> threat_name("many_passes")
    'many passes'
    """
    return model.replace("_", " ")
