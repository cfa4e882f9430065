"""Decoder networks of the inversion attacks: released tokens [N, T, D] in, images [N, C, H, W] out."""

from __future__ import annotations

from privkit.attacks.decoders.mae import MaeDecoder, checked_width
from privkit.attacks.decoders.patches import Geometry
from privkit.attacks.decoders.released import ReleasedDecoder

DECODERS: dict[str, type[MaeDecoder] | type[ReleasedDecoder]] = {"mae": MaeDecoder, "released": ReleasedDecoder}
"""Name -> network; each is called as `decoder(geometry, width=..., depth=...)`, None for sizes scaled to the model."""

__all__ = ["DECODERS", "Geometry", "MaeDecoder", "ReleasedDecoder", "checked_width"]
