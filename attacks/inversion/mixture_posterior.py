"""Mixture posterior: the expected image given mixed releases, in a joint Gaussian model of images and smashed data.

A small network then refines this image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NotApplicable, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms, whole_rounds
from privkit.attacks.inversion.mixed_releases import LinkedRows
from privkit.attacks.inversion.mixture_model import EQUATIONS, Equations, MixedRows, Model, linked, principal_features
from privkit.attacks.inversion.refinement import Refinement
from privkit.attacks.inversion.rounds import by_round
from privkit.constraints import Count, Whole
from privkit.torch_utils.seeded import seeded

_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Variances to add to the noise variance, as multiples of a released number's mean variance; the best is chosen."""
_FOLDS = 4  # folds of the adversary's images, each left out of the maps once
_TRIED = 100  # most of the adversary's images on which penalties are tried (at least a round)
_WIDEST = 2**13  # most numbers of a release whose covariances are estimated


@dataclass(frozen=True, kw_only=True)
class MixturePosterior(ReconstructingAttack):
    """Compute the expected images given mixed releases, in one Gaussian model of all clients, and refine them.

    Client c sends z = M_c·φ(x) + e for an image x, where φ(x) holds the image's largest principal components and a 1,
    and e is the map's error. A released row is the sum of λ_k·z_k over its mixed images, with public weights λ_k, plus
    noise. Least squares over all rows of the adversary's images give all maps M_c at once, so the other images in a row
    do not act as noise. Rows of one image at one client share e, so the residuals of held-out images separate the
    covariance of e from the noise. The guess is the conditional mean of an image given all rows in which it was mixed,
    solved jointly with the other images in these rows. Weights can differ between positions, as in CutMix. Rows can
    also hold a single image.

    Attributes:
        passes: how many times ≥ 1 the same attacked images were sent, one complete sending after another.
        repeats: how many times ≥ 1 each of the adversary's images is sent.
        components: largest number ≥ 1 of principal components of images. With many clients or positions it is reduced,
            so that the equations have at most 2²⁶ coefficients.
        played: how many times ≥ 1 each of the adversary's images is attacked as a test, which gives examples to the
            network.
        epochs: number ≥ 0 of epochs in which a network learns to correct the Gaussian model's guesses; 0 leaves the
            guesses unchanged.
        width: number ≥ 1 of units in each of the network's two hidden layers.

    Raises:
        NotApplicable: by `run`, if the mixed clients or the weights are hidden, if the adversary's images fill fewer
            than three rounds, if a release has more than 8,192 numbers, or if an answer is not finite.

    Four models are fitted, each without a quarter of the adversary's images. The models' errors at left-out images
    resemble their errors at attacked images; a residual network learns to correct them. The network does not learn from
    the first quarter. The result's `curve` is the MSE on this quarter: first of the Gaussian model, then of the network
    after each epoch. The network's correction is multiplied by the factor in [0, 1] that fits this quarter best.

    Source: privkit's own; the conditional mean of normal variables, solved by conjugate gradients (Hestenes and Stiefel
    1952). That public mixing is linear: DP-CutMixSL, Eq. 6 to 8 and 15.
    """

    name: ClassVar[str] = "mixture_posterior"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    passes: Count = 1
    repeats: Count = 32
    components: Count = 150
    played: Count = 2
    epochs: Whole = 12
    width: Count = 512

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            undoes=frozenset({"maps", "scales", "masks", "mixes"}),
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_forms(self, observation)
        rounds = by_round(observation.views, self.passes, mixed=True)
        attacked = [linked(same) for same in rounds]
        query, batch, device = given(observation.query), observation.batch_size, attacked[0].smashed.device
        own = whole_rounds(self, observation, 3)
        if (numbers := attacked[0].smashed[0].numel()) > _WIDEST:
            raise NotApplicable(
                f"mixture_posterior needs the covariances of a release's numbers, at most {_WIDEST} of them, and here "
                f"are {numbers}: take ridge"
            )
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(device).manual_seed(root)
        with seeded(device, module), torch.no_grad():
            clients = max(one.clients for one in attacked)
            most = isqrt(EQUATIONS // attacked[0].weights.shape[2]) // clients - 1
            features = principal_features(own.flatten(1), max(1, min(self.components, most)))
            sending = _Sending(query=query, own=own, batch=batch, draws=draws)
            model, penalty, tried = self._fitted(sending, features, clients)
            guess = [one.seated(model.guess(one, penalty), same[0]) for one, same in zip(attacked, rounds, strict=True)]
        refined = Refinement(
            guesses=torch.cat([one for one, _, _ in tried]),
            truth=torch.cat([truth for _, truth, _ in tried]),
            held=torch.cat([torch.full((len(truth),), fold == 0, device=device) for _, truth, fold in tried]),
            width=self.width,
            epochs=self.epochs,
            module=module,
            root=root,
        ).of(torch.cat(guess), session, "mixture_posterior")
        return replace(refined, images=refined.images.view(-1, *observation.image_shape))

    def _fitted(
        self, sending: _Sending, features: Tensor, clients: int
    ) -> tuple[Model, float, list[tuple[Tensor, Tensor, int]]]:
        """Fit the model; return it, the penalty, and for each fold test guesses [M, P], true images and fold number."""
        folds = sending.folds
        equations = [Equations(features, clients) for _ in folds]
        for fold, one in zip(reversed(folds), reversed(equations), strict=True):
            rows = MixedRows.joined([sending.rows(fold) for _ in range(self.repeats)])
            one.add(rows)
        model = Equations.together(equations[1:]).model(sending.own.flatten(1), rows)
        played = sending.played(folds[0][: max(1, _TRIED // sending.batch) * sending.batch], self.passes)
        errors = [float((played.guess(model, one) - played.truth).square().mean()) for one in _PENALTIES]
        penalty, tried = _PENALTIES[errors.index(min(errors))], []
        for number, fold in enumerate(folds if self.epochs else folds[:1]):
            if number:
                others = Equations.together(equations[:number] + equations[number + 1 :])
                model = replace(model, maps=others.maps())
            for _ in range(self.played):
                played = sending.played(fold, self.passes)
                tried.append((played.guess(model, penalty), played.truth, number))
        return replace(model, maps=Equations.together(equations).maps()), penalty, tried


@dataclass(frozen=True, kw_only=True)
class _Sending:
    query: Query
    own: Tensor
    batch: int  # images of a round
    draws: Generator

    @property
    def folds(self) -> list[Tensor]:
        """Split the indices of the adversary's images into folds of whole rounds, int64 [n] each."""
        rounds = torch.arange(len(self.own), device=self.own.device).view(-1, self.batch)
        return [fold.flatten() for fold in rounds.tensor_split(min(_FOLDS, len(rounds)))]

    def rows(self, some: Tensor) -> MixedRows:
        return MixedRows.of(self.query, self.own, some, self.batch, self.draws)

    def played(self, some: Tensor, passes: int) -> _Played:
        """Send some of the adversary's images (indices int64 [n]) `passes` times, like the attacked images."""
        rounds, there, truth = [], [], []
        for part in some[torch.randperm(len(some), generator=self.draws, device=some.device)].split(self.batch):
            answers = [self.query(self.own[part], self.draws) for _ in range(passes)]
            rounds.append((linked([answer.view for answer in answers]), answers[0].view))
            members = answers[0].members.flatten()
            there.append(members >= 0)
            truth.append(self.own[part[members[members >= 0]]].flatten(1))
        return _Played(rounds=rounds, there=torch.cat(there), truth=torch.cat(truth))


@dataclass(frozen=True, kw_only=True)
class _Played:
    rounds: Sequence[tuple[LinkedRows, View]]
    there: Tensor  # bool [M'], the seats that are taken
    truth: Tensor  # [M, P], the images on these seats

    def guess(self, model: Model, penalty: float) -> Tensor:
        """Guess the M images of all rounds, [M, P] for P numbers per image, in one call, which is faster."""
        rows = LinkedRows.joined([rows for rows, _ in self.rounds])
        each = model.guess(rows, penalty).unflatten(0, (-1, rows.clients))
        guesses = [
            one.seated(guess[:, : one.clients].flatten(0, 1), view)
            for (one, view), guess in zip(self.rounds, each.split([one.places for one, _ in self.rounds]), strict=True)
        ]
        return torch.cat(guesses)[self.there]
