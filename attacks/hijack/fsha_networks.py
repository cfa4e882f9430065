"""Pilot, decoder and discriminator of feature-space hijacking, with shapes that follow from the release at any cut."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt, log2
from typing import Literal

from torch import Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.hijack.gan import kinked

_SMALL_SIDE = 4  # side of the maps in the discriminator's residual blocks, and before a pilot's vector

End = Literal["linear", "relu", "tanh"]
Sides = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Networks:
    """The three networks of the malicious server: encoder (pilot), decoder and discriminator."""

    pilot: nn.Module  # images [N, C, H, W] in [-1, 1] -> releases that clients should imitate
    decoder: nn.Module  # releases -> images in [-1, 1]
    discriminator: _ReleaseDiscriminator  # releases, and labels int64 [N] or None (−1: unknown) -> scores [N]


def hijacking_networks(
    released: tuple[int, ...],
    image: tuple[int, int, int],
    width: int,
    end: End = "linear",
    classes: int = 0,
    blocks: int = 6,
) -> Networks:
    """Build the malicious server's encoder (pilot), decoder and discriminator for feature-space hijacking.

    The weights are drawn from torch's global generator. One image's release has the shape (C, H, W), (T, D) for tokens
    of patches, or (D,); raises `NotApplicable` if T is not a square number. The first convolution has `width` channels
    (64 in the authors' code), later ones up to four times as many. The encoder's last activation is `end` (linear in
    the authors' code). The discriminator reads `classes` labels and has `blocks` residual blocks; for vectors, it has
    half as many blocks, of linear layers.

    Source: Pasquini et al. 2021, the authors' networks by split level: linear strided convolutions, transposed
    convolutions that end in tanh, and a discriminator of six residual blocks without normalization. The sizes of image
    and release determine the number of layers. The networks are the authors' for 3×32×32 images and releases of 64×16²,
    128×8² and 256×4².
    """
    maps = _maps(released)
    sides = _halved_sizes(image[1:], maps[1:] if maps else None)
    widths = [width * min(2**i, 4) for i in range(len(sides) - 1)] or [width]
    networks = Networks(
        pilot=_pilot(released, image, sides, widths, end),
        decoder=_decoder(released, image, sides, widths, 4 * width),
        discriminator=_ReleaseDiscriminator(released, width, classes, blocks),
    )
    for network in (networks.pilot, networks.decoder, networks.discriminator):
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)  # the default of the authors' framework
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return networks


class _ReleaseDiscriminator(nn.Module):
    """Scores released smashed data: high for a client's smashed data, low for the output of the server's encoder.

    With `classes` > 0, it scores smashed data together with their label, by a projection.

    Source: the projection is Eq. 3 of Miyato and Koyama 2018, "cGANs with projection discriminator".
    """

    def __init__(self, released: tuple[int, ...], width: int, classes: int, blocks: int) -> None:
        super().__init__()
        maps, wide = _maps(released), 4 * width
        body: list[nn.Module] = [_Grid()] if len(released) == 2 else []
        if maps is None:
            body += [
                nn.Linear(released[0], wide),
                *[_ResidualRelease(wide, flat=True) for _ in range(ceil(blocks / 2))],
                _Kink(),
            ]
            features = wide
        else:
            channels, side = maps[0], max(maps[1:])
            narrow = min(maps[1:])
            while side > _SMALL_SIDE:
                out = wide if side <= 2 * _SMALL_SIDE else 2 * width
                body += [nn.Conv2d(channels, out, 3, 2, 1), _Kink()]
                channels, side, narrow = out, ceil(side / 2), ceil(narrow / 2)
            if max(maps[1:]) <= _SMALL_SIDE:
                body.append(nn.Conv2d(channels, wide, 3, 1, 1))
            else:
                body.pop()  # a residual block begins with an activation
            body += [_ResidualRelease(wide) for _ in range(blocks)]
            body += [nn.Conv2d(wide, wide, 3, 2, 1), nn.Flatten()]
            features = wide * ceil(side / 2) * ceil(narrow / 2)
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(features, 1)
        self.by_label = nn.Linear(features, classes, bias=False) if classes else None

    def forward(self, released: Tensor, labels: Tensor | None = None) -> Tensor:
        features = self.body(released)
        scores: Tensor = self.head(features).squeeze(1)
        if self.by_label is None or labels is None:
            return scores
        own: Tensor = self.by_label(features).gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1)
        return scores + own * (labels >= 0)


def _pilot(released: tuple[int, ...], image: tuple[int, ...], sides: Sides, widths: list[int], end: End) -> nn.Module:
    layers: list[nn.Module] = []
    maps, channels = _maps(released), image[0]
    for out in widths:
        layers.append(nn.Conv2d(channels, out, 3, 2 if len(sides) > 1 else 1, 1))
        channels = out
    if maps is None:
        layers += [nn.Flatten(), nn.Linear(channels * sides[-1][0] * sides[-1][1], released[0])]
    else:
        layers += [nn.Upsample(maps[1:], mode="bilinear")] if sides[-1] != maps[1:] else []
        layers.append(nn.Conv2d(channels, maps[0], 3, 1, 1))
    layers += [_Rows()] if len(released) == 2 else []
    layers += [nn.ReLU()] if end == "relu" else [nn.Tanh()] if end == "tanh" else []
    return nn.Sequential(*layers)


def _decoder(
    released: tuple[int, ...], image: tuple[int, ...], sides: Sides, widths: list[int], wide: int
) -> nn.Module:
    maps = _maps(released)
    layers: list[nn.Module] = [_Grid()] if len(released) == 2 else []
    if maps is None:
        height, width = sides[-1]
        layers += [nn.Linear(released[0], wide * height * width), nn.Unflatten(1, (wide, height, width)), nn.ReLU()]
        channels = wide
    else:
        layers += [nn.Upsample(sides[-1], mode="bilinear")] if sides[-1] != maps[1:] else []
        channels = maps[0]
    below = list(zip(sides[:0:-1], sides[-2::-1], strict=True))
    for stage, (small, large) in enumerate(below):
        last = stage == len(below) - 1 and len(below) >= 3
        out = image[0] if last else max(wide >> stage, widths[0])
        odd = tuple(b - (2 * a - 1) for a, b in zip(small, large, strict=True))
        layers.append(nn.ConvTranspose2d(channels, out, 3, 2, 1, output_padding=odd))  # type: ignore[arg-type]
        layers += [] if last else [nn.ReLU()]
        channels = out
    if not below:
        layers += [nn.Conv2d(channels, wide, 3, 1, 1), nn.ReLU()]
        channels = wide
    if len(below) < 3:
        layers.append(nn.Conv2d(channels, image[0], 3, 1, 1))
    return nn.Sequential(*layers, nn.Tanh())


def _maps(released: tuple[int, ...]) -> tuple[int, int, int] | None:
    if len(released) == 2:
        side = isqrt(released[0])
        if side * side != released[0]:
            raise NotApplicable(
                f"fsha lays tokens out as a square grid, but the release has {released[0]} tokens: cut where only the "
                "patches of an image are released, or attack with black_box"
            )
        return released[1], side, side
    return (released[0], released[1], released[2]) if len(released) == 3 else None


def _halved_sizes(image: tuple[int, int], cut: tuple[int, int] | None) -> Sides:
    halvings = (
        ceil(log2(max(1, max(image) / _SMALL_SIDE)))
        if cut is None
        else max(0, round(log2(max(image) / max(cut))), round(log2(min(image) / min(cut))))
    )
    sides = [image]
    for _ in range(halvings):
        sides.append((ceil(sides[-1][0] / 2), ceil(sides[-1][1] / 2)))
    return sides


class _ResidualRelease(nn.Module):
    def __init__(self, channels: int, flat: bool = False) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Linear(channels, channels) if flat else nn.Conv2d(channels, channels, 3, 1, 1) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(kinked(self.first(kinked(x))))
        return x + change


class _Kink(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return kinked(x)


class _Grid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        side = isqrt(x.shape[1])
        return x.transpose(1, 2).reshape(len(x), -1, side, side)


class _Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)
