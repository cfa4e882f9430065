"""Jigsaw: put shuffled tokens back, first into their image, then into their place, and decode their patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, MultipleOf
from torch import Generator, Tensor

from privkit.attacks.assign import take
from privkit.attacks.base import Mounting, NoSession, ReconstructingAttack, Session, View, given
from privkit.attacks.fit import Stage, fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.known_lower import without_block
from privkit.attacks.inversion.recurrence import Intersection, gathered
from privkit.attacks.inversion.ridge import FOLDS, cross_fitted, principal
from privkit.attacks.inversion.rounds import by_round
from privkit.attacks.memory import Memory, tensor_digest
from privkit.attacks.order.own_tokens import KEEPS_ALL, OwnTokens, checked_geometry, own_tokens
from privkit.attacks.order.piece_network import (
    MessageNetwork,
    PieceNetwork,
    PieceTraining,
    Together,
    linear_start,
    message_steps,
    piece_losses,
    piece_steps,
    shuffled_losses,
)
from privkit.attacks.order.piece_solver import PieceDecoder, Solver, put, restored
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.patches import patch_tokens, unpatchify
from privkit.attacks.search_space import Untuned
from privkit.constraints import Count, Probability, Whole
from privkit.torch_utils.seeded import seeded

Compatibility = Literal["learned", "joint", "auto", "edges"]
"""How to score which tokens fit together and where they lie; see `Jigsaw.pairs`."""

_JOINT: dict[Compatibility, tuple[bool, ...]] = {
    "learned": (False,),
    "joint": (True,),
    "auto": (False, True),
    "edges": (),
}
"""The networks to train: for each, whether it reads all tokens of an image at once."""
_HELD_OUT = 0.1  # share of the adversary's images that are held out, on which "auto" chooses a network
QUICK_KICKS = 10  # kicks of the search in trials on the adversary's images and in controls
_TRIED = 0.2  # share of own released rows on which a solver is compared with leaving all tokens where they are
_HIDDEN = 0.05  # error of decoding token by token, as a share of patches' variance, above which joint decoding is tried
_STAGES = ("places", "joint", "members")  # networks in the order of their training
_READ_IN_CONTROLS = 500  # most of the adversary's images to query in controls, where tokens reveal their patches
_READ_AT_START = 100  # most of the adversary's images that the untrained attack queries


@dataclass(frozen=True, kw_only=True)
class Jigsaw(ReconstructingAttack):
    """Put shuffled tokens back like a jigsaw puzzle: the tokens of an image, or all tokens of a message.

    A token is a released vector that stands for one patch of an image; a message is a batch of images sent at once. The
    adversary gets the tokens of its own images in order: from the lower segment (the clients' part of the network), or
    read by chosen queries (messages of copies). A public block that the clients run after the shuffle is undone first
    (`known_lower.before_block`). If a block that the adversary does not know mixes the tokens of a row, no token
    recurs; then tokens are matched approximately with the sent patches. From its own tokens the adversary learns to
    infer a token's patch, neighbors, place and image. Then it searches for the best arrangement of the private tokens,
    and decodes the arranged tokens into images.

    Attributes:
        pairs: how tokens are compared. "learned": border pixels of the decoded patches, and a network on each token.
            "joint": the same, but a transformer over all tokens of an image predicts places; it needs a thousand images
            or more. "auto" trains both networks, and chooses "learned", "joint" or their mean by the error on held-out
            images; if a shuffle moves tokens between images, "auto" is "learned". "edges": border pixels alone, the
            classical solver.
        keep: share in [0, 1] of tokens that certainly stay in their image's row; 1 if images are not mixed. None
            estimates it from query answers, and takes 1 without queries.
        epochs: number ≥ 0 of epochs over the adversary's (auxiliary) images; if there are more than 1,000, each epoch
            takes a random 1,000.
        kicks: number ≥ 0 of rounds in which the search destroys and rebuilds a part of the arrangement ("ruin and
            recreate").
        width: width of the networks, a positive multiple of 4.
        read: if a shuffle mixes a message's images, largest number ≥ 1 of the adversary's images whose tokens are read,
            by messages of copies of up to five images each.
        passes: how many times ≥ 1 the same attacked images were sent; all rounds of the first sending come first. If a
            shuffle mixes the images of a message, a token that recurs in one row is assigned to the row's image
            (`gathered`), and fewer tokens are left to sort. This needs messages of the same images each time.

    The auxiliary images, with their tokens and patches, are limited to 2 GiB; the attack leaves out further images.
    (1,783 images fit if an image has 196 tokens and patches of 768 numbers each.)

    Source: the attack that Yao et al., patch shuffling, Table IV, leaves unspecified; pixel compatibility by Gallagher
    2012, search after Pomeranz et al. 2011 and Yu et al. 2016.
    """

    name: ClassVar[str] = "jigsaw"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"query"})  # also a lower segment, if a caller passes one

    pairs: Compatibility = "learned"
    keep: Annotated[Probability, Untuned()] | None = None
    epochs: Whole = 20
    kicks: Whole = 100
    width: Annotated[int, Ge(4), MultipleOf(4)] = 96
    read: Count = 1_000
    passes: Count = 1

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            start=None if self.epochs == 0 else replace(self, epochs=0, kicks=0, read=min(self.read, _READ_AT_START)),
            undoes=frozenset({"permutes"}),
            control=lambda steps: replace(
                self,
                epochs=ceil(CONTROL_STEPS / steps),
                kicks=min(self.kicks, QUICK_KICKS),
                read=min(self.read, _READ_IN_CONTROLS),
            ),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        session = session or NoSession()
        check_inputs(self, observation)
        observation, note = without_block(observation)
        observation = observation if observation.lower else observation.of_usual_size()
        solver, state, own = self.learn(observation, generator, session)
        rounds = by_round(observation.views, self.passes) if self.passes > 1 else [[one] for one in observation.views]
        together = [self._together(same, solver) for same in rounds]
        views = [view for view, _ in together]
        for number in range(len(state["sources"]), len(views)):
            state["sources"].append(solver.solve(views[number], 1 + number))
            session.save(state)
            curve = [loss for stage in _STAGES if stage in state for loss in state[stage]["curve"]]
            done, total = len(curve) + len(state["sources"]), len(curve) + len(views)
            session.report(done, total, curve[-1] if curve else 0.0)
        device = views[0].smashed.device
        placed = [restored(view, source) for view, source in zip(views, state["sources"], strict=True)]
        images = _drawn(solver, own, torch.cat([patch_tokens(view.smashed).float() for view in placed]))
        sources = [
            source if met is None else met.released(source, view.messages)
            for source, (view, met) in zip(state["sources"], together, strict=True)
        ]
        source = torch.cat(sources).to(device)
        return Reconstruction(images=images, permutation=Permutation(source=source), note=note)

    def _together(self, same: Sequence[View], solver: Solver) -> tuple[View, Intersection | None]:
        """Combine one round's passes into one view; also return the assignment of its tokens to images. If there is
        only one pass, or images are not mixed, the view is the first pass, and the assignment is None."""
        if len(same) == 1 or solver.members is None:
            return same[0], None
        met = gathered([patch_tokens(view.smashed).float() for view in same], rows_a_message(same[0]))
        return View(round=same[0].round, smashed=met.tokens, messages=same[0].messages), met

    def learn(
        self, observation: ImageObservation, generator: Generator, session: Session
    ) -> tuple[Solver, dict[str, Any], OwnTokens]:
        """Run the first part of `run`: learn from auxiliary images, or load what a killed attack had learned.

        Returns the solver, which orders the tokens of a view; the state of the whole attack, which `session` saves
        after each epoch; and the adversary's tokens. A resumed attack repeats its queries before it loads the state.
        """
        views, memory = observation.views, observation.memory or Memory()
        geometry = checked_geometry(observation)
        device, size = views[0].smashed.device, rows_a_message(views[0])
        seeds = torch.randint(2**48, (3,), generator=generator).tolist()
        draws = Generator(device).manual_seed(seeds[1])
        own = own_tokens(views[0], observation, geometry, draws, self.read, self.passes, approximate=True)
        state: dict[str, Any] = session.load() or {"sources": []}
        keep, in_order = own.keep if self.keep is None else self.keep, own.in_order
        mixes = keep <= KEEPS_ALL and size > 1 and not in_order
        kinds = _JOINT["learned" if mixes and self.pairs == "auto" else self.pairs]  # no held-out row is mixed
        decoder = PieceDecoder.fitted(own.tokens, own.patches, geometry, masked=views[0].weights is not None)
        features = geometry.token_dim + geometry.patch_dim
        with seeded(torch.device("cpu"), seeds[2]):  # torch's initializers know only the global generator
            each = (PieceNetwork(features, geometry.tokens, self.width, joint) for joint in kinds or (False,))
            networks = [network.to(device) for network in each]
            members = MessageNetwork(features, self.width).to(device)

        pieces, edges = decoder.looked_up(own.tokens)
        draws, count = Generator().manual_seed(seeds[0]), len(own.tokens)
        held_out = max(1, int(_HELD_OUT * count)) if len(kinds) > 1 else 0
        trainings: dict[str, PieceTraining] = {}
        for slot, joint, network in zip(_STAGES, () if in_order else kinds, networks, strict=False):
            some, twins = count - held_out, decoder.twins if joint else None
            losses = partial(piece_losses, network, pieces, edges, some, draws, twins)
            trainings[slot] = PieceTraining(network, losses, piece_steps(some, joint), self.epochs, draws)
        if mixes:
            shuffled = pieces, count, (size, geometry.tokens), keep
            linear_start(members, *shuffled, Generator().manual_seed(seeds[2]))  # leaves `draws` as they are
            losses, steps = partial(shuffled_losses, members, *shuffled, draws), message_steps(count, size)
            trainings["members"] = PieceTraining(members, losses, steps, self.epochs, draws)
        total = len(trainings) * self.epochs + len(views)
        for number, (slot, training) in enumerate(trainings.items()):
            stage, known, start = Stage(session, state, slot, number * self.epochs, total), None, memory.now()
            anew = slot != "members" and slot not in state and self.epochs > 0  # the members' training uses `keep`
            if anew:
                of = slot, kinds, self.width, self.epochs, seeds, own.tokens, own.patches, draws
                known = memory.recall(key := tensor_digest(*of))
            if known is not None:
                state[slot] = known
            fit(training, self.epochs, stage, objective="jigsaw: the training loss")
            if anew and known is None and len(state[slot]["curve"]) == self.epochs:
                memory.keep(key, state[slot], memory.now() - start)
        learned = [len(state[slot]["curve"]) for slot in trainings if slot in state]
        if state.setdefault("learned", learned) != learned:  # training went on: all views are solved again
            state |= {"sources": [], "learned": learned}
        solvers = [
            Solver(
                decoder=decoder,
                network=network if self.pairs != "edges" else None,
                members=members if mixes else None,
                keep=keep,
                kicks=self.kicks,
                seed=seeds[0],
                in_order=in_order,
            )
            for network in networks
        ]
        best = solvers[0]
        if len(solvers) > 1 and not in_order:
            solvers.append(replace(solvers[0], network=Together(networks)))
            best = min(solvers, key=partial(_solver_error, own.tokens[-held_out:], own.patches[-held_out:]))
        return best if own.released is None else _tried(best, own, size), state, own


def _drawn(solver: Solver, own: OwnTokens, placed: Tensor) -> Tensor:
    """Draw images [N, C, H, W] from tokens [N, T, D]: patch by patch, or by a ridge regression on all tokens of an
    image, if this draws the adversary's images with a smaller error."""
    decoder, geometry = solver.decoder, solver.decoder.geometry
    patches = decoder.drawn(placed)
    folds = torch.arange(len(own.tokens), device=placed.device) % FOLDS
    unseen = float((decoder.drawn(own.tokens) - own.patches).square().mean()) if own.released is None else 0.0
    if unseen > _HIDDEN * float(own.patches.var(0).mean()) and not decoder.masked and len(own.tokens) >= 2 * FOLDS:
        with seeded(placed.device, solver.seed):
            known, wanted = principal(own.tokens.flatten(1), placed.flatten(1), None)
        jointly = cross_fitted(known, own.patches.flatten(1), folds, wanted)
        if jointly.error < unseen:
            patches = jointly.other.float().view_as(patches).clamp(0, 1)
    return unpatchify(patches, geometry.patch, geometry.image_shape)


def _tried(solver: Solver, own: OwnTokens, size: int) -> Solver:
    """Adjust a solver by a trial on some released rows of the adversary's images, in messages of `size` rows.

    The result leaves tokens in their places if this draws these rows better. Otherwise the deviation of its pictures
    from the mean image is multiplied by the factor in [0, 1] with the smallest error on these rows.
    """
    released, patches, decoder = given(own.released), own.patches, solver.decoder
    tried = max(1, int(_TRIED * len(released)) // size) * size
    rows, wanted = released[:tried], patches[:tried]
    quick = replace(solver, kicks=min(solver.kicks, QUICK_KICKS))
    placed = put(rows, quick.solve(View(round=0, smashed=rows, messages=len(rows) // size), 0), size)
    away, missing = decoder.drawn(placed) - decoder.usual, wanted - decoder.usual
    share = float(((away * missing).sum() / away.square().sum().clamp_min(1e-12)).clamp(0, 1))
    if len(released) >= 2 * tried:
        stay = PieceDecoder.fitted(released[tried:], patches[tried:], decoder.geometry, decoder.masked)
        if (stay.drawn(rows) - wanted).square().sum() < (share * away - missing).square().sum():
            stay = PieceDecoder.fitted(released, patches, decoder.geometry, decoder.masked)
            return replace(solver, decoder=stay, members=None, keep=1.0, in_order=True)
    return replace(solver, decoder=replace(decoder, trust=share * decoder.trust))


def _solver_error(tokens: Tensor, patches: Tensor, solver: Solver) -> float:
    """Mean squared error of a solver's images from shuffled tokens; tokens and patches are [N, T, ·]."""
    order = torch.rand(tokens.shape[:2], generator=Generator().manual_seed(solver.seed)).argsort(1).to(tokens.device)
    view = View(round=0, smashed=take(tokens, order))
    quick, geometry = replace(solver, kicks=min(solver.kicks, QUICK_KICKS)), solver.decoder.geometry
    drawn = quick.picture(view, quick.solve(view, 0))
    return float((drawn - unpatchify(patches, geometry.patch, geometry.image_shape)).square().mean())
