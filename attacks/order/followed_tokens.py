"""Places of shuffled tokens, recognized by the distribution of tokens at each place.

A shuffle hides the place of a token only if tokens of all places have similar distributions. Tokens of frequency
coefficients have different distributions at different places. The adversary estimates the distribution at each place
from its own images, without knowing any order. It sends images that change in small steps from its mean image to each
of its images. Each token changes little from step to step, so it can be followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import hungarian, take
from privkit.attacks.base import NotApplicable, View, given
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.token_reading import Asker
from privkit.attacks.patches import Geometry, patch_tokens

STEPS = 8
_FOLLOWED = 1_000  # largest number of the adversary's images
_COMPONENTS = 128  # largest number of principal components of tokens
_SHRUNK = 1e-2  # share of the mean variance that is added to each variance
_PENALTIES = (1e-3, 1e-1, 10.0)  # penalties on squared coefficients, in units of the mean variance
_COARSE = 8  # pixels per side of the images that explain tokens
# least share of tokens' variance that images must explain: .41 to .82 for 100 to 1,000 own digits, at most .12 if
# shuffled
_SHOWN = 0.25
_TINY = 1e-12
_NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True, kw_only=True)
class PlaceLaws:
    """A normal distribution of the token at each of T places, in principal components of tokens."""

    middle: Tensor  # [D]
    basis: Tensor  # [D, q]
    means: Tensor  # [T, q]
    whitening: Tensor  # [T, q, q], maps deviations from the mean to independent numbers of variance 1
    spread: Tensor  # [T], ln of the determinant of each place's covariance

    @classmethod
    def fit(cls, tokens: Tensor, components: int = _COMPONENTS, shrunk: float = _SHRUNK) -> PlaceLaws:
        """Fit a normal distribution to the tokens [N, T, D] at each place, in principal components of tokens.

        The variance of each component grows by `shrunk` times the mean variance.
        """
        flat = tokens.flatten(0, 1)
        middle = flat.mean(0)
        _, vectors = torch.linalg.eigh((flat - middle).double().T @ (flat - middle).double())
        basis = vectors[:, -components:]
        along = ((tokens - middle).double() @ basis).transpose(0, 1)
        means = along.mean(1)
        away = along - means.unsqueeze(1)
        spreads = away.transpose(1, 2) @ away / away.shape[1]
        least = (shrunk * spreads.diagonal(dim1=1, dim2=2).mean(1)).clamp_min(_TINY)
        spreads += least[:, None, None] * torch.eye(basis.shape[1]).to(spreads)
        lower = torch.linalg.cholesky(spreads)
        unit = torch.eye(basis.shape[1]).to(lower).expand_as(lower)
        return cls(
            middle=middle,
            basis=basis.float(),
            means=means.float(),
            whitening=torch.linalg.solve_triangular(lower, unit, upper=False).float(),
            spread=2 * lower.diagonal(dim1=1, dim2=2).log().sum(1).float(),
        )

    def order(self, rows: Tensor) -> Tensor:
        """The index of the likeliest token for each place, int64 [N, T]; each token of [N, T, D] gets one place."""
        return hungarian(self.costs(rows))

    def costs(self, rows: Tensor) -> Tensor:
        """−2·ln of the density of each of L tokens, [N, L, D], at each of T places: [N, L, T], up to a constant."""
        along = (rows - self.middle) @ self.basis
        places, width = self.means.shape
        some = max(1, _NUMBERS_AT_ONCE // (places * along.shape[1] * width))
        costs = []
        for part in along.split(some):
            away = part.unsqueeze(1) - self.means[:, None]  # [N, place, token, q]
            whitened = torch.einsum("apq,naiq->naip", self.whitening, away)
            costs.append(whitened.square().sum(3).transpose(1, 2) + self.spread)
        return torch.cat(costs)


@torch.no_grad()
def followed(asker: Asker, images: Tensor, later: int) -> Tensor:
    """Find tokens of the adversary's images in one common but unknown order, [N' ≤ N, T, D], by following each token.

    `later` rounds are left for later queries. The images of a round always differ, in the first steps only a little.
    Raises `NotApplicable` if too few rounds are allowed, if an answer is not finite, or if the images do not explain
    the tokens.
    """
    asker.must_have(2 * STEPS + later, "where tokens are followed from image to image")
    images = images[: min(_FOLLOWED, (asker.left - later) // STEPS * asker.whole)]
    middle = images.mean(0, keepdim=True)
    images = torch.cat([middle, images])[: len(images)]  # the first stays the mean image
    last: Tensor | None = None
    for step in range(1, STEPS + 1):
        seen = asker.images(middle + step / STEPS * (images - middle))
        if not bool(seen.isfinite().all()):
            raise NotApplicable("the releases of own images hold NaN or infinity, so their tokens cannot be followed")
        last = seen[:1].expand_as(seen) if last is None else last
        last = take(seen, hungarian(torch.cdist(seen, last).square()))
    assert last is not None
    coarse = nn.functional.adaptive_avg_pool2d(images[1:], _COARSE).flatten(1)
    if (shown := _explained(coarse, last[1:].flatten(1))) < _SHOWN:
        raise NotApplicable(
            f"own images explain {100 * max(0.0, shown):.0f} % of the variance of tokens that were followed from image "
            f"to image: tokens leave their image's row, something other than the order is random, or {len(images)} own "
            "images are too few"
        )
    return last[1:]


def _explained(images: Tensor, tokens: Tensor) -> float:
    """The share of the tokens' variance that a ridge regression from images explains, at most 1.

    The regression is fitted on one half of the images and tested on the other half, with the best of three penalties.
    """
    half = len(images) // 2
    x, y = images - images[:half].mean(0), tokens - tokens[:half].mean(0)
    gram, crossed = x[:half].T @ x[:half], x[:half].T @ y[:half]
    unit = gram.diagonal().mean().clamp_min(_TINY) * torch.eye(len(gram)).to(gram)
    wrong = [x[half:] @ torch.linalg.solve(gram + p * unit, crossed) - y[half:] for p in _PENALTIES]
    least = min(float(one.square().sum()) for one in wrong)
    return 1 - least / max(_TINY, float(y[half:].square().sum()))


def in_recognized_places(observation: ImageObservation, draws: Generator, later: int) -> ImageObservation:
    """Sort the tokens of each image by place, in views and in answers to queries. Tokens of the same recognized place
    get the same index; where this place lies in the image stays unknown.

    `later` query rounds are left for later use. Raises `NotApplicable` as `followed` does, and if a row mixes images.
    """
    views = observation.views
    if any(view.mixed > 1 for view in views):
        raise NotApplicable("places are recognized by whole tokens, but each row is a mixture of several images")
    geometry = Geometry.of(views[0].smashed, observation.image_shape)
    own = given(observation.auxiliary).to(views[0].smashed.device)
    coins = Generator(own.device).manual_seed(int(torch.randint(2**48, (1,), generator=draws)))
    asker = Asker(given(observation.query), observation.batch_size, coins, geometry, observation.rules)
    laws = PlaceLaws.fit(followed(asker, own, later))

    def placed(view: View) -> View:
        tokens = patch_tokens(view.smashed).float()
        return replace(view, smashed=take(tokens, laws.order(tokens)))

    return observation.seen_through(placed)
