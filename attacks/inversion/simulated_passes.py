"""Several passes of own images without a query: who has read their tokens can shuffle them as the clients do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import take
from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.own_images import found_among
from privkit.attacks.inversion.recurrence import meetings, most_visited
from privkit.attacks.order.own_tokens import OwnTokens, checked_geometry, own_tokens
from privkit.attacks.order.token_contents import Ridge
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.patches import Geometry, patch_tokens, unpatchify

_RIDGE = 1e-4
_SHOWN = 0.8  # of the variance of mean patches: .93 and more where tokens were right, .35 behind a spectral shuffle
_KNOWN = 1_000  # own images whose tokens show the patch behind a token


@dataclass(frozen=True, kw_only=True)
class SimulatedPasses:
    """Answers as a query would whose passes are put together; satisfies `privkit.attacks.base.Query`.

    A shuffle without noise gives copies of the tokens that were read. Its passes differ only in the rows that a token
    visits, so that visits are drawn instead of matched.

    Attributes:
        own: tokens that were read.
        geometry: how their patches lie over the image.
        passes: R ≥ 1.
        size: B, rows of a message.
        copies: squared distance up to which tokens pass for copies, as in `intersected`.
        pool: whether each row keeps its tokens, so that one pass holds all of them; else passes are intersected.
    """

    own: OwnTokens
    geometry: Geometry
    passes: int
    size: int
    copies: float
    pool: bool

    @classmethod
    def of(
        cls,
        observation: ImageObservation,
        draws: Generator,
        images: int | None,
        *,
        asked: int,
        passes: int,
        copies: float,
        pool: bool,
    ) -> SimulatedPasses:
        """Read the tokens of own images by queries.

        Args:
            observation: with auxiliary images and a query.
            draws: of the queries.
            images: as `Adaptive.read`.
            asked: rounds that the attack sent before.
            passes: as the attribute; so are the others.
            copies: likewise.
            pool: likewise.

        Raises:
            NotApplicable: if they cannot be read, or too few for a training, or they may be wrong.
        """
        assert observation.auxiliary is not None
        view, least = observation.views[0], 2 * observation.batch_size
        geometry = checked_geometry(observation, "reading own tokens")
        most = len(observation.auxiliary) if images is None else images
        own = own_tokens(view, observation, geometry, draws, most, asked=asked)
        if len(own.tokens) < least:
            raise NotApplicable(
                f"{len(own.tokens)} own images could be read within the rules of the threat model, and training takes "
                f"{least}"
            )
        if (shown := _explained_variance(own)) < _SHOWN:
            raise NotApplicable(
                f"a linear map of own tokens explains {100 * max(0.0, shown):.0f} % of the variance of their mean "
                "patches, so that tokens may be beside wrong patches"
            )
        return cls(own=own, geometry=geometry, passes=passes, size=rows_a_message(view), copies=copies, pool=pool)

    @cached_property
    def images(self) -> Tensor:
        """The own images, [N, C, H, W]."""
        return unpatchify(self.own.patches, self.geometry.patch, self.geometry.image_shape)

    def __call__(self, images: Tensor, draws: Generator) -> QueryResult:
        """Rows [N, T, D + 1] of some of the own images, whole messages of them, with the support of each token."""
        rows, _ = self.released(found_among(self.images, images), draws)
        members = torch.arange(len(images), device=images.device).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=rows, messages=len(images) // self.size), members=members)

    def view(self, same: Sequence[View]) -> View | None:
        """Passes of attacked images as those of own images are simulated; None if they are to be intersected."""
        if not self.pool:
            return None
        tokens = patch_tokens(same[0].smashed).float()
        smashed = torch.cat([tokens, tokens.new_ones(*tokens.shape[:2], 1)], 2)
        return View(round=same[0].round, smashed=smashed, messages=same[0].messages)

    def known(self, draws: Generator) -> tuple[Tensor, Tensor]:
        """What comes of up to 1,000 own images, or one message, and the patch behind each token, [N, T, P]."""
        messages = max(1, min(_KNOWN, len(self.own.tokens)) // self.size)
        return self.released(torch.arange(messages * self.size), draws)

    def released(self, rows: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        """What comes of the own images of some rows, int64 [N], and the patch behind each token, [N, T, P]."""
        tokens, patches = self.own.tokens[rows], self.own.patches[rows]
        n, t, _ = tokens.shape
        groups = (n, t) if self.pool else (n // self.size, self.size * t)
        order = torch.rand(groups, generator=draws, device=tokens.device).argsort(1)
        tokens, patches = (take(x.reshape(*groups, -1), order) for x in (tokens, patches))
        support = tokens.new_ones(n, t, 1)
        if not self.pool:
            met = most_visited(*self._tracked(tokens, order, draws))
            tokens, patches = met.tokens, take(patches, met.taken.reshape(groups))
            support = met.support.unsqueeze(2)
        return torch.cat([tokens, support], 2), patches.reshape(n, t, -1)

    def _tracked(self, tokens: Tensor, order: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        """What `tracked` finds of tokens [M, B·T, D]: those that it takes for copies are averaged, and share visits."""
        m, n, d = tokens.shape
        t, home = n // self.size, order // (n // self.size)
        kept = round(self.own.keep * t)
        visits = tokens.new_zeros(m, n, self.size)
        for _ in range(self.passes):
            rank = torch.rand(m, self.size, t, generator=draws, device=order.device).argsort(2).flatten(1)
            moved = (rank.gather(1, order) >= kept).int().argsort(1, descending=True)[:, : self.size * (t - kept)]
            dealt = moved.gather(1, torch.rand(moved.shape, generator=draws, device=order.device).argsort(1))
            row = home.scatter(1, moved, home.gather(1, dealt))
            visits.scatter_add_(2, row.unsqueeze(2), visits.new_ones(m, n, 1))
        alike = 2 * self.copies / tokens.shape[2]
        plans = (meetings(one.unsqueeze(0), one.unsqueeze(0), alike)[0] for one in tokens)
        both = torch.cat([tokens, visits / self.passes], 2)
        found = torch.stack([plan @ x for plan, x in zip(plans, both, strict=True)])
        return found[..., :d], found[..., d:]


def _explained_variance(own: OwnTokens) -> float:
    """Share of the variance of mean patches, at most 1, that a linear map from tokens to patches explains.

    It is fitted to half of the own images, each token beside the patch that it is taken for, and judged by the other
    half's means, which know no order.
    """
    half = len(own.tokens) // 2
    patches = own.patches[half:].mean(1)
    wrong = Ridge.fit(own.tokens[:half], own.patches[:half], _RIDGE)(own.tokens[half:]).mean(1) - patches
    return 1 - float(wrong.square().sum() / (patches - patches.mean(0)).square().sum().clamp_min(1e-12))
