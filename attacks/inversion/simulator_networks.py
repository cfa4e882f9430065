"""Networks of attacks that simulate a client: a simulator of unknown architecture, a decoder, and a discriminator."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.inversion.decoders.base import MapGeometry, as_maps
from privkit.attacks.patches import class_tokens

_CLAMPED = 0.01  # a larger share of values at the exact minimum comes from a ReLU or a clamp
_SMALLEST_SIDE = 4  # side of the picture from which a vector is read


class Simulator(nn.Module):
    """A convolutional network from images to simulated releases, with the form and statistics of recorded releases.

    The last layer's output is multiplied by the recorded releases' standard deviations, shifted by their means and cut
    off at their lower limit, for example 0 after a ReLU.
    We assume that the release's h × w positions form a grid, centered on the image, whose step is the largest whole
    number of pixels for which the grid fits. This holds for patches, and for convolutions with and without padding. A
    class token is computed from all positions. The width doubles with each reduction of the picture, up to four times
    `width`.

    Source: privkit's own; in SDAR (Zhu et al.), the simulator has the architecture of the client or of another known
    network.
    """

    mean: Tensor
    deviation: Tensor
    lowest: Tensor

    def __init__(self, release: Tensor, image_shape: tuple[int, int, int], *, width: int) -> None:
        super().__init__()
        geometry = MapGeometry.of(release, image_shape)
        maps = as_maps(release, geometry)
        lowest = maps.amin()
        clamped = (maps == lowest).float().mean() > _CLAMPED
        self.register_buffer("mean", maps.mean((0, 2, 3)).view(1, -1, 1, 1))
        self.register_buffer("deviation", maps.var((0, 2, 3), correction=0).sqrt().view(1, -1, 1, 1))
        self.register_buffer("lowest", torch.where(clamped, lowest, torch.full_like(lowest, -torch.inf)))
        self.form, self.grid = release.ndim, (geometry.rows, geometry.columns)
        cells, steps = _halvings(geometry)
        self.reach = (cells[0] * prod(steps), cells[1] * prod(steps))
        widths = [width * 2 ** min(level, 2) for level in range(len(steps) + 1)]
        self.enter = _layer(image_shape[0], width)
        self.body = nn.Sequential(
            *(_layer(a, b, step) for (a, b), step in zip(pairwise(widths), steps, strict=True)),
            _layer(widths[-1], widths[-1]),
        )
        self.leave = nn.Conv2d(widths[-1], geometry.channels, cells if self.grid == (1, 1) else 1)
        front = class_tokens(release)
        self.front = _ClassToken(release[:, :front], widths[-1]) if front else None

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.enter(images)
        top, left = ((a - b) // 2 for a, b in zip(hidden.shape[2:], self.reach, strict=True))
        if min(top, left) >= 0:
            hidden = hidden[:, :, top : top + self.reach[0], left : left + self.reach[1]]
        features = self.body(hidden)
        maps = self.leave(features)
        if maps.shape[2:] != self.grid:
            maps = functional.interpolate(maps, self.grid, mode="bilinear")
        maps = torch.maximum(maps * self.deviation + self.mean, self.lowest)
        if self.form != 3:
            return maps if self.form == 4 else maps.flatten(1)
        tokens = maps.flatten(2).transpose(1, 2)
        return tokens if self.front is None else torch.cat([self.front(features), tokens], 1)


class _ClassToken(nn.Module):
    mean: Tensor
    deviation: Tensor

    def __init__(self, recorded: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", recorded.mean(0))
        self.register_buffer("deviation", recorded.std(0, correction=0))
        self.leave = nn.Linear(width, recorded.shape[2])

    def forward(self, features: Tensor) -> Tensor:
        made: Tensor = self.leave(features.mean((2, 3))).unsqueeze(1) * self.deviation + self.mean
        return made


class SimulatorDecoder(nn.Module):
    """A convolutional network from releases to images (not clamped), with the simulator's steps in reverse.

    No layer normalizes its input, because simulated and recorded releases differ in their statistics and must be
    decoded by the same function.
    """

    def __init__(self, rows: Tensor, image_shape: tuple[int, int, int], *, width: int) -> None:
        super().__init__()
        self.geometry = geometry = MapGeometry.of(rows, image_shape)
        cells, steps = _halvings(geometry)
        widths = [width * 2 ** min(level, 2) for level in range(len(steps), -1, -1)]
        start = widths[0] * cells[0] * cells[1]
        layers: list[nn.Module] = [nn.Conv2d(geometry.channels, widths[0], 3, padding=1), nn.ReLU()]
        if (geometry.rows, geometry.columns) == (1, 1):
            layers = [nn.Conv2d(geometry.channels, start, 1), nn.ReLU(), nn.Flatten(), nn.Unflatten(1, (-1, *cells))]
        for (a, b), step in zip(pairwise(widths), reversed(steps), strict=True):
            layers += [nn.Conv2d(a, a, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(a, b * step**2, 3, padding=1), nn.PixelShuffle(step), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.leave = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, image_shape[0], 3, padding=1)
        )

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.body(as_maps(rows, self.geometry))
        down, across = (a - b for a, b in zip(self.geometry.image_shape[1:], hidden.shape[2:], strict=True))
        around = (across // 2, across - across // 2, down // 2, down - down // 2)  # negative numbers crop
        images: Tensor = self.leave(functional.pad(hidden, around)) + 0.5
        return images


class Discriminator(nn.Module):
    """Scores each row: higher if it looks like a recorded release (or like the adversary's images, if rows are images).

    Inputs are standardized per channel, by example rows. If `classes` > 0, the score also depends on the row's label.

    Source: Zhu et al., SDAR, whose two discriminators take labels as input; here labels enter by a projection (Miyato
    and Koyama 2018, "cGANs with projection discriminator").
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, rows: Tensor, image_shape: tuple[int, int, int], *, width: int, classes: int) -> None:
        super().__init__()
        self.geometry = MapGeometry.of(rows, image_shape)
        maps = as_maps(rows, self.geometry)
        self.register_buffer("mean", maps.mean((0, 2, 3)).view(1, -1, 1, 1))
        self.register_buffer("deviation", maps.var((0, 2, 3), correction=0).sqrt().clamp_min(1e-3).view(1, -1, 1, 1))
        side, channels = min(maps.shape[2:]), width
        step = 2 if side > 16 else 1
        layers: list[nn.Module] = [nn.Conv2d(self.geometry.channels, width, 2 * step - 1, step, step - 1)]
        side //= step
        while True:
            layers += [nn.LeakyReLU(0.2), nn.Conv2d(channels, 2 * channels, 3, stride=2 if side > 4 else 1, padding=1)]
            channels, side = 2 * channels, side // 2
            if side <= 4 or channels >= 8 * width:
                break
        self.body = nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.score = nn.Linear(4 * channels, 1)
        self.of_label = nn.Embedding(classes, 4 * channels) if classes else None

    def forward(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Score the rows, [N]. Labels, int64 [N], are used if the discriminator was built for labels."""
        features = self.body((as_maps(rows, self.geometry) - self.mean) / self.deviation)
        score: Tensor = self.score(features).squeeze(1)
        if self.of_label is None or labels is None:
            return score
        own: Tensor = (self.of_label(labels) * features).mean(1)
        return score + own


def _halvings(geometry: MapGeometry) -> tuple[tuple[int, int], list[int]]:
    """The rows and columns of the smallest feature map, and the factors by which the image shrinks to this size."""
    sides, cells = geometry.image_shape[1:], (geometry.rows, geometry.columns)
    if cells == (1, 1):
        halved = 0
        while min(sides) >> (halved + 1) >= _SMALLEST_SIDE:
            halved += 1
        cells = (sides[0] >> halved, sides[1] >> halved)
    return cells, _primes(max(1, min(side // count for side, count in zip(sides, cells, strict=True))))


def _layer(inputs: int, outputs: int, step: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, step + 2, stride=step, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _primes(number: int) -> list[int]:
    factors, factor = [], 2
    while number > 1:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return factors
