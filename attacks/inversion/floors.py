"""The trivial floors: what an adversary gets without looking at the views. Every attack must beat them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from privkit.attacks.base import Knowledge, NotApplicable, Reconstruction, Session, View


def victims(views: Sequence[View]) -> int:
    """Number of guesses that the views ask for: every seat of every released row."""
    return sum(len(view.smashed) * view.mixed for view in views)


@dataclass(frozen=True, kw_only=True)
class MidGrey:
    """Guess 0.5 everywhere: the start of many white-box attacks, and where some published ones still stand.

    Source: design floor; several published white-box MSEs are worse than it (docs/architecture.md, "Floors").
    """

    name: ClassVar[str] = "mid_grey"
    needs: ClassVar[frozenset[str]] = frozenset()

    def run(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Ignore the views.

        >>> views = [View(round=0, smashed=torch.zeros(2, 4, 8))]
        >>> MidGrey().run(views, Knowledge(image_shape=(1, 3, 3), batch_size=2), torch.Generator()).images.unique()
        tensor([0.5000])
        """
        device = views[0].smashed.device
        return Reconstruction(images=torch.full((victims(views), *knowledge.image_shape), 0.5, device=device))


@dataclass(frozen=True, kw_only=True)
class MeanImage:
    """Guess the mean of the auxiliary images for every victim: the best constant guess under MSE.

    Source: the error of the best constant predictor is the variance of the data.
    """

    name: ClassVar[str] = "mean_image"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})

    def run(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Ignore the views.

        >>> views = [View(round=0, smashed=torch.zeros(2, 4, 8))]
        >>> knowledge = Knowledge(image_shape=(1, 3, 3), batch_size=2, auxiliary=torch.ones(5, 1, 3, 3))
        >>> MeanImage().run(views, knowledge, torch.Generator()).images.shape
        torch.Size([2, 1, 3, 3])
        """
        if knowledge.auxiliary is None:
            raise NotApplicable("mean_image needs auxiliary images")
        mean = knowledge.auxiliary.mean(0, keepdim=True).to(views[0].smashed.device)
        return Reconstruction(images=mean.repeat(victims(views), 1, 1, 1))
