"""Decodes the content of tokens, and searches for the best arrangement of a message's tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privkit.attacks.assign import distances
from privkit.attacks.base import View
from privkit.attacks.order.assembly import Frame, Puzzles, best_arrangement, best_pictures, starts
from privkit.attacks.order.piece_network import (
    SHARPNESS,
    MessageNetwork,
    PieceNetwork,
    ShownRows,
    Together,
    assign_members,
)
from privkit.attacks.order.token_reading import AffineMap, rows_a_message
from privkit.attacks.patches import Geometry, class_tokens, patch_tokens, unpatchify

_PIECES_AT_ONCE = 1_024  # most pieces of a message whose images are also solved jointly
TABLE_NUMBERS = 2**26  # most table entries, 256 MiB in float32; larger tables are computed step by step
_PATCH_GAIN = 4.0  # factor on decoded patches, which are small beside standardized tokens
_ALIKE = 0.05  # squared distance of patches, summed over pixels, at which two count as equal
_GREY_LEVEL = 1 / 255
"""Assumed standard deviation of the gradients at a flat border: one level of an 8-bit picture."""
_ODDS_FLOOR = -2.0
"""Log-odds below which a pair is not punished further: one impossible pair must not outweigh three good ones."""


@dataclass(frozen=True, kw_only=True)
class PieceDecoder:
    """Decodes a released token into its image patch, and into the features by which the solver compares tokens."""

    decode: AffineMap  # computes a token's patch
    geometry: Geometry  # how patches lie over the image
    mean: Tensor  # [D], mean of the adversary's tokens
    scale: Tensor  # [D], their standard deviation
    usual: Tensor  # [T, P], the mean patch of each place
    decoded: Tensor  # [T, P], the mean decoded patch of each place
    trust: Tensor  # [T, 1] in [0, 1], the factor on (patch − `decoded`) that predicts the true deviation best
    masked: bool = False  # whether the client masks tokens by zeros; a masked token has no patch

    @classmethod
    def fitted(cls, own: Tensor, patches: Tensor, geometry: Geometry, masked: bool = False) -> PieceDecoder:
        """Learn from the adversary's tokens [N, T, D] and their patches [N, T, P]."""
        there = own.ne(0).any(2) if masked else torch.ones_like(own[..., 0], dtype=torch.bool)
        there = there if bool(there.any()) else ~there
        decode, n = AffineMap.fit(own[there], patches[there]), int(there.sum())
        scale = (decode.scale - 1e-8) * (n / max(n - 1, 1)) ** 0.5 + 1e-8  # a sample's deviation
        weight, shown = there.unsqueeze(2).float(), decode(own).clamp(0, 1)
        count = weight.sum(0).clamp_min(1)
        decoded, usual = ((x * weight).sum(0) / count for x in (shown, patches))
        away, wanted = ((x - mean) * weight for x, mean in ((shown, decoded), (patches, usual)))
        trust = (away * wanted).sum((0, 2)) / away.square().sum((0, 2)).clamp_min(1e-12)
        return cls(
            decode=decode,
            geometry=geometry,
            mean=decode.mean,
            scale=scale,
            usual=patches.mean(0) if masked else usual,
            decoded=decoded,
            trust=trust.clamp(0, 1).unsqueeze(1),
            masked=masked,
        )

    def drawn(self, tokens: Tensor) -> Tensor:
        """Patches [N, T, P] of tokens [N, T, D] in their places: the place's mean patch, plus `trust` times the decoded
        patch's deviation from its mean. A masked token gives the mean patch."""
        away = self.decode(tokens).clamp(0, 1) - self.decoded
        if self.masked:
            away = torch.where(tokens.ne(0).any(2, keepdim=True), away, 0)
        return (self.usual + self.trust * away).clamp(0, 1)

    def features(self, tokens: Tensor) -> Tensor:
        """Standardized tokens, extended by the decoded patches minus mid-grey, [N, T, F]."""
        return torch.cat([(tokens - self.mean) / self.scale, _PATCH_GAIN * (self.decode(tokens).clamp(-1, 2) - 0.5)], 2)

    def looked_up(self, own: Tensor) -> tuple[ShownRows, ShownRows]:
        """Functions from image indices in `own` [N, T, D] to `features` and `edges`; small tables are computed once."""
        n, t, d = own.shape

        def rows_of(look: Callable[[Tensor], Tensor], numbers: int) -> ShownRows:
            if n * t * numbers > TABLE_NUMBERS:
                return lambda rows: look(own[rows])
            table = cache(lambda: look(own))  # made on first use; a recalled training needs no table
            return lambda rows: table()[rows]

        return rows_of(self.features, d + self.geometry.patch_dim), rows_of(self.edges, 2 * t)

    def twins(self, pieces: Tensor) -> Tensor:
        """Probability [N, T, T] that a token's place is that of another token, since their patches look alike.

        All black patches are alike, for example, so each can be at the place of any other.
        """
        patches = pieces[..., -self.geometry.patch_dim :] / _PATCH_GAIN
        return (-distances(patches, patches) / _ALIKE).softmax(2)

    def edges(self, tokens: Tensor) -> Tensor:
        """The `edge_ratios` of the decoded patches, [N, 2, T, T]."""
        p, c = self.geometry.patch, self.geometry.image_shape[0]
        return edge_ratios(self.decode(tokens).clamp(0, 1).unflatten(2, (p, p, c)))


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Puts the shuffled tokens of released rows in order."""

    decoder: PieceDecoder  # fitted to the adversary's tokens
    network: PieceNetwork | Together | None  # scores of places and pairs; None for border pixels alone
    members: MessageNetwork | None  # network that assigns tokens to images; None if images are not mixed
    keep: float  # share of tokens that certainly stay in their image's row
    kicks: int  # rounds of ruin and recreate
    seed: int  # seed of the search; each view has its own stream
    in_order: bool = False  # whether the adversary's own tokens came back in order, so that there is nothing to solve

    def solve(self, view: View, stream: int) -> Tensor:
        """Find the places of T tokens in N rows, int64 [N, T], counted over all images of the token's message.

        If images are mixed, messages are solved one by one, otherwise all images at once. `stream` selects the draws.
        """
        tokens, size = patch_tokens(view.smashed).float(), rows_a_message(view)
        if self.in_order:
            return torch.arange(tokens.shape[0] * tokens.shape[1]).view(tokens.shape[:2]) % (size * tokens.shape[1])
        rng = np.random.default_rng([self.seed, stream])
        if self.members is not None and size > 1:
            return torch.cat([self._message(part, self.members, rng) for part in tokens.split(size)])
        row = torch.arange(len(tokens)) % size
        puzzles = self._puzzles(*self._scores(tokens))
        places = _sources(best_arrangement(puzzles, starts(puzzles), self.kicks, rng))
        return places + self.decoder.geometry.tokens * row.unsqueeze(1)

    def picture(self, view: View, source: Tensor) -> Tensor:
        """Images [N, C, H, W], made of the patches of tokens at the places `source`."""
        placed = put(patch_tokens(view.smashed).float(), source, rows_a_message(view))
        return unpatchify(self.decoder.drawn(placed), self.decoder.geometry.patch, self.decoder.geometry.image_shape)

    @torch.no_grad()
    def _scores(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Log-odds of K tokens at T places, [N, K, T], and of pairs of tokens as neighbors, [N, 2, K, K]."""
        edges, t = self.decoder.edges(tokens), self.decoder.geometry.tokens
        if self.network is None:
            return torch.zeros(len(tokens), tokens.shape[1], t), log_odds(SHARPNESS * edges).cpu()
        places, pairs = self.network(self.decoder.features(tokens), edges)
        return (places.log_softmax(2) + log(t)).cpu(), log_odds(pairs).cpu()

    def _message(self, tokens: Tensor, members: MessageNetwork, rng: np.random.Generator) -> Tensor:
        """Place of each token of a message among the places of all its images, int64 [B, T]."""
        b, t, _ = tokens.shape
        taken, chances = assign_members(members, self.decoder.features(tokens), self.keep)
        everything = tokens.reshape(1, b * t, -1)
        puzzles = self._puzzles(*self._scores(everything[0][taken]))
        within = best_arrangement(puzzles, starts(puzzles), self.kicks, rng)
        at = np.take_along_axis(taken.cpu().numpy(), within, 1).reshape(1, -1)
        if b * t <= _PIECES_AT_ONCE:
            places, pairs = self._scores(everything)
            whose = chances.log_softmax(1).cpu() + log(b)
            unary = (whose.clamp(min=-6).unsqueeze(2) + places[0].unsqueeze(1)).reshape(1, b * t, b * t)
            at = best_pictures(self._puzzles(unary, pairs, pictures=b), at, self.kicks, rng)
        return _sources(at).view(b, t)

    def _puzzles(self, places: Tensor, pairs: Tensor, pictures: int = 1) -> Puzzles:
        side = isqrt(self.decoder.geometry.tokens)
        frame = Frame(rows=side, columns=side, pictures=pictures)
        return Puzzles(unary=places.double().numpy(), pairs=pairs.double().numpy(), frame=frame)


def put(tokens: Tensor, source: Tensor, size: int) -> Tensor:
    """Move tokens [N, T, D] to the places `source` [N, T], counted from 0 within each message of `size` rows."""
    n, t, d = tokens.shape
    first = torch.arange(n, device=tokens.device).unsqueeze(1) // size * size * t
    rows = (source.to(tokens.device) + first).flatten()
    return tokens.new_empty(n * t, d).index_copy(0, rows, tokens.reshape(-1, d)).view(n, t, d)


def restored(view: View, source: Tensor) -> View:
    """The view with its tokens moved to the places `source`; feature maps keep their form."""
    placed = put(patch_tokens(view.smashed), source, rows_a_message(view))
    if view.smashed.ndim == 4:
        placed = placed.transpose(1, 2).reshape(view.smashed.shape)
    elif front := class_tokens(view.smashed):
        placed = torch.cat([view.smashed[:, :front], placed], 1)
    return replace(view, smashed=placed, cut_gradient=None)


def _sources(at: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(at.argsort(1, kind="stable"))


def gradient_distance(pieces: Tensor) -> Tensor:
    """How badly piece j fits to the right of piece i, [M, T, T]: Mahalanobis gradient distance ≥ 0; 0 fits perfectly.

    The color step across the border is compared with the mean and covariance of the steps just inside the border, from
    both sides. Pieces are pixels [M, T, p, p, C] with p ≥ 2.

    Source: Gallagher 2012, "Jigsaw puzzles with pieces of unknown orientation", Eqs. 1 to 5, with a prior of one grey
    level on the covariance instead of dummy gradients.
    """
    return _one_sided(pieces) + _one_sided(pieces.flip(3)).transpose(1, 2)


def _log_ratio(distance: Tensor) -> Tensor:
    """ln(rival's distance / pair's distance) in [−3, 3]; the rival is the better of the pieces' second-best partners.

    `distance` and the result are [M, T, T], T ≥ 3. The diagonal is ignored and becomes −3.

    Source: Gallagher 2012, Eq. 6 (division by the second best match), in logarithms.
    """
    diagonal = torch.eye(distance.shape[1], dtype=torch.bool, device=distance.device)
    distance = distance.masked_fill(diagonal, torch.inf)
    right, left = (distance.topk(2, axis, largest=False).values for axis in (2, 1))
    rival = torch.minimum(right[:, :, 1:], left[:, 1:])
    tiny = 1e-3 * distance.flatten(1).median(1).values[:, None, None] + 1e-9  # equal flat pieces fit perfectly
    return ((rival + tiny) / (distance + tiny)).log().clamp(-3, 3).masked_fill(diagonal, -3)


def edge_ratios(pieces: Tensor, chunk: int = 4_000_000) -> Tensor:
    """How well pieces [M, T, p, p, C] fit, compared with other partners: log ratios in [−3, 3], [M, 2, T, T].

    Entry (m, 0, i, j) is for piece j right of piece i, entry (m, 1, i, j) for piece j below piece i. At most `chunk`
    numbers are in memory at a time.
    """
    _, t, p, _, c = pieces.shape
    parts = pieces.split(max(1, chunk // (t * t * p * c)))
    both = [(part, part.transpose(2, 3)) for part in parts]  # a transposed piece has its lower border on the right
    return torch.cat([torch.stack([_log_ratio(gradient_distance(one)) for one in pair], 1) for pair in both])


def log_odds(scores: Tensor) -> Tensor:
    """Log-odds in [−2, log T] of pairs as neighbors, [M, 2, T, T]: the mean of two log-softmaxes, one per partner."""
    t = scores.shape[-1]
    diagonal = torch.eye(t, dtype=torch.bool, device=scores.device)
    scores = scores.masked_fill(diagonal, -1e4)
    both = (scores.log_softmax(2) + scores.log_softmax(3)) / 2 + log(t)
    return both.clamp(min=_ODDS_FLOOR).masked_fill(diagonal, _ODDS_FLOOR)


def _one_sided(pieces: Tensor) -> Tensor:
    """How badly each piece fits to the right of each other piece, [M, T, T], by the left piece's steps alone.

    The first column of the right piece is compared with the column that the last two columns of the left piece predict,
    in the Mahalanobis distance of the left piece's steps.
    """
    m, t, p, _, c = pieces.shape
    steps = pieces[:, :, :, -1] - pieces[:, :, :, -2]
    mean = steps.mean(2)
    centered = (steps - mean.unsqueeze(2)).double()
    prior = _GREY_LEVEL**2 * torch.eye(c, dtype=torch.float64, device=pieces.device)
    factor = torch.linalg.cholesky(centered.transpose(2, 3) @ centered / max(1, p - 1) + prior)
    whiten = torch.linalg.solve_triangular(factor, torch.eye(c, dtype=torch.float64, device=pieces.device), upper=False)
    predicted = pieces[:, :, :, -1] + mean.unsqueeze(2)  # what the right piece's first column would be
    gap = pieces[:, None, :, :, 0] - predicted[:, :, None]
    distances: Tensor = (gap.flatten(2, 3) @ whiten.float().transpose(2, 3)).square().view(m, t, t, p * c).sum(3)
    return distances
