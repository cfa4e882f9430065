"""Clients for tests of whether an attack works at all: they apply the run's defense to the records themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.control_clients import Defended, projected
from privkit.attacks.goals.identity import Marked, Then, identity_lower
from privkit.attacks.query_rules import ANY_QUERIES
from privkit.defenses.base import Defense, is_own
from privkit.defenses.chain import stages_of
from privkit.defenses.compile import sites_of
from privkit.domains.base import Batch
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.errors import PrivkitError, one_line
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients
from privkit.training.no_labels import drawn_labels
from privkit.wire.channel import Queries, answer_of, black_box_query, public_block, record_rounds, shared_lower
from privkit.wire.hijack import imitated

_INSIDE = 0.99  # derivatives are taken at this share of the way from the mean image to a record, inside clip limits
_WHOLE = 1e-4  # a projection counts as complete if it misses at most this share of a difference's squared norm
_HALF = 0.5  # a release contains a word if the projection of a 1 at the word's place is above this
_HALVINGS = 8  # number of scale factors 1, 1/2, 1/4, … that are tried until the defense's bounds change no record
_UNDONE = frozenset({"maps", "scales", "masks", "mixes", "permutes", "shortens"})
"""Effects of a stage that an attack must undo. Clipping and splitting only remove something from a record."""


def defense_of(edge: Clients, domain: Domain, batch_size: int, seed: int) -> Defended:
    """Describe the defense of trained clients, with a function that builds its clients for a control experiment."""
    sites = sites_of(stages_of(edge.defense))
    sent = (*sites.images, *sites.smashed)
    undone = frozenset[str]().union(*(stage.effects or () for stage in sent)) & _UNDONE
    if "mixes" in undone and not all(stage.keeps_positions for stage in sent):
        undone |= {"permutes"}
    return Defended(
        name=edge.defense.name,
        undone=undone,
        why_not=next(filter(None, map(_unknown, sent)), ""),
        own=any(map(is_own, sent)),
        clients=lambda shape: HonestClients.of(
            edge, domain, shape, batch_size, seed, marked=bool({"permutes", "shortens"} & undone)
        ),
    )


def _unknown(stage: Defense) -> str:
    """Say why a stage cannot run without noise, or why its effect is unknown; empty if neither holds."""
    if stage.effects is None:
        return f"{stage.name} does not declare its effects"
    if "noises" in stage.effects and not stage.noise_fields:
        return f"{stage.name} adds noise and has no noise_fields to switch it off by"
    return ""


def _within_bounds(defense: Defense, white: Tensor) -> float:
    """The largest of the factors 1, 1/2, 1/4, … for which the defense's clamp or norm bound leaves a white image times
    this factor unchanged; 1 if no tried factor does."""
    factors = [0.5**halvings for halvings in range(_HALVINGS)]
    return next((f for f in factors if torch.equal(defense.public_transform(f * white), f * white)), 1.0)


@dataclass
class HonestClients:
    """Sends records through the run's defense; satisfies `privkit.attacks.goals.control_clients.ControlClients`."""

    edge: Clients
    domain: Domain
    batch_size: int  # records per client and round

    def __post_init__(self) -> None:
        edge = self.edge
        self.query: Callable[[Tensor, Generator], QueryResult] = Queries(black_box_query(edge), ANY_QUERIES)
        self.lower: nn.Module | None = shared_lower(edge)
        self.block: nn.Module | None = public_block(edge)
        self.imitate = imitated(edge, self.domain)

    @classmethod
    def of(
        cls, edge: Clients, domain: Domain, shape: tuple[int, ...], batch_size: int, seed: int, *, marked: bool
    ) -> HonestClients:
        """Build clients for a control experiment: they send the records themselves through the defense, without noise.

        `shape` is a record's shape; images can be smaller than those of the run. `marked`, for a defense that moves or
        drops tokens, adds to each token of an image a mark that reveals the token's image (`Marked`).
        """
        own = Images(shape=(shape[0], shape[1], shape[2])) if isinstance(domain, Images) else domain
        device = next(iter(edge.parameters()), torch.zeros(())).device
        with torch.no_grad(), seeded(device, seed):
            smashed = edge.lowers.copy(0).eval()(domain.zeros(1).to(device))
        columns, block = domain.column_sizes if isinstance(domain, Tables) else (), edge.block
        lower = identity_lower(smashed, shape, columns, as_tokens=marked or block is not None)
        tokens = lower(own.zeros(1))
        if block is not None and (tokens.ndim != 3 or tokens.shape[2] > smashed.shape[2]):
            raise NotApplicable(
                f"the block behind {edge.defense.name} takes {smashed.shape[-1]} numbers per token, and the record "
                f"itself has {tokens.shape[-1]}"
            )
        if marked and tokens.ndim == 3 and isinstance(own, Images):
            whose = Marked(lower, *tokens.shape[1:], places=edge.defense.position_embedding)
            if block is None or whose(own.zeros(1)).shape[2] <= smashed.shape[2]:
                lower = whose
        if block is not None:
            width = smashed.shape[2]  # tokens are widened by repeating their numbers
            lower = Then(lower, lambda rows: rows[..., torch.arange(width, device=rows.device) % rows.shape[-1]])
        try:
            if isinstance(own, Images) and edge.defense.level != "input":
                factor = _within_bounds(edge.defense, lower(1 + own.zeros(1)))
                lower = Then(lower, lambda numbers: factor * numbers)
            silent, seed = edge.defense.noiseless(), derive(seed, "frozen block")
            built = Clients.build(
                lower, silent, own, classes=edge.classes, seed=seed, protocol=edge.protocol, block=block
            )
        except (PrivkitError, ValueError) as error:
            raise NotApplicable(f"{edge.defense.name} cannot take the record itself: {one_line(error)}") from None
        built.held, built.counts_orders = edge.held, edge.counts_orders
        return cls(built.to(device).eval(), own, batch_size)

    def send(self, records: Tensor, labels: Tensor, passes: int, seed: int) -> tuple[list[View], Tensor]:
        """Send records in the same way as the attacked records; see `ControlClients.send`."""
        batch = Batch(x=records, y=labels, ids=torch.arange(len(records), device=records.device), domain=self.domain)
        crossed = record_rounds(self.edge, batch, batch_size=self.batch_size, seed=seed, passes=passes)
        return crossed.views, crossed.members[: len(crossed.members) // passes]

    def contained(self, records: Tensor, apart: Tensor, passes: int, seed: int) -> Tensor:
        """The part of `apart` (guesses minus records, [N, ...]) that the release reveals: for images a projection, for
        texts the released words. Table rows are returned whole."""
        if isinstance(self.domain, Tables):
            return apart
        shape, texts = (-1, self.edge.lowers.copies, self.batch_size), isinstance(self.domain, Tokens)
        center = 0 if texts else records.mean(0)
        rounds = (center + _INSIDE * (records - center)).unflatten(0, shape)
        wanted = torch.ones_like(apart) if texts else apart  # a word is in the release or not, whatever was guessed
        parts = []
        for number, (given, direction) in enumerate(zip(rounds, wanted.unflatten(0, shape), strict=True)):
            seen = direction
            # if one pass reveals the whole difference, further passes add nothing
            for often in dict.fromkeys((1, passes)):
                release = partial(self._released, often, len(rounds), derive(seed, number))
                seen = projected(release, given, direction)
                if (direction - seen).square().sum() <= _WHOLE * direction.square().sum():
                    break
            parts.append(seen)
        part = torch.stack(parts).flatten(0, 2)
        return torch.where(part > _HALF, apart, 0) if texts else part

    def _released(self, passes: int, rounds: int, seed: int, images: Tensor) -> Tensor:
        """The server's view, as one differentiable vector, of images [n, B, C, H, W] that are sent `passes` times.

        Texts are float [n, B, T]. The same records are sent again after `rounds` rounds.
        """
        edge, seen = self.edge, []
        draws = Generator(images.device).manual_seed(seed)
        labels = drawn_labels(images.shape[:2], edge.classes, draws)
        for number in range(0, passes * rounds, rounds):
            seen.append(answer_of(edge.release(images, labels, draws, number), number, edge).view.smashed.flatten())
        return torch.cat(seen)
