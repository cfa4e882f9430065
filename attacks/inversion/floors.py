"""Floors, i.e. guesses that ignore the release; an attack that works has a smaller error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from privkit.attacks.base import Mounting, ReconstructingAttack, Session, View, given, require
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction


def victims(views: Sequence[View]) -> int:
    """Count the guesses that an attack must return: one for each image in each released row."""
    return sum(len(view.smashed) * view.mixed for view in views)


@dataclass(frozen=True, kw_only=True)
class MidGrey(ReconstructingAttack):
    """Guess 0.5 for every pixel: a guess that uses no data, and the initial image of many white-box attacks.

    Source: privkit's own; several published white-box MSEs are worse (docs/explanation/decisions.md, "Floors").
    """

    name: ClassVar[str] = "mid_grey"
    needs: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        shape, device = (victims(observation.views), *observation.image_shape), observation.views[0].smashed.device
        return Reconstruction(images=torch.full(shape, 0.5, device=device))


@dataclass(frozen=True, kw_only=True)
class MeanImage(ReconstructingAttack):
    """Guess the mean of the adversary's images for every attacked image: the best constant guess under squared error.

    Source: the error of the best constant predictor is the variance of the data.
    """

    name: ClassVar[str] = "mean_image"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        require(self, observation)
        mean = given(observation.auxiliary).mean(0, keepdim=True).to(observation.views[0].smashed.device)
        return Reconstruction(images=mean.repeat(victims(observation.views), 1, 1, 1))
