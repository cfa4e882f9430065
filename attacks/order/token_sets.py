"""Finds the places of tokens in unordered sets, from the content of their images.

The mean of an image's tokens does not depend on their order. Regressing it on the image's mean patch gives a first map
from a patch to its token. With this map tokens and places are matched; maps and matchings then improve each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.assign import distances, hungarian, take
from privkit.torch_utils.patches import patchify

_PATCH, _IMAGE = 20, 60  # most principal components of a patch, and of the whole image, that explain a token
_PENALTY = 1e-2  # penalty on squared coefficients, in units of the mean variance
_SHARED, _ROUNDS = 6, 20  # rounds in which all places share one map up to a constant, and most further rounds
_SETTLED = 1e-3  # a round that moves at most this share of the tokens is the last one
_TINY = 1e-12


@dataclass(frozen=True)
class PatchFeatures:
    """Features of n images at each of T places, float64: of the patch [n, T, f]; of patch and image, [n, T, F]."""

    patch: Tensor  # principal components of the patch
    all: Tensor  # principal components of the patch and of the whole image, and a 1

    @classmethod
    def of(cls, images: Tensor, patch: int) -> PatchFeatures:
        """Compute the features of images [n, C, H, W] for patches of `patch` × `patch` pixels."""
        pieces = _principal(patchify(images, patch), _PATCH)
        whole = _principal(images.flatten(1).unsqueeze(1), _IMAGE).expand(-1, pieces.shape[1], -1)
        return cls(pieces, torch.cat([pieces, whole, torch.ones_like(pieces[..., :1])], 2))

    def some(self, images: Tensor) -> PatchFeatures:
        """The features of the images with the given indices."""
        return PatchFeatures(self.patch[images], self.all[images])


def _principal(rows: Tensor, most: int) -> Tensor:
    flat = rows.flatten(0, 1).double()
    _, vectors = torch.linalg.eigh((flat - flat.mean(0)).T @ (flat - flat.mean(0)))
    along: Tensor = (rows.double() - flat.mean(0)) @ vectors[:, -most:]
    return along


@dataclass(frozen=True)
class TokenMaps:
    """A linear map from image features to the token at each place, and a normal distribution of its errors; float64."""

    maps: Tensor  # [T, F, q]
    whitening: Tensor  # [q, q], maps errors to independent numbers of variance 1
    spread: Tensor  # ln of the determinant of the errors' covariance

    @classmethod
    def of_sets(cls, sets: Tensor, shown: PatchFeatures, still: bool = False) -> TokenMaps:
        """Fit a linear map from image features to tokens for each place, from tokens [n, T, q] in any order.

        With `still`, the tokens are already in their places.
        """
        sets = sets.double()
        one, where = torch.ones_like(sets[..., :1]), torch.eye(sets.shape[1]).to(sets).expand(len(sets), -1, -1)
        if still:
            return cls.of(sets, one[..., 0], shown)
        known = torch.cat([shown.patch, one], 2)
        expected = known @ _solved(known.mean(1), sets.mean(1))
        whitening, _ = _law((sets - sets.mean((0, 1))).flatten(0, 1))
        shared = torch.cat([shown.patch, where], 2)
        for _ in range(_SHARED):
            placed = take(sets, hungarian(distances(sets @ whitening.T, expected @ whitening.T)))
            expected = shared @ _solved(shared.flatten(0, 1), placed.flatten(0, 1))
            whitening, _ = _law((placed - expected).flatten(0, 1))
        found, last = cls.of(placed, one[..., 0], shown), sets.new_full(sets.shape[:2], -1).long()
        for _ in range(_ROUNDS):
            order = hungarian(found.costs(sets, shown.all))
            found = cls.of(take(sets, order), one[..., 0], shown)
            if (order != last).float().mean() <= _SETTLED:
                break
            last = order
        return found

    @classmethod
    def of(cls, placed: Tensor, there: Tensor, shown: PatchFeatures) -> TokenMaps:
        """Fit the maps to tokens [n, T, q] in their places; `there` [n, T] is 1 if a token is known, otherwise 0."""
        placed, there = placed.double(), there.double()
        maps = _solved(shown.all.transpose(0, 1) * there.T.unsqueeze(2), placed.transpose(0, 1))
        errors = placed - torch.einsum("ntf,tfq->ntq", shown.all, maps)
        return cls(maps, *_law(errors[there > 0]))

    def expected(self, shown: Tensor) -> Tensor:
        """The expected tokens [N, T, q] of images with the features [N, T, F]."""
        return torch.einsum("ntf,tfq->ntq", shown, self.maps)

    def costs(self, tokens: Tensor, shown: Tensor) -> Tensor:
        """How badly each token [N, L, q] fits at each place, [N, L, T]: −2·ln of its density, up to a constant."""
        expected = self.expected(shown) @ self.whitening.T
        return distances(tokens.double() @ self.whitening.T, expected) + self.spread.float()


def _solved(known: Tensor, wanted: Tensor) -> Tensor:
    """Coefficients [..., F, q] of a ridge regression of `wanted` [..., n, q] on `known` [..., n, F]."""
    gram = known.transpose(-1, -2) @ known
    shrink = (_PENALTY * gram.diagonal(dim1=-2, dim2=-1).mean(-1)).clamp_min(_TINY)
    unit = torch.eye(gram.shape[-1]).to(gram)
    found: Tensor = torch.linalg.solve(gram + shrink[..., None, None] * unit, known.transpose(-1, -2) @ wanted)
    return found


def _law(errors: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix that whitens errors [n, q], and ln of the determinant of their covariance."""
    spread = errors.T @ errors / len(errors)
    unit = torch.eye(len(spread)).to(spread)
    lower = torch.linalg.cholesky(spread + (_PENALTY * spread.diagonal().mean()).clamp_min(_TINY) * unit)
    return torch.linalg.solve_triangular(lower, unit, upper=False), 2 * lower.diagonal().log().sum()
