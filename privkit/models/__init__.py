"""Split models: a lower segment for the client and an upper segment for the server, cut at a named layer."""

from privkit.models.base import ModelSpec, SplitModel
from privkit.models.imported import ImportedPair
from privkit.models.vit import VIT_BASE, VIT_MICRO, VIT_TINY, Vit

MODELS: dict[str, str] = {
    "vit_base": "privkit.models.vit:VIT_BASE",
    "vit_micro": "privkit.models.vit:VIT_MICRO",
    "vit_tiny": "privkit.models.vit:VIT_TINY",
}
"""Name -> "module:object" of every model; a user's own pair is named by import path, `lower:upper`."""

__all__ = ["MODELS", "VIT_BASE", "VIT_MICRO", "VIT_TINY", "ImportedPair", "ModelSpec", "SplitModel", "Vit"]
