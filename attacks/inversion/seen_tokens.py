"""Seen tokens: guesses an image linearly from the tokens that a mask left visible, and refines the guess.

Attention before the cut spreads every patch over all tokens. So visible tokens also reveal the hidden patches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NotApplicable, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms, whole_rounds
from privkit.attacks.inversion.augment import deformed
from privkit.attacks.inversion.mixed_releases import by_cell
from privkit.attacks.inversion.refinement import Refinement
from privkit.attacks.order.dropped_places import dropped_places
from privkit.attacks.patches import as_tokens
from privkit.constraints import Count, NonNegative, Whole
from privkit.torch_utils.seeded import seeded

_COLLECTED = 0.99  # share of the tokens of the adversary's images at which collecting stops
_FOLDS = 4  # folds of the adversary's images; each fold is guessed by a regression on the other folds
_HELD = 10  # every tenth image of the adversary is held out to test the network
_ROUNDS = 4  # how often each image is guessed for the network's training, each time from other visible places
_SETS = 64  # different sets of places in each round, so that few matrices are factored
_TRIED = 100  # most of the adversary's images on which penalties are tried
TOKEN_PENALTIES = tuple(10.0**power for power in range(-8, 0))
"""Penalties on a squared coefficient, in units of the variance of all tokens together."""
_NUMBERS_AT_ONCE = 2**24

Placed = Callable[[View], tuple[Tensor, Tensor]]
"""Maps a view to tokens [N·k, T, D], one row for each image, and to bool [N·k, T]: which tokens the view contains."""


@dataclass(frozen=True, kw_only=True)
class SeenTokens(ReconstructingAttack):
    """Guess each image by linear regression from the tokens that a mask left visible; a network refines the guesses.

    A token is a released vector that stands for one patch of an image, i.e. one place. The adversary sends its own
    images until it has nearly all of their tokens. The covariances of these tokens and of the images give the best
    linear guess from the tokens at any set of places. If a released row mixes images, public mixing weights show which
    tokens belong to which image; without mixing, a token of zeros was masked. If tokens were dropped from a row, the
    places of the remaining tokens are recognized (`dropped_places`). The network is trained on linear guesses at the
    adversary's own images. Each of these images is guessed by a regression fitted to the other folds (cross-fitting),
    from the token places that are visible in a randomly drawn released row.

    Attributes:
        repeats: largest number of times ≥ 1 that each of the adversary's images is sent.
        components: largest number ≥ 1 of inputs of a regression, divided equally among the tokens; the inputs are each
            token's largest principal components.
        epochs: number ≥ 0 of epochs in which a residual network learns to correct the linear guesses; 0 leaves them
            unchanged.
        width: number ≥ 1 of units in each of the network's two hidden layers.
        contrast: weight ≥ 0, in the network's loss, of identifying each image among others, relative to the squared
            error. A larger weight identifies more images, but reconstructs them less exactly.
        copies: number ≥ 0 of copies of each of the adversary's images, each rotated, scaled, sheared and shifted a
            little at random, that are also sent and learned from.

    Raises:
        NotApplicable: by `run`, in any of these cases: releases are vectors; the mixing is secret; the mixing adds
            tokens; the adversary's images fill fewer than two rounds; an answer to a query is not finite. If tokens
            were dropped, also in the cases of `dropped_places`.

    The result's `curve` is the error on a held-out tenth of the adversary's images: first of the linear guesses, then
    of the network after each epoch. The network's correction is multiplied by the factor in [0, 1] that fits these
    images best.

    Source: privkit's own; the conditional mean of normal variables, in the form of ridge regression (Hoerl and Kennard
    1970), with cross-fitting. The contrastive error is `GuessError`.
    """

    name: ClassVar[str] = "seen_tokens"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    repeats: Count = 32
    components: Count = 768
    epochs: Whole = 20
    width: Count = 512
    contrast: NonNegative = 0.3
    copies: Whole = 0

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            undoes=frozenset({"maps", "masks", "mixes"}),
            any_tokens=True,
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_forms(self, observation)
        views, query, batch = observation.views, given(observation.query), observation.batch_size
        if views[0].smashed.ndim == 2:
            raise NotApplicable("seen_tokens needs tokens or feature maps, but releases are vectors: take ridge")
        own, device = whole_rounds(self, observation, 2), views[0].smashed.device
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(device).manual_seed(root)
        count, own = len(own), torch.cat([own, *(deformed(own, draws) for _ in range(self.copies))])
        with seeded(device, module), torch.no_grad():
            placed = _in_place if views[0].whole else dropped_places(query, own, batch, draws)
            attacked = [placed(view) for view in views]
            rows, seen = torch.cat([tokens for tokens, _ in attacked]), torch.cat([there for _, there in attacked])
            learned = _Collected.of(query, own, batch, self.repeats, draws, placed)
            most = max(1, self.components // max(1, int(seen.sum(1).max())))
            images, rounds = own.flatten(1), _ROUNDS if self.epochs else 1
            number = torch.arange(len(images), device=device) % count  # an image and its copies have the same number
            penalty, own_guess = _cross_fitted(learned, images, number % _FOLDS, most, rounds, draws)
            guess = Covariances.of(learned.tokens, images, most).guess(rows, seen, penalty)
        refined = Refinement(
            guesses=own_guess,
            truth=images.repeat(rounds, 1),
            held=(number % _HELD == 0).repeat(rounds),
            width=self.width,
            epochs=self.epochs,
            module=module,
            root=root,
            contrast=self.contrast,
        ).of(guess, session, self.name)
        return replace(refined, images=refined.images.view(-1, *observation.image_shape))


def _in_place(view: View) -> tuple[Tensor, Tensor]:
    """Assign the tokens of a release to its images, if the tokens are in their places.

    A released row can mix k images, with public weights. Returns its tokens, repeated for each image and divided by
    their weight, [N·k, T, D]; and bool [N·k, T], True for a token that comes from this image alone. Raises
    `NotApplicable` if weights are hidden, or every position sums several images.

    >>> view = View(round=0, smashed=torch.tensor([[[1.0], [0.0]]]))
    >>> _in_place(view)[1].tolist()
    [[True, False]]
    """
    tokens = as_tokens(view.smashed).float()
    if view.weights is None:
        if view.mixed > 1:
            raise NotApplicable(f"each row holds {view.mixed} images, and it is hidden which token belongs to which")
        return tokens, tokens.ne(0).any(2)
    weights = by_cell(view.weights, view.smashed).float()
    seen = (weights > 0) & (weights >= 0.999 * weights.sum(1, keepdim=True))
    if view.mixed > 1 and not seen.any():
        raise NotApplicable("every position of a row is a sum of several images: take unmix or ridge")
    weights, seen = (one.expand(-1, -1, tokens.shape[1]).flatten(0, 1) for one in (weights, seen))
    rows = tokens.repeat_interleave(view.mixed, 0)
    return rows / torch.where(seen, weights, 1).unsqueeze(2), seen


@dataclass(frozen=True)
class _Collected:
    """The tokens of the adversary's images, each the mean of all its releases, and one released row of each image."""

    tokens: Tensor  # [n, T, D]; 0 for tokens that were never released
    rows: Tensor  # [n, T, D], one release of each image
    seen: Tensor  # bool [n, T], which tokens this release holds

    @classmethod
    def of(cls, query: Query, own: Tensor, batch: int, repeats: int, draws: Generator, placed: Placed) -> _Collected:
        first: tuple[Tensor, Tensor] | None = None
        total, count = own.new_zeros(0), own.new_zeros(0)
        for _ in range(repeats):
            order = torch.randperm(len(own), generator=draws, device=own.device)
            for part in order.split(batch):
                answer = query(own[part], draws)
                (rows, seen), members = placed(answer.view), answer.members.flatten()
                rows, seen, image = rows[members >= 0], seen[members >= 0], part[members[members >= 0]]
                if first is None:
                    total, count = rows.new_zeros(len(own), *rows.shape[1:]), rows.new_zeros(len(own), rows.shape[1])
                    first = torch.zeros_like(total), torch.zeros_like(count).bool()
                new = ~first[1][image].any(1)
                first[0][image[new]], first[1][image[new]] = rows[new], seen[new]
                total.index_add_(0, image, rows * seen.unsqueeze(2))
                count.index_add_(0, image, seen.float())
            if (count > 0).float().mean() >= _COLLECTED:
                break
        assert first is not None
        if not bool(total.isfinite().all()):
            raise NotApplicable("the releases of own images hold NaN or infinity, so nothing can be learned from them")
        return cls(total / count.clamp_min(1).unsqueeze(2), *first)


def _cross_fitted(
    learned: _Collected, images: Tensor, folds: Tensor, most: int, rounds: int, draws: Generator
) -> tuple[float, Tensor]:
    """Choose the ridge penalty, and guess n images of P pixels in each of several rounds, [rounds·n, P].

    Each guess is made by the fit without the image's fold (`folds`, int64 [n]). In each round, an image is guessed from
    the places that are visible in one of 64 randomly drawn rows. There are only 64 rows, since guesses from the same
    places share one matrix.
    """
    fits = [Covariances.of(learned.tokens[folds != one], images[folds != one], most) for one in range(_FOLDS)]
    tried = (folds == 0).nonzero().squeeze(1)[:_TRIED]
    ahead = [fits[0].guess(learned.rows[tried], learned.seen[tried], penalty) for penalty in TOKEN_PENALTIES]
    errors = [float((one - images[tried]).square().mean()) for one in ahead]
    penalty, there = TOKEN_PENALTIES[errors.index(min(errors))], learned.tokens.ne(0).any(2)
    guesses = images.new_zeros(rounds, *images.shape)
    for guess in guesses:
        shown = learned.seen[torch.randint(len(images), (_SETS,), generator=draws, device=images.device)]
        seen = shown[torch.randint(_SETS, (len(images),), generator=draws, device=images.device)] & there
        for one, fit in enumerate(fits):
            mine = folds == one
            guess[mine] = fit.guess(learned.tokens[mine], seen[mine], penalty)
    return penalty, guesses.flatten(0, 1)


@dataclass(frozen=True)
class Covariances:
    """Covariances of the adversary's tokens (principal components at each place) with each other and with images."""

    middle: Tensor  # [T, D], mean token at each place
    basis: Tensor  # [T, D, q], q principal components of each place
    mean: Tensor  # [P], mean image
    within: Tensor  # float64 [T·q + 1, T·q + 1], tokens with tokens; the last row and column are 0
    across: Tensor  # float64 [T·q + 1, P], tokens with images

    @classmethod
    def of(cls, tokens: Tensor, images: Tensor, most: int) -> Covariances:
        there = tokens.ne(0).any(2, keepdim=True)
        middle = tokens.sum(0) / there.sum(0).clamp_min(1)
        away = torch.where(there, tokens - middle, 0)
        along = away.transpose(0, 1)
        _, vectors = torch.linalg.eigh((along.transpose(1, 2) @ along).double())
        basis = vectors[:, :, -most:].float()
        flat = torch.einsum("ntd,tdq->ntq", away, basis).flatten(1).double()
        flat = torch.cat([flat, flat.new_zeros(len(flat), 1)], 1)
        return cls(middle, basis, images.mean(0), flat.T @ flat, flat.T @ (images - images.mean(0)).double())

    def guess(self, rows: Tensor, seen: Tensor, penalty: float) -> Tensor:
        """Guess the P pixels of each row [N, T, D] from its visible tokens (`seen`, bool [N, T]): [N, P] in [0, 1].

        Rows with the same visible places share the factors of one matrix. `penalty` is a share of all tokens' variance.
        """
        width, last = self.basis.shape[2], len(self.within) - 1
        along = torch.einsum("ntd,tdq->ntq", rows - self.middle, self.basis).flatten(1).double()
        along = torch.cat([along, along.new_zeros(len(along), 1)], 1)
        shrink = penalty * self.within.trace().clamp_min(1e-300)
        solved = torch.zeros_like(along)  # coefficients of all numbers; 0 for numbers that a row does not show
        numbers = torch.arange(width, device=rows.device)
        sets, which, count = seen.unique(dim=0, return_inverse=True, return_counts=True)
        ordered = which.argsort(stable=True)
        seat = torch.empty_like(which)  # a row's index among the rows with the same visible places
        seat[ordered] = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[which[ordered]]
        longest = max(1, int(sets.sum(1).max())) * width
        at_once = max(1, _NUMBERS_AT_ONCE // (longest * max(longest, int(count.max()))))
        for some in sets.sum(1).argsort().split(at_once):
            length = int(sets[some].sum(1).max())
            places = sets[some].int().argsort(dim=1, descending=True, stable=True)[:, :length]
            used = (places.unsqueeze(2) * width + numbers).flatten(1)
            used = torch.where(sets[some].gather(1, places).repeat_interleave(width, 1), used, last)
            within = self.within[used.unsqueeze(2), used.unsqueeze(1)]
            within.diagonal(dim1=1, dim2=2).add_(shrink)
            number = torch.full((len(sets),), -1, device=rows.device)
            number[some] = torch.arange(len(some), device=rows.device)
            mine = (number[which] >= 0).nonzero().squeeze(1)
            at = number[which[mine]], seat[mine]
            shown = along.new_zeros(len(some), int(count[some].max()), used.shape[1])
            shown[at] = along[mine].gather(1, used[at[0]])
            found = torch.cholesky_solve(shown.transpose(1, 2), torch.linalg.cholesky(within))
            solved[mine] = solved[mine].scatter(1, used[at[0]], found.transpose(1, 2)[at])
        return (self.mean + (solved @ self.across).float()).clamp(0, 1)
