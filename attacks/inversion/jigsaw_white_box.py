"""Jigsaw and white box: solve the order, put the tokens back, and invert the ordered release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NoSession, QueryResult, ReconstructingAttack, Session, given
from privkit.attacks.fit import Stage
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.known_lower import check_release, frozen, without_block
from privkit.attacks.inversion.white_box import Weight, WhiteBox
from privkit.attacks.order.jigsaw import QUICK_KICKS, Compatibility, Jigsaw
from privkit.attacks.order.own_tokens import OWN_ROUNDS
from privkit.attacks.order.piece_solver import restored
from privkit.attacks.search_space import Untuned
from privkit.constraints import Probability, Whole


@dataclass(frozen=True, kw_only=True)
class JigsawWhiteBox(ReconstructingAttack):
    """Solve the order of shuffled tokens, within images or whole messages, then invert the ordered release.

    A token is a released vector, one per patch of an image. `Jigsaw` solves the order; `WhiteBox` optimizes images
    until the known lower segment (the clients' part of the network) maps them to the ordered release.

    If the clients run a block after the defense, its effect is undone first (`known_lower.before_block`), in the
    recorded releases and in answers to queries. If the adversary can query and has at least four rounds of images, the
    weights of the image priors are chosen on the last round. The jigsaw did not learn from this round's images, and
    orders their releases with some mistakes. So the chosen weights suit an order with some misplaced tokens, which
    needs stronger priors.

    Attributes:
        pairs: how the jigsaw scores which tokens are neighbors: "learned", "joint", "auto" or "edges", as in `Jigsaw`.
        keep: share in [0, 1] of tokens that certainly stay in their image's row; None estimates it, as in `Jigsaw`.
        kicks: number ≥ 0 of rounds in which the search destroys and rebuilds a part of the arrangement.
        pieces_epochs: number ≥ 0 of epochs in which the jigsaw learns (`Jigsaw.epochs`).
        epochs: number ≥ 0 of epochs of the inversion, of a hundred steps each; 0 returns its initial images, in the
            solved order. None for the default of `WhiteBox`.
        total_variation: weight ≥ 0 of the total-variation prior of images. None takes the value that is best on some of
            the adversary's images, or 0.1 if the adversary cannot query.
        l2: weight ≥ 0 of the mean squared distance from the initial images. None takes the value that is best on some
            of the adversary's images, or 0 if the adversary cannot query.

    Source: Yao et al., patch shuffling, §V-B.2 and Table IV, "Jigsaw + WhiteBox"; neither the paper nor its code
    describes this combination.
    """

    name: ClassVar[str] = "jigsaw_white_box"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "lower"})
    uses: ClassVar[frozenset[str]] = frozenset({"query"})

    pairs: Compatibility = "learned"
    keep: Annotated[Probability, Untuned()] | None = None
    kicks: Whole = 30
    pieces_epochs: Whole = 20
    epochs: Whole | None = None
    total_variation: Weight | None = None
    l2: Weight | None = None

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            start=None if self.epochs == 0 else replace(self, pieces_epochs=0, kicks=0, epochs=0),
            control=lambda steps: replace(
                self, pieces_epochs=ceil(CONTROL_STEPS / steps), kicks=min(self.kicks, QUICK_KICKS), epochs=1
            ),
            undoes=frozenset({"maps", "permutes"}),
        )

    @property
    def jigsaw(self) -> Jigsaw:
        return Jigsaw(pairs=self.pairs, keep=self.keep, kicks=self.kicks, epochs=self.pieces_epochs)

    @property
    def white_box(self) -> WhiteBox:
        return WhiteBox(epochs=self.epochs, total_variation=self.total_variation, l2=self.l2, order="known")

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        views = observation.views
        check_inputs(self, observation)
        session, device, own = session or NoSession(), views[0].smashed.device, given(observation.auxiliary)
        observation, note = without_block(observation)
        views = observation.views
        lower = frozen(given(observation.lower), device)
        check_release(lower, views[0], observation.image_shape)
        observation = replace(observation, lower=lower)

        ask, batch = observation.query, observation.batch_size
        tries = ask is not None and len(own) >= 4 * batch  # the last round of images is for the white box's priors
        tries = tries and observation.rules.allow(OWN_ROUNDS + 1)
        learned = replace(observation, auxiliary=own[:-batch], auxiliary_labels=None) if tries else observation
        solver, saved, _ = self.jigsaw.learn(learned, generator, session)
        for number in range(len(saved["sources"]), len(views)):
            saved["sources"].append(solver.solve(views[number], 1 + number))
            session.save(saved)
        placed = [restored(view, source) for view, source in zip(views, saved["sources"], strict=True)]

        def query(images: Tensor, draws: Generator) -> QueryResult:
            answer = given(ask)(images, draws)
            return replace(answer, view=restored(answer.view, solver.solve(answer.view, 0)))

        second = replace(observation, views=placed, query=query if tries else None)
        inverted = self.white_box.run(second, generator, Stage(session, saved, "white_box"))
        order = Permutation(source=torch.cat(saved["sources"]).to(device))
        return replace(inverted, permutation=order, note=note)
