"""DRAG's reorder step: each token's place is predicted from the token, and patches are shown in these places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Generator

from privkit.attacks.base import Mounting, NoSession, Session
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check
from privkit.attacks.order.piece_solver import put
from privkit.attacks.order.position_predictor import learn
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.patches import patch_tokens, unpatchify
from privkit.constraints import Checked, Whole


@dataclass(frozen=True, kw_only=True)
class DragReorder(Checked):
    """Predicts each token's place from that token alone, and gives every token of a row another place.

    The published attack goes on with guided diffusion, whose network is no part of this package: here the patch behind
    each token is decoded by a linear map. `jigsaw_white_box` inverts an order that a solver found.

    Attributes:
        epochs: of the predictor, ≥ 0.

    Source: Lei et al., DRAG, ICML 2025, its adaptive attack on token shuffling and its released code.
    """

    name: ClassVar[str] = "drag_reorder"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"query"})

    epochs: Whole = 20

    @property
    def mounting(self) -> ImageMounting:
        """It starts with nothing learned."""
        return Mounting(
            start=None if self.epochs == 0 else replace(self, epochs=0),
            undoes=frozenset({"permutes"}),
            control=lambda steps: replace(self, epochs=ceil(CONTROL_STEPS / steps)),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Learn the places of own tokens, then place every view's patches.

        >>> from privkit.attacks.base import View
        >>> from privkit.attacks.patches import patchify
        >>> cells = lambda x: patchify(x, 4)
        >>> view = View(round=0, smashed=cells(torch.rand(2, 1, 8, 8)))
        >>> observation = ImageObservation(
        ...     views=[view], image_shape=(1, 8, 8), batch_size=2, auxiliary=torch.rand(20, 1, 8, 8), lower=cells
        ... )
        >>> DragReorder(epochs=1).run(observation, torch.Generator().manual_seed(0)).permutation.source.shape
        torch.Size([2, 4])
        """
        check(self, observation)
        learned, _ = learn(observation, self.epochs, generator, session or NoSession(), name=self.name)
        geometry, images, sources = learned.decoder.geometry, [], []
        for view in observation.views:
            sources.append(learned.source(view))
            patches = learned.decoder.decode(patch_tokens(view.smashed).float()).clamp(0, 1)
            placed = put(patches, sources[-1], rows_a_message(view))
            images.append(unpatchify(placed, geometry.patch, geometry.image_shape))
        source = torch.cat(sources).to(images[0].device)
        return Reconstruction(images=torch.cat(images), permutation=Permutation(source=source))
