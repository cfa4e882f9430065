"""The reorder step of the attack DRAG: predict each token's place from the token, and put its decoded patch there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import cheapest
from privkit.attacks.base import Mounting, NoSession, ReconstructingAttack, Session, View
from privkit.attacks.fit import Stage, fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.known_lower import without_block
from privkit.attacks.order.own_tokens import OwnTokens, checked_geometry, own_tokens
from privkit.attacks.order.piece_network import PieceTraining
from privkit.attacks.order.piece_solver import PieceDecoder, put
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.patches import patch_tokens, unpatchify
from privkit.constraints import Whole
from privkit.torch_utils.seeded import seeded

_IMAGES_A_STEP = 32
_READ = 1_000  # largest number of the adversary's images whose tokens are read from messages of copies
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 1e-5  # as in the authors' code


@dataclass(frozen=True, kw_only=True)
class DragReorder(ReconstructingAttack):
    """Undo a shuffle of tokens (released vectors, one per patch) by predicting each token's place from the token alone.

    A network learns the place from the tokens of the adversary's images. All tokens of an image get different places.
    The published attack continues with guided diffusion, whose network is not part of this package: here a linear map
    decodes the patch behind each token. The attack `jigsaw_white_box` inverts a release after solving the order. A
    public block that clients run after the shuffle is undone first.

    Attributes:
        epochs: number ≥ 0 of epochs in which the place predictor is trained.

    Source: Lei et al., DRAG, ICML 2025, its adaptive attack on token shuffling and its released code.
    """

    name: ClassVar[str] = "drag_reorder"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"query"})

    epochs: Whole = 20

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            start=None if self.epochs == 0 else replace(self, epochs=0),
            undoes=frozenset({"permutes"}),
            control=lambda steps: replace(self, epochs=ceil(CONTROL_STEPS / steps)),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_inputs(self, observation)
        observation, note = without_block(observation)
        learned, _ = learn(observation, self.epochs, generator, session or NoSession(), name=self.name)
        geometry, images, sources = learned.decoder.geometry, [], []
        for view in observation.views:
            sources.append(learned.source(view))
            patches = learned.decoder.decode(patch_tokens(view.smashed).float()).clamp(0, 1)
            placed = put(patches, sources[-1], rows_a_message(view))
            images.append(unpatchify(placed, geometry.patch, geometry.image_shape))
        source = torch.cat(sources).to(images[0].device)
        return Reconstruction(images=torch.cat(images), permutation=Permutation(source=source), note=note)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The adversary's tokens, and the decoder and the place predictor learned from them."""

    own: OwnTokens  # the tokens of the adversary's images, in order
    decoder: PieceDecoder  # computes a token's patch
    predictor: nn.Module  # maps standardized tokens [N, T, D] to logits of places [N, T, T]

    @torch.no_grad()
    def places(self, tokens: Tensor) -> Tensor:
        """The predicted place of each token [N, T, D] in its image, int64 [N, T]."""
        if self.own.in_order:
            return torch.arange(tokens.shape[1]).expand(tokens.shape[:2])
        return reordered(self.predictor(self.standardized(tokens)), missing(tokens))

    def standardized(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, D], standardized by the mean and standard deviation of the adversary's tokens."""
        return (tokens - self.decoder.mean) / self.decoder.scale

    def source(self, view: View) -> Tensor:
        """The guessed index of each token in its message before the shuffle, int64 [N, T]; no token leaves its row."""
        places = self.places(patch_tokens(view.smashed).float())
        return places + places.shape[1] * (torch.arange(len(places)) % rows_a_message(view)).unsqueeze(1)


def missing(tokens: Tensor) -> Tensor:
    """Whether tokens [N, T, D] are zero because they were masked or dropped: bool [N, T]."""
    return (tokens == 0).all(2)


def reordered(logits: Tensor, absent: Tensor) -> Tensor:
    """Assign tokens to distinct places with the highest likelihood: int64 [N, T], from logits [N, T, T] of places.

    Tokens that are `absent`, bool [N, T], take the remaining places.

    Source: DRAG (ICML 2025), its adaptive attack on token shuffling: Hungarian assignment of log-probabilities.
    """
    likelihood = logits.double().log_softmax(2).masked_fill(absent.unsqueeze(2), 0)
    return torch.from_numpy(cheapest(-likelihood.cpu().numpy()))


def learn(
    observation: ImageObservation,  # observation with auxiliary images, and the lower segment or a query
    epochs: int,  # passes over the adversary's tokens
    generator: Generator,  # the only source of randomness
    session: Session,  # where the state is saved after each epoch
    *,
    name: str,  # the attack's name, for error messages
    later: int = 0,  # epochs of the training stages after this one, for the report of progress
) -> tuple[Predicted, dict[str, Any]]:
    """Read the adversary's tokens and train the predictor of places, or resume an interrupted attack.

    Also returns the state of the whole attack, which includes the predictor's state.

    Source: the predictor of DRAG's released code: one hidden layer as wide as a token, cross-entropy, AdamW.
    """
    geometry, view = checked_geometry(observation, name), observation.views[0]
    device = view.smashed.device
    seeds = torch.randint(2**48, (3,), generator=generator).tolist()
    own = own_tokens(view, observation, geometry, Generator(device).manual_seed(seeds[0]), _READ)
    state: dict[str, Any] = session.load() or {}
    decoder = PieceDecoder.fitted(own.tokens, own.patches, geometry)
    with seeded(torch.device("cpu"), seeds[1]):  # torch's initializers know only the global generator
        width = geometry.token_dim
        predictor = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, geometry.tokens)).to(device)
    learned = Predicted(own=own, decoder=decoder, predictor=predictor)
    if not own.in_order:
        draws = Generator().manual_seed(seeds[2])
        training = PieceTraining(
            predictor,
            partial(_place_losses, learned, draws),
            -(-len(own.tokens) // _IMAGES_A_STEP),
            epochs,
            draws,
            learning_rate=_LEARNING_RATE,
            weight_decay=_WEIGHT_DECAY,
        )
        stage = Stage(session, state, "predictor", 0, epochs + later)
        fit(training, epochs, stage, objective="the position predictor's training loss")
    return learned, state


def _place_losses(learned: Predicted, draws: Generator) -> Iterator[Tensor]:
    for rows in torch.randperm(len(learned.own.tokens), generator=draws).split(_IMAGES_A_STEP):
        yield place_loss(learned, learned.own.tokens[rows])


def place_loss(learned: Predicted, tokens: Tensor) -> Tensor:
    """Mean cross-entropy, in nats, of the predicted places of tokens [N, T, D] whose true order is 0..T−1."""
    logits = learned.predictor(learned.standardized(tokens))
    place = torch.arange(logits.shape[1], device=logits.device).repeat(len(tokens))
    return nn.functional.cross_entropy(logits.flatten(0, 1), place)
