"""Put tokens in the order of their patches, if the tokens of a group of images came back in any order.

An affine map predicts each patch's token. Tokens are matched with the predictions, the map is fitted to the matches,
and so on. Directions of tokens in which the map errs little count most in the matching. The first map comes from the
groups' means, which do not depend on the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privkit.attacks.assign import distances, hungarian, take
from privkit.attacks.order.token_reading import AffineMap, token_scale
from privkit.attacks.patches import Geometry

_FITTED_TOKENS = 16_000  # number of tokens that the fits use; the last assignment covers all tokens
_ROUNDS = 12  # most fits of one map
_SETTLED = 1e-3  # share of tokens that change places, up to which a fit counts as the last one
_RIDGE = 1e-2  # penalty of squared coefficients, as a share of the inputs' variance
_FLOOR = 1e-3  # least variance of an error, as a share of the token's variance: exact maps err by rounding
_OWN, _NEIGHBORS, _START = 256, 24, 20  # principal components of a patch, of a patch beside it, and in the first map
_GROUPS_A_COMPONENT = 4  # groups needed for each component of the first map
_NUMBERS_AT_ONCE = 2**24  # most numbers of a table of pairs, and of the map's inputs


def in_place(groups: Tensor, patches: Tensor, geometry: Geometry) -> Tensor:
    """Order the tokens of images like their patches: [N, T, D] for N images with T patches each, [N, T, P].

    `groups` [N/g, g·T, D] holds the tokens of g consecutive images in each group, in any order. Three maps are tried in
    turn. The first uses a patch and its image's mean patch, the second also the patches around it, the third also its
    place. A map replaces the previous map if the covariance of the new map's errors has a smaller determinant.

    Source: iterative closest points (Besl and McKay 1992) with a Mahalanobis distance; the maps are derived.
    """
    t, size = patches.shape[1], groups.shape[1]
    scale, count = token_scale(groups), max(1, _FITTED_TOKENS // size)
    few, sent = groups[:count] / scale, patches[: count * size // t]
    basis, trust = _Basis.of(sent, geometry), torch.eye(few.shape[2], device=few.device)
    predicted = _first(few, basis.of_own(sent).view(*few.shape[:2], -1))
    best: tuple[float, int, AffineMap, Tensor] | None = None
    for level in range(3):
        inputs, order = basis.inputs(sent, level).view(*few.shape[:2], -1), None
        for _ in range(_ROUNDS):
            found = hungarian(distances(few @ trust, predicted @ trust))
            settled = order is not None and float((found != order).double().mean()) <= _SETTLED
            order = found
            if settled:
                break
            ordered = take(few, order)
            forward = AffineMap.fit(inputs, ordered, _RIDGE)
            predicted = forward(inputs)
            errors = (predicted - ordered).flatten(0, 1).double()
            floor = _FLOOR * torch.eye(errors.shape[1], dtype=errors.dtype, device=errors.device)
            trust = torch.linalg.cholesky(torch.linalg.inv(errors.T @ errors / len(errors) + floor)).float()
        spread = -float(trust.diagonal().log().sum())
        if best is not None and spread >= best[0]:
            break
        best = spread, level, forward, trust
    assert best is not None
    _, level, forward, trust = best
    some = max(1, _NUMBERS_AT_ONCE // (size * max(size, inputs.shape[2])))
    placed = []
    for part, sent in zip(groups.split(some), patches.split(some * size // t), strict=True):
        wanted = forward(basis.inputs(sent, level)).view(*part.shape)
        placed.append(take(part, hungarian(distances(part / scale @ trust, wanted @ trust))))
    return torch.cat(placed).view(len(patches), t, -1)


def _first(groups: Tensor, components: Tensor) -> Tensor:
    """Predict tokens [M, n, D] by a regression of groups' mean tokens on their mean patches. Means differ less than
    tokens, so the predictions are scaled to the tokens' variance."""
    start = components[..., : max(3, min(_START, len(groups) // _GROUPS_A_COMPONENT))]
    means = AffineMap.fit(start.mean(1, keepdim=True), groups.mean(1, keepdim=True), 1e-3)
    away, middle = means(start), groups.mean((0, 1))
    away = away - away.mean((0, 1))
    return middle + away * (groups - middle).square().mean().sqrt() / away.square().mean().sqrt().clamp_min(1e-12)


@dataclass(frozen=True, kw_only=True)
class _Basis:
    """The principal components of patches."""

    geometry: Geometry
    middle: Tensor  # [P]
    vectors: Tensor  # [P, K]

    @classmethod
    def of(cls, patches: Tensor, geometry: Geometry) -> _Basis:
        middle = patches.mean((0, 1))
        away = (patches - middle).flatten(0, 1)
        return cls(geometry=geometry, middle=middle, vectors=torch.linalg.eigh(away.T @ away).eigenvectors.flip(1))

    def of_own(self, patches: Tensor) -> Tensor:
        """The components of each patch, [N, T, K]."""
        return (patches - self.middle) @ self.vectors[:, :_OWN]

    def inputs(self, patches: Tensor, level: int) -> Tensor:
        """The inputs [N, T, F] of the map with number `level`, for patches [N, T, P]."""
        own = self.of_own(patches)
        several = [own, own.mean(1, keepdim=True).expand_as(own)]
        if level >= 1:
            _, height, _ = self.geometry.image_shape
            maps = own[..., :_NEIGHBORS].mT.unflatten(2, (height // self.geometry.patch, -1))
            several.append(nn.functional.unfold(maps, 3, padding=1).mT)
        if level >= 2:
            places = torch.eye(patches.shape[1], device=patches.device)
            several.append(places.expand(len(patches), -1, -1))
        return torch.cat(several, 2)
