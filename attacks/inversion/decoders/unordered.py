"""Decoders that ignore the order of tokens: they decode each token to a patch, then find its position in the image."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.assign import distances, sinkhorn
from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.mae import blocks, checked_width, heads_for, scaled_size
from privkit.attacks.order.token_reading import AffineMap
from privkit.attacks.patches import Geometry, patch_tokens, patchify, unpatchify
from privkit.attacks.release_scale import mean_and_scale

_RELATIONS = 8
_RELATION_WIDTH = 32
_MESSAGE_TOKENS = 2_560  # most tokens of a round
_ROUNDS = 5
_SINKHORN_STEPS = 2
_TEMPERATURE = 0.05  # squared distance of patches, summed over pixels, at which the best soft assignment gets unsure
_PLACING_WEIGHT = 0.02
_CONTENT_RIDGE = 1e-4
_SHARPNESS = 3.0  # power of the probabilities of places in the sharpened assignment
_CRISP_MAY_COST = 1.2
"""The sharpened assignment is used if its recent training error is below this multiple of the soft assignment's. A
sharp guess has more structure than a mean of guesses, which has the least error: SSIM .41 instead of .32, at one sixth
more error."""


class SetDecoder(Decoder):
    """A decoder for shuffled tokens: it decodes each token to a patch, and finds the patches' positions ("places").

    A linear map gives each token's patch. Transformer blocks without position embedding score each token for each
    place, and pairs of tokens for relations of places, such as beside or above; training also changes the relations.
    Placing is mean-field inference: in each round, the probable places of other tokens update a token's scores, and
    Sinkhorn's iteration turns the scores into a soft permutation. The placed patches pass through one more block, which
    can add details that single tokens lack.

    With further terms in the objective, a few hundred training steps are enough. The decoded patches must match the
    image's patches in the mean, which needs no order, and under the best soft assignment. Every round of placing is
    trained towards this assignment, with a weight that grows as the decoded patches explain more of the true patches.
    The true order is not used. An adversary that knows the patches of some tokens starts with a linear map fitted to
    these pairs (`know`).

    Source: privkit's own; learned output queries (DETR, Carion et al. 2020) were weaker in all our comparisons.
    """

    layout: ClassVar = Geometry
    rate_times_width: ClassVar[float] = 0.3
    errors: Tensor

    def __init__(
        self, geometry: Geometry, sample: Tensor, *, width: int | None = None, depth: int | None = None
    ) -> None:
        super().__init__()
        self.width = scaled_size(geometry.token_dim)[0] if width is None else checked_width(width)
        self.geometry = geometry
        heads, tokens = heads_for(self.width), geometry.tokens
        self.standardize = Standardized(sample)
        self.content = nn.Linear(2 * geometry.token_dim, geometry.patch_dim)
        self.project = nn.Linear(2 * geometry.token_dim, self.width)
        self.blocks = blocks(self.width, 2 if depth is None else depth, heads)
        self.norm = nn.LayerNorm(self.width)
        self.place = nn.Linear(self.width, tokens)
        self.pairs = nn.Linear(self.width, 2 * _RELATIONS * _RELATION_WIDTH)
        self.relations = nn.Parameter(_relations(geometry))
        self.trust = nn.Parameter(torch.ones(_ROUNDS))
        self.register_buffer("errors", torch.zeros(2))  # running mean errors of soft and of sharpened guesses
        self.home = nn.Parameter(torch.tensor(3.0))  # log-odds of a token's own row, as in batch shuffling
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, self.width))
        self.finish = blocks(self.width, 1, heads)
        self.draw = nn.Linear(self.width, geometry.patch_dim)
        for layer in (self.content, self.draw):  # start at a constant patch: else noise is matched
            nn.init.zeros_(layer.weight)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        return cls(Geometry.of(release, image_shape), patch_tokens(release), width=width, depth=depth)

    @torch.no_grad()
    def know(self, release: Tensor, patches: Tensor) -> None:
        """Set the linear map from tokens to patches by regression on tokens with known patches [N, T, patch_dim]."""
        fitted = AffineMap.fit(self.standardize(patch_tokens(release)), patches - 0.5, _CONTENT_RIDGE)
        self.content.weight.copy_((fitted.weight / fitted.scale.unsqueeze(1)).T)
        self.content.bias.copy_(fitted.bias - fitted.mean / fitted.scale @ fitted.weight)

    def forward(self, release: Tensor) -> Tensor:
        contents, hidden = self._read(release)
        placing = self._placings(hidden)[-1]
        soft, crisp = self.errors
        if not self.training and crisp < _CRISP_MAY_COST * soft:
            placing = sinkhorn(_SHARPNESS * placing, _SINKHORN_STEPS)
        return self._image(contents, hidden, placing)

    def arrangement(self, release: Tensor) -> Tensor:
        """Log-probabilities [G, n, n] of the places of n tokens; each of G groups is an image or a whole message."""
        return self._placings(self._read(release)[1])[-1]

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        contents, hidden = self._read(release)
        placings = self._placings(hidden)
        patches = patchify(truth, self.geometry.patch).reshape(len(contents), -1, self.geometry.patch_dim)
        count = contents.shape[0] * contents.shape[1]
        cost = distances(contents, patches)
        with torch.no_grad():
            teacher = sinkhorn(self._at_home(contents.shape[1]) - cost / _TEMPERATURE, 5).exp()
            spread = (patches - patches.mean((0, 1))).square().sum()
            explained = (1 - (teacher * cost).sum() / spread.clamp_min(1e-12)).clamp_min(0)
            sharp = sinkhorn(_SHARPNESS * placings[-1], _SINKHORN_STEPS)
            crisp = functional.mse_loss(self._image(contents, hidden, sharp).float(), truth)
        error = functional.mse_loss(self._image(contents, hidden, placings[-1]).float(), truth)
        self.errors += 0.1 * (torch.stack([error.detach(), crisp]) - self.errors)
        matched = (teacher * cost).sum() / (count * self.geometry.patch_dim)
        rows = -1, self.geometry.tokens, self.geometry.patch_dim  # also of a message, whose rows hold many tokens
        mean = rows[1] * functional.mse_loss(contents.reshape(rows).mean(1), patches.reshape(rows).mean(1))
        weights = [1.0, *[0.3] * (_ROUNDS - 1), 1.0]
        placed = -sum(weight * (teacher * log).sum() for weight, log in zip(weights, placings, strict=True)) / count
        return error + matched + mean + _PLACING_WEIGHT * explained * placed

    def _read(self, release: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.standardize(patch_tokens(release))
        hidden = self.norm(self.blocks(self.project(tokens)))
        groups = 1 if self.whole_message else len(tokens)
        contents = (self.content(tokens) + 0.5).reshape(groups, -1, self.geometry.patch_dim)
        return contents, hidden.reshape(groups, -1, self.width)

    def _placings(self, hidden: Tensor) -> list[Tensor]:
        """Log-probabilities [G, n, n] of the places of n tokens in G groups: at first, and after each round."""
        t = self.geometry.tokens
        images = hidden.shape[1] // t
        own = self.place(hidden).repeat(1, 1, images) + self._at_home(hidden.shape[1])
        left, right = self.pairs(hidden).unflatten(2, (2, _RELATIONS, -1)).permute(2, 0, 3, 1, 4)
        fits = left @ right.transpose(2, 3) / _RELATION_WIDTH**0.5  # [G, relation, token, other token]
        fits = fits.permute(0, 2, 3, 1).flatten(2)  # one product a round, over other tokens and relations at once
        relations = self.relations.permute(1, 0, 2).flatten(1)
        placings = [sinkhorn(own.float(), _SINKHORN_STEPS)]
        for trust in self.trust:
            beside = placings[-1].exp().unflatten(2, (images, t)) @ relations  # [G, other token, image, relation·place]
            beside = beside.unflatten(3, (_RELATIONS, t)).transpose(2, 3).flatten(3).flatten(1, 2)
            placings.append(sinkhorn(own.float() + trust * (fits @ beside), _SINKHORN_STEPS))
        return placings

    def _at_home(self, n: int) -> Tensor:
        """Log-odds [n, n] of tokens at places: `home` if token and place belong to the same released row, else 0."""
        row = torch.arange(n, device=self.home.device) // self.geometry.tokens
        return self.home * (row.unsqueeze(1) == row)

    def _image(self, contents: Tensor, hidden: Tensor, placing: Tensor) -> Tensor:
        places = placing.exp().transpose(1, 2)
        t = self.geometry.tokens
        features = (places @ hidden).reshape(-1, t, self.width) + self.positions
        patches = (places @ contents).reshape(-1, t, self.geometry.patch_dim) + self.draw(self.finish(features))
        return unpatchify(patches, self.geometry.patch, self.geometry.image_shape)


class MessageDecoder(SetDecoder):
    """A `SetDecoder` that places all tokens of a round together: a patch's token can lie in another image's row.

    It is meant for batch shuffling, which moves some tokens of an image to rows of other images. A training step with n
    tokens takes O(n³) operations and about 500·n² bytes, so the decoder suits rounds of about a thousand tokens; `of`
    raises `NotApplicable` for more than 2,560. Source: privkit's own.
    """

    whole_message: ClassVar[bool] = True

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        count = len(release) * patch_tokens(release).shape[1] if release.ndim > 2 else 0
        if count > _MESSAGE_TOKENS:
            raise NotApplicable(
                f"the message decoder relates all pairs of a round's tokens, of which there may be {_MESSAGE_TOKENS:,}"
                f", but a round has {count:,}: take smaller rounds, or the set decoder, image by image"
            )
        return super().of(release, image_shape, width=width, depth=depth)


def _relations(geometry: Geometry) -> Tensor:
    """Initial relations [8, T, T] of places: right, left, below, above, the same image, and small random relations."""
    rows = geometry.image_shape[1] // geometry.patch
    place = torch.arange(geometry.tokens).view(rows, -1)
    relations = 0.05 * torch.randn(_RELATIONS, *[geometry.tokens] * 2)
    neighbors = ((place[:, 1:], place[:, :-1]), (place[1:], place[:-1]))
    relations[:5] = 0
    for axis, (far, near) in enumerate(neighbors):
        relations[2 * axis, far.flatten(), near.flatten()] = 1
        relations[2 * axis + 1, near.flatten(), far.flatten()] = 1
    relations[4] = 1 / geometry.tokens
    return relations


class Standardized(nn.Module):
    """Normalizes tokens by channel statistics of `sample` and within each token, and joins both: [..., D] -> [..., 2D].

    The first half keeps a token's norm, which carries information; the second is for tokens of very different norms.
    Whitening was worse in measurements: decoded patches were matched to wrong patches.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, sample: Tensor) -> None:
        super().__init__()
        tokens = sample.detach().cpu().double().flatten(0, -2)
        mean, scale = mean_and_scale(tokens, 0)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, tokens: Tensor) -> Tensor:
        alone = functional.layer_norm(tokens, tokens.shape[-1:])
        return torch.cat([(tokens - self.mean) / self.scale, alone], -1)
