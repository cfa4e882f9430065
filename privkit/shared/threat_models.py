"""Threat models: what each adversary may do, and which weaker threat models it includes."""

from __future__ import annotations

from typing import Literal

ThreatModel = Literal["query", "weights", "many_passes", "weights_and_many_passes", "passive", "malicious"]

THREAT_MODELS: dict[ThreatModel, str] = {
    "query": "it sends its own records through the defended clients, and sees the attacked records once",
    "weights": "as query, and it has the clients' lower segment",
    "many_passes": "as query, and it sees several passes of the attacked records",
    "weights_and_many_passes": "as query, with the lower segment and several passes, like a server in split learning",
    "passive": "it sees what crosses the cut once, and sends nothing itself",
    "malicious": "it takes part in training: it answers clients with any gradient, or inserts records",
}
"""Threat model -> what its adversary has, in the order of all tables."""

INCLUDES: dict[ThreatModel, tuple[ThreatModel, ...]] = {
    "query": ("query", "passive"),
    "weights": ("weights", "query", "passive"),
    "many_passes": ("many_passes", "query", "passive"),
    "weights_and_many_passes": ("weights_and_many_passes", "many_passes", "weights", "query", "passive"),
    "passive": ("passive",),
    "malicious": ("malicious", "passive"),
}
"""Threat model -> threat models whose attacks its adversary can mount, itself first."""


def threat_name(model: str) -> str:
    """The readable name of a threat model."""
    return model.replace("_", " ")
