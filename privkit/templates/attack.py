"""Attack `template`: guesses the adversary's image whose release (defended smashed data) is nearest to the observed
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from privkit.attacks.base import Session
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_rows


@dataclass(frozen=True, kw_only=True)
class Template:
    """Sends the adversary's images to the client, and guesses the image whose release is nearest to the observed
    release.

    Source: your own.
    """

    name: ClassVar[str] = "template"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})  # fields of ImageObservation
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = ImageMounting(returns_auxiliary=True)

    @torch.no_grad()
    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Guess the attacked images, [N, C, H, W]; draw random numbers only from `generator`."""
        check_rows(self, observation)
        assert observation.auxiliary is not None
        assert observation.query is not None
        own, size = observation.auxiliary, observation.batch_size
        draws = Generator(own.device).manual_seed(int(torch.randint(2**48, (1,), generator=generator)))
        images, releases = [], []
        for sent in own[: len(own) // size * size].split(size):  # a round has as many records as the clients send
            answer = observation.query(sent, draws)
            images.append(sent[answer.members[:, 0]])
            releases.append(answer.view.smashed.flatten(1).float())
        seen = torch.cat([view.smashed for view in observation.views]).flatten(1).float()
        return Reconstruction(images=torch.cat(images)[torch.cdist(seen, torch.cat(releases)).argmin(1)])
