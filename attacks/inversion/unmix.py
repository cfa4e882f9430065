"""Unmixing: several passes of mixed releases are solved for each client's smashed data before they are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NotApplicable, QueryResult, Session, View
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.decoders import DecoderName
from privkit.attacks.inversion.linear_mixtures import Mixtures, fitting_noise
from privkit.attacks.inversion.rounds import by_round
from privkit.constraints import Checked, Count, Whole
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class Unmix(Checked):
    """Solves the linear equations that public coins make of several passes, then decodes each image by itself.

    A mixed release is a weighted sum of its members' smashed data. A server that forms the groups knows the members
    and, where coins are public, the weights. Each pass draws new ones, so that a few passes determine all smashed data.
    Noise is averaged. Cells that never crossed are filled with the mean; the decoder is told how much is known of each.

    It assumes that a client sends the same batch, in the same order, in all passes (as with a fixed order of its data),
    and that the lower segment stays as it is. Without mixing it averages, and puts masked passes together.

    Attributes:
        passes: R ≥ 1, how often the same victims crossed; views come pass after pass.
        decoder: of `BlackBox`.
        epochs: passes over the auxiliary images, ≥ 0; None takes the budget's.
        doublings: as in `BlackBox`.

    Source: privkit's own; ridge regression per cell. That public mixing is linear: DP-CutMixSL, Eq. 6 to 8 and 15.
    """

    name: ClassVar[str] = "unmix"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    passes: Count = 8
    decoder: DecoderName = "mae"
    epochs: Whole | None = None
    doublings: Whole = 0

    @property
    def mounting(self) -> ImageMounting:
        """The passes that it puts together, and otherwise as `BlackBox`."""
        return Mounting(
            passes=self.passes,
            budget_share=1.0 if self.epochs is None else 0.0,
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda steps: replace(self, epochs=ceil(CONTROL_STEPS / steps)),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Unmix the passes, train a decoder on own images that were mixed and unmixed likewise, and decode.

        Raises:
            NotApplicable: if coins are hidden, or the mixed positions are none of the release's.
        """
        check(self, observation)
        assert observation.query is not None
        assert observation.auxiliary is not None
        rounds = by_round(observation.views, self.passes, mixed=True)
        Mixtures.of(rounds[0])  # refuses hidden coins before anything is queried
        query, device = observation.query, observation.views[0].smashed.device
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        own = observation.auxiliary[: observation.batch_size].to(device)
        if len(own) < observation.batch_size:
            raise NotApplicable(
                f"unmix queries rounds as large as the victim's ({observation.batch_size} images), but has {len(own)}"
            )
        draws = Generator(device).manual_seed(root)
        with seeded(device, module), torch.no_grad():
            tried = [_asked(query(own, draws)) for _ in range(self.passes + 1)]
            typical, noise = fitting_noise(tried[:-1], tried[-1])

        def unmixed(same: Sequence[View]) -> View:
            smashed, explained = Mixtures.of(same).solved(typical, noise)
            weights = None if smashed.ndim == 2 else explained.float().unsqueeze(1)
            return View(round=same[0].round, smashed=smashed, weights=weights)

        def asked(images: Tensor, draws: Generator) -> QueryResult:
            view = unmixed([_asked(query(images, draws)) for _ in range(self.passes)])
            return QueryResult(view=view, members=torch.arange(len(images), device=device).unsqueeze(1))

        with torch.no_grad():
            views = [unmixed(same) for same in rounds]
        attack = BlackBox(decoder=self.decoder, epochs=self.epochs, doublings=self.doublings)
        guess = attack.run(replace(observation, views=views, query=asked), generator, session)
        decoded = guess.images.split([len(view.smashed) for view in views])
        images = [part[_records(same[0]).clamp_min(0)] for part, same in zip(decoded, rounds, strict=True)]
        return replace(guess, images=torch.cat(images))


def _records(view: View) -> Tensor:
    """The record on each seat of each row, [N·k], as client · B + place in the batch; negative on an empty seat."""
    batch = len(view.smashed) // view.messages
    if view.clients is None:
        return torch.arange(len(view.smashed), device=view.smashed.device)
    place = torch.arange(len(view.smashed), device=view.clients.device).unsqueeze(1) % batch
    return torch.where(view.clients >= 0, view.clients * batch + place, -1).flatten()


def _asked(answer: QueryResult) -> View:
    """The answer's view, if the order of its rows is the one in which a round is solved."""
    if not torch.equal(_records(answer.view), answer.members.flatten()):
        raise NotApplicable("unmix needs a query that answers with the b-th records of each group in the b-th row")
    return answer.view
