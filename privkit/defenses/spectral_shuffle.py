"""Spectral shuffling: a Fourier transform of the tokens, arranged as a picture, then a permutation of its patches."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.constraints import Count
from privkit.defenses.base import Effect, OnSmashed, require_tokens, take_rows
from privkit.defenses.patch_shuffle import own_rows
from privkit.defenses.receipts import Permuted
from privkit.torch_utils.patches import patchify, unpatchify
from privkit.torch_utils.seeded import seeded

_SYMMETRY = (
    "the spectrum of a real picture is symmetric about its center and strongest at low frequencies: so the patches "
    "themselves show which two belong together and roughly where they lie, which a solver may use"
)
_KNOWN = "the transform is known and can be undone: by itself it hides nothing"
_PROOF = "Yao et al., patch shuffling, Prop. 1 applied to frequency patches (§IV-D)"


@dataclass(frozen=True, kw_only=True)
class SpectralShuffle(OnSmashed[Permuted]):
    """Permutes the patches of a Fourier spectrum; all orders are equally likely (σ-private); no differential privacy.

    Attributes:
        where: what is transformed: "embedding", the smashed data, whose tokens become twice as wide (Algorithm 1 and
            the released code); "image", the image before the lower segment (Fig. 4).
        patch: side p of a patch in pixels. On embeddings, the D = c·p·p values of a token are read as a patch of p×p
            pixels with c channels; None takes the largest p whose square divides D: 16 for D = 768 (c = 3), 8 for D =
            192. On images, the model's patch size must be given.

    With "image", the lower segment accepts only the image's channels, so real and imaginary parts cannot be separate
    channels. Instead, Re − Im (the Hartley transform) is used. It has the image's shape and loses no information, since
    the spectrum of a real image holds every number twice. The factor 1/√(H·W) keeps the image's energy.

    Tokens must form a square grid.

    Source: Yao et al., patch shuffling, §IV-D, Algorithm 1 and Fig. 4.

    >>> z = torch.rand(1, 2, 4, 12)
    >>> release, _ = SpectralShuffle().apply(z, torch.zeros(1, 2), torch.Generator().manual_seed(0))
    >>> release.smashed.shape
    torch.Size([1, 2, 4, 24])
    """

    name: ClassVar[str] = "spectral_shuffle"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps", "permutes"})
    over_batch: ClassVar[bool] = False
    position_embedding: ClassVar[bool] = False

    where: Literal["embedding", "image"] = "embedding"
    patch: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.where == "image" and self.patch is None:
            raise ValueError("where=image permutes patches of an image's spectrum: give patch=, the model's patch size")

    @property
    def level(self) -> str:  # type: ignore[override]  # a specification decides it, and nobody writes it
        return "input" if self.where == "image" else "smashed"

    def adapter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        """The server's trainable MLP of layers 2D → 2D → D for tokens [..., T, 2D]; None if images are transformed.

        The input is first divided by the side of the transformed picture, because torch's initial weights expect values
        of about 1.

        Source: the authors' repository (layers 1536 → 1536 → 768); GELU and the scale are privkit's.
        """
        if self.where == "image":
            return None
        if len(smashed_shape) != 2:
            require_tokens(self.name, torch.empty(1, 1, *smashed_shape, device="meta"))
        tokens, dim = smashed_shape
        side = self._grid(tokens) * self._patch(dim)
        with seeded(torch.device("cpu"), seed):
            return nn.Sequential(_Scale(1 / side), nn.Linear(2 * dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Permuted]:
        if self.where == "image":
            tokens, p = self._image_patches(smashed)
        else:
            tokens = self._spectral_tokens(smashed)
        m, b, t, _ = tokens.shape
        order = own_rows(m, b, t, generator)
        released = take_rows(tokens, order)
        if self.where == "image":
            released = unpatchify(released, p, _image_shape(smashed))
        receipt = Permuted(source=order, assumptions=(_SYMMETRY, _KNOWN), proof=_PROOF, tokens=tokens.detach())
        return released, receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """The transform before the permutation: tokens [N, T, D] -> [N, T, 2D], or images -> spectra of equal shape."""
        if self.where == "embedding":
            return self._spectral_tokens(smashed.unsqueeze(0))[0]
        tokens, p = self._image_patches(smashed.unsqueeze(0))
        return unpatchify(tokens[0], p, _image_shape(smashed))

    def _spectral_tokens(self, smashed: Tensor) -> Tensor:
        """Tokens [M, B, T, D] -> patches [M, B, T, 2D] of the spectrum of the picture that the tokens form."""
        _, _, t, d = require_tokens(self.name, smashed)
        grid, p = self._grid(t), self._patch(d)
        spectrum = _centered_spectrum(unpatchify(smashed, p, (d // p**2, grid * p, grid * p)), None)
        return patchify(torch.cat([spectrum.real, spectrum.imag], -3), p)

    def _image_patches(self, images: Tensor) -> tuple[Tensor, int]:
        """Images [M, B, C, H, W] -> patches of their centered Hartley transform, and the side of a patch."""
        if images.ndim != 5:
            raise ValueError(f"{self.name} with where=image needs images [M, B, C, H, W], got {list(images.shape)}")
        height, width = images.shape[-2:]
        p = self.patch or 1
        if height % p or width % p or height * width == p * p:
            allowed = [q for q in range(1, min(height, width) + 1) if not height % q and not width % q]
            raise ValueError(
                f"patch={p} cuts images of {height}×{width} into no two whole patches or more; allowed: "
                f"{[q for q in allowed if q * q < height * width]}"
            )
        spectrum = _centered_spectrum(images, "ortho")
        return patchify(spectrum.real - spectrum.imag, p), p

    def _grid(self, tokens: int) -> int:
        side = isqrt(tokens)
        if side * side != tokens:
            raise ValueError(
                f"{self.name} lays tokens out as a square picture, got {tokens} tokens; leave the class token to the "
                "server, and use square images"
            )
        return side

    def _patch(self, dim: int) -> int:
        sides = [p for p in range(1, isqrt(dim) + 1) if dim % (p * p) == 0]
        if self.patch is not None and self.patch not in sides:
            raise ValueError(f"patch={self.patch}: its square does not divide the token size {dim}; allowed: {sides}")
        return self.patch or sides[-1]


def _centered_spectrum(picture: Tensor, norm: Literal["ortho"] | None) -> Tensor:
    """Complex spectrum of pictures [..., H, W] with frequency 0 at (H // 2, W // 2), in float32 instead of bfloat16."""
    wide = picture if picture.dtype == torch.float64 else picture.float()
    spectrum: Tensor = torch.fft.fftshift(torch.fft.fft2(wide, norm=norm), dim=(-2, -1))
    return spectrum


class _Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _image_shape(images: Tensor) -> tuple[int, int, int]:
    return images.shape[-3], images.shape[-2], images.shape[-1]
