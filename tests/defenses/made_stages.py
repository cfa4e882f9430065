"""Stages of a user's own, drawn at random: honest ones, and ones with a fault in what they do or declare."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp
from privkit.defenses import noise
from privkit.defenses.base import Defense, Release
from privkit.defenses.charge import Noised

EACH_ROW = {
    "scaled": lambda z: 3 * z,
    "squashed": torch.tanh,
    "sorted": lambda z: z.flatten(2).sort(2).values.view_as(z),
    "unit": lambda z: z / z.flatten(2).norm(dim=2).clamp_min(1e-6).view(*z.shape[:2], *[1] * (z.ndim - 2)),
}
"""Maps of one record."""
ACROSS = {
    "centered": lambda z: z - z.mean(1, keepdim=True),
    "added up": lambda z: z.sum(1, keepdim=True).expand_as(z),
    "ranked": lambda z: z.gather(
        1, z.flatten(2).norm(dim=2).argsort(1).view(*z.shape[:2], *[1] * (z.ndim - 2)).expand_as(z)
    ),
    "rolled in": lambda z: z + z.roll(1, 1),
}
"""Maps by which one record affects other rows of its batch."""
BOUNDS = ("ball", "clamp", "ball of the rounded", "batch ball")
NOISES = (
    "right",
    "half",
    "shared by coordinates",
    "shared by rows",
    "on half of them",
    "uniform",
    "of the data",
    "none",
)


@dataclass(frozen=True, kw_only=True)
class Own(Defense):
    """A user's stage: it applies maps, a clip or clamp, and noise, perhaps other ones than its receipt declares."""

    name: ClassVar[str] = "own"
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    maps: tuple[str, ...] = ()
    bound: str = "ball"
    size: float = 1.0
    claimed: float = 1.0
    law: str = "gaussian"
    sigma: float = 1.0
    noise: str = "right"
    declared: tuple[str, ...] | None = ("noises",)

    @property
    def effects(self) -> Any:  # type: ignore[override]
        return None if self.declared is None else frozenset(self.declared)

    def quiet(self, z: Tensor) -> Tensor:
        """The release before the noise is added."""
        for name in self.maps:
            z = (EACH_ROW | ACROSS)[name](z)
        if self.bound == "clamp":
            return noise.clamp(z, -self.size, self.size)
        if self.bound == "batch ball":  # one norm for a message
            return z * (self.size / z.flatten(1).norm(dim=1).clamp_min(self.size)).view(-1, *[1] * (z.ndim - 1))
        return noise.shrink(z.round() if "rounded" in self.bound else z, self.size)

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
        coordinates = noise.require_images(self.name, smashed)
        z = self.quiet(smashed)
        add = noise.laplace if self.law == "laplace" else noise.gaussian
        drawn = add(torch.zeros_like(z), self.sigma, generator)
        if self.noise == "half":
            drawn = drawn / 2
        elif self.noise == "shared by coordinates":
            drawn = drawn.flatten(2)[..., :1].expand(*z.shape[:2], coordinates).reshape_as(z)
        elif self.noise == "shared by rows":
            drawn = drawn[:1, :1].expand_as(z)
        elif self.noise == "on half of them":
            drawn = drawn * (torch.arange(drawn.numel()).view_as(drawn) % 2)
        elif self.noise == "uniform":
            drawn = self.sigma * 12**0.5 * (torch.rand(z.shape, generator=generator, dtype=z.dtype) - 0.5)
        elif self.noise == "of the data":
            drawn = drawn * (0.5 + z.abs().clamp(max=0.5))
        elif self.noise == "none":
            drawn = 0 * drawn
        clip = Clamp(low=-self.claimed, high=self.claimed, dimensions=coordinates)
        receipt = Noised(
            clip=clip if self.bound == "clamp" or self.law == "laplace" else Ball(radius=self.claimed),
            noise=Noise(law=self.law, smashed=self.sigma),  # type: ignore[arg-type]
            mixing=UNMIXED,
        )
        return Release(smashed=z + drawn, labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        return self.quiet(smashed.unsqueeze(0))[0]


def draw(seed: int) -> Own:
    """Draw a stage at random, which may be correct or faulty."""
    dice = np.random.default_rng(seed)

    def one(among: Any) -> Any:
        return among[dice.integers(len(among))]

    maps = tuple(one(sorted(EACH_ROW)) for _ in range(dice.integers(3)))
    if dice.random() < 0.3:
        maps = (*maps, one(sorted(ACROSS)))
    bound = one(BOUNDS) if dice.random() < 0.7 else "clamp"
    law = "laplace" if bound == "clamp" and dice.random() < 0.4 else "gaussian"
    size = float(10 ** dice.uniform(-2, 1))
    stage = Own(maps=maps, bound=bound, size=size, claimed=size, law=law, sigma=float(10 ** dice.uniform(-2, 2)))
    if dice.random() < 0.3:
        stage = replace(stage, claimed=size * one((0.5, 0.8, 2.0)))
    if dice.random() < 0.3:
        stage = replace(stage, noise=one(NOISES))
    if dice.random() < 0.5:
        stage = replace(stage, declared=one((("noises", "maps"), ("noises", "clips"), ("maps",), None)))
    return stage
