"""SARA: moves tokens to predicted positions, completes missing tokens, and decodes the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NoSession, ReconstructingAttack, Session
from privkit.attacks.fit import Stage, fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.budgeted import mounted, planned_epochs
from privkit.attacks.inversion.decoders.mae import MaeDecoder, blocks, heads_for
from privkit.attacks.order.drag_reorder import Predicted, learn, missing
from privkit.attacks.order.piece_network import PieceTraining
from privkit.attacks.order.piece_solver import put
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.patches import Geometry, patch_tokens, unpatchify
from privkit.constraints import Probability, Whole
from privkit.torch_utils.seeded import seeded

_IMAGES_A_STEP = 16  # more and smaller steps learn more in the same time
_COMPLETION_WEIGHT = 0.05  # weight of the squared error of completed tokens (variance 1), relative to pixels


class Completion(nn.Module):
    """A network that predicts missing tokens from the other tokens, and then decodes all tokens."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.decoder = MaeDecoder(geometry)
        width = self.decoder.width
        self.missing = nn.Parameter(torch.zeros(geometry.token_dim))
        self.enter = nn.Linear(geometry.token_dim, width)
        self.block = blocks(width, 1, heads_for(width))
        self.leave = nn.Linear(width, geometry.token_dim)

    def forward(self, tokens: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
        """Complete tokens [N, T, D], of which some are `absent`, bool [N, T]; return all tokens and decoded images."""
        held = torch.where(absent.unsqueeze(2), self.missing, tokens)
        filled = self.leave(self.block(self.enter(held) + self.decoder.positions))
        completed = torch.where(absent.unsqueeze(2), filled, tokens)
        return completed, self.decoder(completed)


@dataclass(frozen=True, kw_only=True)
class Sara(ReconstructingAttack):
    """Reconstruct images from shuffled and partly missing tokens, by three networks one after another.

    A token is a released vector that stands for one patch of an image. The first network predicts each token's position
    (the predictor of the attack `drag_reorder`), the second completes missing tokens, and the third decodes images.
    Tokens of zeros count as missing. The second and third network learn from the adversary's tokens in the predicted
    order, with random masks, so they adapt to the predictor's mistakes. The predictor learns from the same images:
    separate images did not help in measurements, since a predictor with one hidden layer overfits little.

    Attributes:
        predictor_epochs: number ≥ 0 of epochs of the position predictor.
        epochs: number ≥ 0 of epochs of completion and decoder. None leaves it to an audit's budget; `run` needs a
            number.
        masked: largest share in [0, 1] of an image's tokens that are replaced by a learned mask token in training.

    Source: the three steps of SARA, arXiv 2609.01232; sizes and training are privkit's own, since neither the paper's
    text nor its code was available.
    """

    name: ClassVar[str] = "sara"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"query"})

    predictor_epochs: Whole = 20
    epochs: Whole | None = None
    masked: Probability = 0.5

    @property
    def mounting(self) -> ImageMounting:
        return replace(
            mounted(self),
            start=None if self.epochs == 0 else replace(self, predictor_epochs=0, epochs=0),
            control=lambda steps: replace(
                self, predictor_epochs=ceil(CONTROL_STEPS / steps), epochs=ceil(CONTROL_STEPS / steps)
            ),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_inputs(self, observation)
        session, epochs = session or NoSession(), planned_epochs(self.epochs)
        learned, state = learn(observation, self.predictor_epochs, generator, session, name=self.name, later=epochs)
        geometry, own = learned.decoder.geometry, learned.own.tokens
        seeds = torch.randint(2**48, (2,), generator=generator).tolist()
        with seeded(torch.device("cpu"), seeds[0]):  # torch's initializers know only the global generator
            network = Completion(geometry).to(own.device)
        draws, steps = Generator().manual_seed(seeds[1]), -(-len(own) // _IMAGES_A_STEP)
        if epochs:
            predicted, before = put(own, learned.places(own), 1), self.predictor_epochs
            losses = partial(_masked_token_losses, network, learned, predicted, self.masked, draws)
            training = PieceTraining(network, losses, steps, epochs, draws)
            stage = Stage(session, state, "completion", before, before + epochs)
            fit(training, epochs, stage, objective="sara: the training loss")
        images, sources = [], []
        for view in observation.views:
            tokens, source = patch_tokens(view.smashed).float(), learned.source(view)
            placed = put(tokens, source, rows_a_message(view))
            with torch.no_grad():
                drawn = [network(learned.standardized(x), missing(x))[1].clamp(0, 1) for x in placed.split(256)]
            images.append(torch.cat(drawn))
            sources.append(source)
        order = Permutation(source=torch.cat(sources).to(own.device))
        return Reconstruction(images=torch.cat(images), permutation=order)


def _masked_token_losses(
    network: Completion, learned: Predicted, predicted: Tensor, masked: float, draws: Generator
) -> Iterator[Tensor]:
    geometry, own = learned.decoder.geometry, learned.own.tokens
    for rows in torch.randperm(len(own), generator=draws).split(_IMAGES_A_STEP):
        share = masked * torch.rand(len(rows), 1, generator=draws)
        absent = (torch.rand(len(rows), geometry.tokens, generator=draws) < share).to(own.device)
        yield completion_loss(network, learned, predicted[rows], rows, absent)


def completion_loss(network: Completion, learned: Predicted, predicted: Tensor, rows: Tensor, absent: Tensor) -> Tensor:
    """Loss of completion and decoder: the mean squared error of pixels, plus 0.05 times the error of masked tokens.

    `predicted` [n, T, D] are tokens in their predicted positions, from the adversary's images with the indices `rows`,
    int64 [n]; `absent`, bool [n, T], says which tokens are masked. Errors of tokens are in units of their variance.
    """
    geometry = learned.decoder.geometry
    truth = learned.standardized(learned.own.tokens[rows])
    completed, drawn = network(learned.standardized(predicted), absent)
    image = unpatchify(learned.own.patches[rows], geometry.patch, geometry.image_shape)
    error = nn.functional.mse_loss(drawn, image)
    gaps = (completed - truth).square().mean(2)[absent]
    loss: Tensor = error + _COMPLETION_WEIGHT * gaps.sum() / max(1, gaps.numel())
    return loss
