"""Digits that are sent several times: releases, the adversary's knowledge, and the error of its guesses."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.adaptive import Adaptive
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.patches import patchify
from privkit.defenses.batch_shuffle import BatchShuffle
from tests.attacks.victims import answering
from tests.small import digits

BATCH = 20
Release = Callable[[Tensor, Generator], Tensor]


IMAGES = digits(460).x
VICTIMS, AUXILIARY = IMAGES[:60], IMAGES[60:]
FEW = AUXILIARY[:120]
"""Fewer own images, for tests that compare results bit for bit and need no good guesses."""
PLACES, CHANNELS = 4, 32
EMBEDDING = torch.randn(16, CHANNELS, generator=Generator().manual_seed(5)) / 2


def tokens(images: Tensor) -> Tensor:
    """A linear embedding without positions."""
    return patchify(images, 4) @ EMBEDDING


def identity(images: Tensor, draws: Generator) -> Tensor:
    return tokens(images)


def noisy(images: Tensor, draws: Generator) -> Tensor:
    return tokens(images) + 2.5 * torch.randn((len(images), PLACES, CHANNELS), generator=draws)


def shuffled(images: Tensor, draws: Generator) -> Tensor:
    order = torch.rand(len(images), PLACES, generator=draws).argsort(1)
    return tokens(images).gather(1, order.unsqueeze(2).expand(-1, -1, CHANNELS))


def noisy_shuffled(images: Tensor, draws: Generator) -> Tensor:
    return shuffled(images, draws) + 1.5 * torch.randn((len(images), PLACES, CHANNELS), generator=draws)


def batch_shuffled(images: Tensor, draws: Generator) -> Tensor:
    release, _ = BatchShuffle(keep=0.5).apply(tokens(images).unsqueeze(0), torch.zeros(1, len(images)), draws)
    return release.smashed[0]


def noise(images: Tensor, draws: Generator) -> Tensor:
    return torch.randn((len(images), PLACES, CHANNELS), generator=draws)


def knowledge(release: Release, auxiliary: Tensor | None = AUXILIARY) -> ImageObservation:
    return ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=auxiliary, query=answering(release))


def views(release: Release, passes: int) -> list[View]:
    draws = Generator().manual_seed(9)
    return [View(round=i, smashed=release(part, draws)) for i in range(passes) for part in VICTIMS.split(BATCH)]


def run(
    attack: Adaptive | BlackBox, release: Release, session: Any = None, auxiliary: Tensor = AUXILIARY
) -> Reconstruction:
    known = replace(knowledge(release, auxiliary), views=views(release, getattr(attack, "passes", 1)))
    return attack.run(known, Generator().manual_seed(0), session)


def error(result: Reconstruction) -> float:
    assert result.images.shape == VICTIMS.shape
    return (result.images - VICTIMS).square().mean().item()


@cache
def reached(attack: Adaptive | BlackBox, release: Release) -> float:
    """The error of an attack on a release; cached, since several tests need the same error."""
    return error(run(attack, release))


FLOOR = error(MeanImage().run(replace(knowledge(noise), views=views(noise, 1)), Generator()))
