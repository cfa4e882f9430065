"""Unmixing: several passes of mixed releases are solved for each client's smashed data before they are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, Session, View
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.decoders import DecoderName
from privkit.attacks.inversion.linear_mixtures import Mixtures, fitting_noise
from privkit.attacks.inversion.linked_rows import records_of_rows
from privkit.attacks.inversion.rounds import by_round
from privkit.attacks.inversion.secret_ratios import with_ratios
from privkit.constraints import Checked, Count, Whole
from privkit.torch_utils.seeded import seeded

_UNEXPLAINED = 0.5
"""Share of another pass's variance, left by secret ratios, from which they are taken to be wrong."""


@dataclass(frozen=True, kw_only=True)
class Unmix(Checked):
    """Solves the linear equations that public coins make of several passes, then decodes each image by itself.

    A mixed release is a weighted sum of its members' smashed data. A server that forms the groups knows the members
    and, where coins are public, the weights. Each pass draws new ones, so that a few passes determine all smashed data.
    Noise is averaged. Cells that never crossed are filled with the mean; the decoder is told how much is known of each.

    Secret ratios, one for a whole record, are found from the passes themselves (`with_ratios`); guesses then stand in
    no order within a round. Secret masks are refused.

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
    doublings: Whole | None = 0

    @property
    def mounting(self) -> ImageMounting:
        """The passes that it puts together, and otherwise as `BlackBox`."""
        undoes = frozenset({"maps", "masks", "mixes"})
        return replace(mounted(self, doublings=None), passes=self.passes, undoes=undoes)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Unmix the passes, train a decoder on own images that were mixed and unmixed likewise, and decode.

        Raises:
            NotApplicable: if coins are hidden and cannot be found, or the mixed positions are none of the release's.
        """
        check(self, observation)
        unmixed, seated = alone(observation, self.passes, generator)
        attack = BlackBox(decoder=self.decoder, epochs=self.epochs, doublings=self.doublings)
        guess = attack.run(unmixed, generator, session)
        return replace(guess, images=seated(guess.images))


def alone(
    observation: ImageObservation, passes: int, generator: Generator
) -> tuple[ImageObservation, Callable[[Tensor], Tensor]]:
    """The same observation as if each record had crossed by itself, and how guesses return to the seats of its rows.

    Views and answers of the new observation have one record a row, client after client; its cells' weights are the
    shares that are explained.

    Args:
        observation: with auxiliary images and a query.
        passes: R ≥ 1; see `Unmix`.
        generator: of the query that finds the noise; two numbers are drawn.

    Raises:
        NotApplicable: as `Unmix.run`.
    """
    assert observation.query is not None
    assert observation.auxiliary is not None
    rounds = by_round(observation.views, passes, mixed=True)
    first, query = observation.views[0], observation.query
    batch, device = len(first.smashed) // first.messages, first.smashed.device
    secret = first.mixed > 1 and first.weights is None

    def told(same: Sequence[View]) -> Sequence[View]:
        return with_ratios(same, observation.batch_size // batch) if secret else same

    rounds = [list(told(same)) for same in rounds]
    Mixtures.of(rounds[0])  # refuses what cannot be solved before anything is queried
    root, module = torch.randint(2**48, (2,), generator=generator).tolist()
    own = observation.auxiliary[: observation.batch_size].to(device)
    if len(own) < observation.batch_size:
        raise NotApplicable(
            f"unmix queries rounds as large as the victim's ({observation.batch_size} images), but has {len(own)}"
        )
    draws = Generator(device).manual_seed(root)
    with seeded(device, module), torch.no_grad():
        tried = told([query(own, draws).view for _ in range(passes + 1)])
        typical, noise, left = fitting_noise(tried[:-1], tried[-1])
    if secret and left > _UNEXPLAINED:
        raise NotApplicable(
            f"secret ratios that fit some passes leave {100 * left:.0f} % of another one's variance: a row is no "
            "sum with one ratio for each record, or noise covers it"
        )

    def unmixed(same: Sequence[View]) -> View:
        smashed, explained = Mixtures.of(same).solved(typical, noise)
        weights = None if smashed.ndim == 2 else explained.float().unsqueeze(1)
        clients = torch.arange(len(smashed), device=device).unsqueeze(1) // batch
        return View(
            round=same[0].round, smashed=smashed, weights=weights, clients=clients, messages=len(smashed) // batch
        )

    def asked(images: Tensor, draws: Generator) -> QueryResult:
        answers = [query(images, draws) for _ in range(passes)]
        same = told([answer.view for answer in answers])
        return QueryResult(view=unmixed(same), members=image_of_each(same, answers).unsqueeze(1))

    def seated(images: Tensor) -> Tensor:
        parts = images.split([len(view.smashed) for view in views])
        found = [
            part[records_of_rows(same[0]).flatten().clamp_min(0)] for part, same in zip(parts, rounds, strict=True)
        ]
        return torch.cat(found)

    with torch.no_grad():
        views = [unmixed(same) for same in rounds]
    return replace(observation, views=views, query=asked), seated


def image_of_each(same: Sequence[View], answers: Sequence[QueryResult]) -> Tensor:
    """The own image that each record is, in the order of `records`.

    Clients whose ratios were secret are numbered in any order. An image is the record that shares most rows with it.
    """
    seated = torch.stack([records_of_rows(view).flatten() for view in same])
    members = torch.stack([answer.members for answer in answers])
    count = int(members.max()) + 1
    alone = torch.arange(count, device=members.device)
    if torch.equal(seated, members.flatten(1)):
        return alone
    seats = seated.unflatten(1, members.shape[1:])
    pairs = seats.unsqueeze(3) * count + members.unsqueeze(2)
    pairs = pairs[(seats.unsqueeze(3) >= 0) & (members.unsqueeze(2) >= 0)]
    together = torch.bincount(pairs.flatten(), minlength=count * count).view(count, count)
    image: Tensor = together.argmax(1)
    if not torch.equal(image.sort().values, alone):
        raise NotApplicable("the solved records are not the own images, one for one: record more passes")
    return image
