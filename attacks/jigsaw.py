"""Jigsaw: put shuffled tokens back, first into their image, then into their place, and show the patches behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isqrt, log
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from privkit.attacks.assembly import Frame, Places, Puzzles, assemble
from privkit.attacks.base import (
    Arrangement,
    AttackDiverged,
    Knowledge,
    NoSession,
    Reconstruction,
    Session,
    View,
)
from privkit.attacks.compatibility import SHARPNESS, edge_ratios, log_odds
from privkit.attacks.coordinates import starts
from privkit.attacks.decoders.patches import Geometry, as_tokens, unpatchify
from privkit.attacks.membership import assign_members
from privkit.attacks.own_tokens import checked_geometry, own_tokens
from privkit.attacks.piece_network import MemberNetwork, PieceNetwork, train_members, train_pieces
from privkit.attacks.seeded import seeded
from privkit.attacks.token_contents import Ridge

KEEPS_ALL = 0.97  # an estimated share of kept tokens above which a shuffle is taken not to mix images
PIECES_AT_ONCE = 700  # of a message, up to which its images are also solved jointly
JOINT_KICKS = 0.25  # kicks on a whole message cost more, and start from solved images


@dataclass(frozen=True, kw_only=True)
class Jigsaw:
    """Solves the puzzle of an image's, or of a whole message's, tokens.

    The adversary gets the tokens of its own images in order: from the lower segment, or by matching what a query gave
    back to its own patches. From these it fits the patch behind a token, learns which tokens lie side by side, where
    a token lies, and whose image it is of; then it searches for the best arrangement of the private tokens.

    Attributes:
        pairs: "learned" (border pixels of the decoded patches, and a network on the tokens) or "edges" (border pixels
            alone, nothing else: the classical solver).
        keep: share of tokens that stay in their image's row for certain, in [0, 1], 1 where images are not mixed. None
            estimates it from query answers, and takes 1 where there is no query.
        epochs: passes over the auxiliary images, ≥ 0, for "learned".
        kicks: rounds of ruin and recreate, ≥ 0.
        width: of the networks, a positive multiple of 4.

    Source: the attack that Yao et al., patch shuffling, Table IV, leaves unspecified; pixel compatibility by Gallagher
    2012, search after Pomeranz et al. 2011 and Yu et al. 2016.
    """

    name: ClassVar[str] = "jigsaw"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})

    pairs: Literal["learned", "edges"] = "learned"
    keep: float | None = None
    epochs: int = 20
    kicks: int = 100
    width: int = 96

    def __post_init__(self) -> None:
        if self.pairs not in ("learned", "edges"):
            raise ValueError(f"pairs must be learned or edges, got {self.pairs!r}")
        if self.keep is not None and not 0 <= self.keep <= 1:
            raise ValueError(f"keep must lie in [0, 1], or be left out to be estimated, got {self.keep}")
        for name in ("epochs", "kicks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be a whole number >= 0, got {getattr(self, name)}")
        if self.width < 4 or self.width % 4:
            raise ValueError(f"width must be a positive multiple of 4, got {self.width}")

    def run(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Learn from auxiliary images, then solve every view.

        Args:
            views: the recorded messages, of `batch_size` rows each (the last may be smaller).
            knowledge: needs `auxiliary`, and `lower` or `query`.
            generator: a CPU generator, the only source of randomness.
            session: where to report progress; a killed attack starts again.

        Returns:
            The decoded patches in their guessed places, with the `arrangement`.

        Raises:
            NotApplicable: if knowledge or auxiliary images are lacking, several images share a row, or the release is
                no square grid of at least 4 tokens over patches of at least 2 pixels a side.
            AttackDiverged: if the training loss is not finite.

        >>> from privkit.attacks.decoders.patches import patchify
        >>> cells = lambda x: patchify(x, 4)
        >>> knowledge = Knowledge(image_shape=(1, 8, 8), batch_size=2, auxiliary=torch.rand(20, 1, 8, 8), lower=cells)
        >>> view = View(round=0, smashed=cells(torch.rand(2, 1, 8, 8)))
        >>> Jigsaw(epochs=1, kicks=2).run([view], knowledge, torch.Generator().manual_seed(0)).arrangement.source.shape
        torch.Size([2, 4])
        """
        geometry = checked_geometry(views, knowledge)
        session, device = session or NoSession(), views[0].smashed.device
        seeds = torch.randint(2**48, (3,), generator=generator).tolist()
        draws = Generator().manual_seed(seeds[0])
        own, patches, found = own_tokens(views[0], knowledge, geometry, Generator(device).manual_seed(seeds[1]))
        keep = found if self.keep is None else self.keep
        keep = 1.0 if keep > KEEPS_ALL else keep
        eyes = _Eyes(
            decode=Ridge.fit(own, patches), geometry=geometry, mean=own.mean((0, 1)), scale=own.std((0, 1)) + 1e-8
        )
        pieces = eyes.features(own)
        with seeded(torch.device("cpu"), seeds[2]):  # torch's initializers know only the global generator
            network = PieceNetwork(pieces.shape[2], geometry.tokens, self.width).to(device)
            members = MemberNetwork(pieces.shape[2], self.width).to(device)

        def report(epoch: int, loss: float) -> None:
            if not isfinite(loss):
                raise AttackDiverged(f"jigsaw: the training loss is {loss} after epoch {epoch + 1}")
            session.report(epoch + 1, self.epochs, loss)

        if self.pairs == "learned":
            train_pieces(network, pieces, eyes.edges(own), self.epochs, draws, report)
        mixes = keep < 1 and knowledge.batch_size > 1
        if mixes:
            train_members(members, pieces, knowledge.batch_size, keep, self.epochs, draws)
        rng = np.random.default_rng(seeds[0])
        solver = _Solver(eyes=eyes, network=network if self.pairs == "learned" else None, kicks=self.kicks, rng=rng)
        sources, images = [], []
        for view in views:
            tokens = as_tokens(view.smashed).float()
            solved = [
                solver.message(part, members, keep) if mixes and len(part) > 1 else solver.images(part)
                for part in (tokens.split(knowledge.batch_size) if mixes else (tokens,))
            ]
            source = torch.cat(solved)
            if not mixes:  # rows were solved together; count them within their message
                source = source + geometry.tokens * (torch.arange(len(source)) % knowledge.batch_size).unsqueeze(1)
            sources.append(source)
            images.append(eyes.place(tokens, source.to(device), knowledge.batch_size))
        return Reconstruction(images=torch.cat(images), arrangement=Arrangement(source=torch.cat(sources).to(device)))


@dataclass(frozen=True, kw_only=True)
class _Eyes:
    """What the adversary sees in a token."""

    decode: Ridge
    geometry: Geometry
    mean: Tensor
    scale: Tensor

    def features(self, tokens: Tensor) -> Tensor:
        """Standardized tokens beside decoded patches around mid-grey, [N, T, F]."""
        return torch.cat([(tokens - self.mean) / self.scale, 4 * (self.decode(tokens).clamp(-1, 2) - 0.5)], 2)

    def edges(self, tokens: Tensor) -> Tensor:
        """Ratios of the decoded patches' borders, [N, 2, T, T]."""
        p, c = self.geometry.patch, self.geometry.image_shape[0]
        return edge_ratios(self.decode(tokens).clamp(0, 1).unflatten(2, (p, p, c)))

    def place(self, tokens: Tensor, source: Tensor, batch: int) -> Tensor:
        """Images from decoded patches put where `source` says."""
        n, t = source.shape
        first = torch.arange(n, device=source.device).unsqueeze(1) // batch * batch * t
        patches = self.decode(tokens).clamp(0, 1).flatten(0, 1)
        placed = torch.empty_like(patches).index_copy(0, (source + first).flatten(), patches)
        return unpatchify(placed.view(n, t, -1), self.geometry.patch, self.geometry.image_shape)


@dataclass(frozen=True, kw_only=True)
class _Solver:
    """From tokens to places."""

    eyes: _Eyes
    network: PieceNetwork | None
    kicks: int
    rng: np.random.Generator

    @torch.no_grad()
    def scores(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Log-odds of places [N, K, T] and pairs [N, 2, K, K]."""
        edges, t = self.eyes.edges(tokens), self.eyes.geometry.tokens
        if self.network is None:
            return torch.zeros(len(tokens), tokens.shape[1], t), log_odds(SHARPNESS * edges).cpu()
        places, pairs = self.network(self.eyes.features(tokens), edges)
        return (places.log_softmax(2) + log(t)).cpu(), log_odds(pairs).cpu()

    def images(self, tokens: Tensor) -> Tensor:
        """Place of each token in its row's image, int64 [N, T]."""
        places, pairs = self.scores(tokens)
        return _sources(self._search(places, pairs, 1, [], self.kicks))

    def message(self, tokens: Tensor, members: MemberNetwork, keep: float) -> Tensor:
        """Place of each token of a message among the places of all its images, int64 [B, T]."""
        b, t, _ = tokens.shape
        taken, chances = assign_members(members, self.eyes.features(tokens), keep)
        everything, taken = tokens.reshape(1, b * t, -1), taken.cpu()
        within = self._search(*self.scores(everything[0][taken.to(tokens.device)]), 1, [], self.kicks)
        at = np.take_along_axis(taken.numpy(), within, 1).reshape(1, -1)
        if b * t <= PIECES_AT_ONCE:
            places, pairs = self.scores(everything)
            whose = chances.log_softmax(1).cpu() + log(b)
            unary = (whose.clamp(min=-6).unsqueeze(2) + places[0].unsqueeze(1)).reshape(1, b * t, b * t)
            at = self._search(unary, pairs, b, [at], int(JOINT_KICKS * self.kicks))
        return _sources(at).view(b, t)

    def _search(self, places: Tensor, pairs: Tensor, pictures: int, begin: list[Places], kicks: int) -> Places:
        """The piece in each place, [M, S]."""
        side = isqrt(self.eyes.geometry.tokens)
        frame = Frame(rows=side, columns=side, pictures=pictures)
        puzzles = Puzzles(unary=places.double().numpy(), pairs=pairs.double().numpy(), frame=frame)
        return assemble(puzzles, begin or starts(puzzles), kicks, self.rng)


def _sources(at: Places) -> Tensor:
    """Place of each piece from piece in each place."""
    return torch.from_numpy(at.argsort(1, kind="stable"))
