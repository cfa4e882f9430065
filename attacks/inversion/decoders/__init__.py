"""Decoder networks of the inversion attacks: they map the released data of N images to guesses [N, C, H, W]."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.convolutional import Autoencoder, Convolutions, Pix2Pix, UNet
from privkit.attacks.inversion.decoders.mae import AnyTokensDecoder, MaeDecoder, ReleasedDecoder
from privkit.attacks.inversion.decoders.unordered import MessageDecoder, SetDecoder

DecoderName = Literal["mae", "released", "set", "message", "convolutions", "autoencoder", "unet", "pix2pix"]

DECODERS: dict[DecoderName, type[Decoder]] = {
    "mae": MaeDecoder,
    "released": ReleasedDecoder,
    "set": SetDecoder,
    "message": MessageDecoder,
    "convolutions": Convolutions,
    "autoencoder": Autoencoder,
    "unet": UNet,
    "pix2pix": Pix2Pix,
}
"""Decoder classes by name; `build_decoder` builds a network for a given release."""


def usual_decoder(release: Tensor) -> DecoderName:
    """Name the default decoder: "mae" for tokens, as published, and "autoencoder" for feature maps and vectors."""
    return "mae" if release.ndim == 3 else "autoencoder"


def build_decoder(
    name: DecoderName | None,
    release: Tensor,
    image_shape: tuple[int, int, int],
    *,
    width: int | None = None,
    depth: int | None = None,
    whole: bool = True,
) -> Decoder:
    """Build a decoder network for releases of a given form, with weights drawn from torch's global generator.

    `release` holds example rows: tokens [N, T, D], feature maps [N, D, h, w] or vectors [N, D]. `depth`
    counts blocks, or halvings of the image's side. If `width` or `depth` is None, the decoder chooses it, mostly from
    the size of the tokens or images. `whole` says whether every patch has a token. If not, "mae"
    builds `AnyTokensDecoder`, and other names raise `NotApplicable`.
    """
    name = name or usual_decoder(release)
    if not whole and name != "mae":
        raise NotApplicable(
            f"tokens were dropped or merged, and decoder={name} reads one for each patch: take decoder=mae, which then "
            "reads any number of tokens"
        )
    return (DECODERS[name] if whole else AnyTokensDecoder).of(release, image_shape, width=width, depth=depth)
