"""Adaptive inversion: combines several releases of the same images, then decodes the combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from privkit.attacks.assign import take
from privkit.attacks.base import NotApplicable, QueryResult, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs, divided
from privkit.attacks.inversion.augment import Augment
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.decoders import DecoderName, usual_decoder
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.mae import scaled_size
from privkit.attacks.inversion.decoders.unordered import SetDecoder
from privkit.attacks.inversion.known_lower import without_block
from privkit.attacks.inversion.mixed_releases import per_member
from privkit.attacks.inversion.recurrence import (
    INTERSECTED_TOKENS,
    copy_distance,
    intersected,
    keeps_places,
    keeps_rows,
    meetings,
    most_visited,
    pooled,
    tracked,
)
from privkit.attacks.inversion.rounds import averaged_passes, by_round, in_order, masked, unmasked
from privkit.attacks.inversion.unmix import found_among
from privkit.attacks.order.own_tokens import OwnTokens, checked_geometry, own_tokens
from privkit.attacks.order.token_reading import AffineMap, rows_a_message
from privkit.attacks.patches import Geometry, patch_tokens, unpatchify
from privkit.attacks.search_space import Untuned
from privkit.constraints import Whole
from privkit.torch_utils.seeded import seeded

Combine = Literal["auto", "average", "concatenate", "pool", "intersect", "as_released"]
_TRIED = 8  # messages of the adversary's images from which the distance between copies of a token is estimated
_SCALED = ("mae", "set", "message")  # decoders whose default width would grow with the combined channels
_RIDGE = 1e-4
# least explained share of the variance of mean patches: .93 or more with right patches, .35 for a spectral shuffle
_SHOWN = 0.8
_KNOWN = 1_000  # most of the adversary's images from which the decoder's first map is fitted


@dataclass(frozen=True, kw_only=True)
class Adaptive(ReconstructingAttack):
    """Combine several releases of the same images, and decode them with a decoder trained on combined releases.

    A pass is one sending of all images. The lower segment (the clients' part of the network) is the same in all passes,
    and the defense draws fresh random numbers in each. A message is a batch of images sent at once, with one released
    row for each image. The decoder is trained on the adversary's images, which are sent and combined in the same way as
    the attacked images ("victims"). We assume that the server knows which rows of different passes hold the same image
    and, for "intersect", that these rows are in the same messages. So the attack is at least as strong as that of an
    adversary who must link the rows first.

    If tokens are pooled or intersected, the adversary first reads the tokens of its own images by chosen queries
    (`own_tokens`). Then it shuffles these tokens itself instead of sending messages, and the decoder starts with the
    map from tokens to patches. If tokens cannot be read, if `read` is 0 or if images are augmented, the adversary sends
    its messages anew in each epoch. The result's note says whether tokens were read. A public block that clients run
    after the defense is undone first.

    Attributes:
        passes: number R ≥ 2 of passes; the recorded rounds come pass after pass.
        combine: how to combine passes. "average": the mean, in which noise shrinks by √R; tokens without a fixed
            position are first matched with their copies. "concatenate": joined on the channel axis, as in the paper.
            "pool": the T tokens of a row that recur most, each averaged over its copies. "intersect": like "pool", but
            all rows of a message compete for the message's tokens. "as_released": see below. "auto": "average" if the
            adversary's images return with their tokens in position or with public masks; otherwise "pool" if rows
            contain the same tokens in each pass, or if a message is too large for "intersect"; otherwise "intersect".
        decoder: network that maps combined releases to images, a name as in `BlackBox`. None means "set" if tokens are
            matched, pooled or intersected, and otherwise the default of `BlackBox`.
        epochs: number ≥ 0 of epochs over the adversary's images. None leaves it to an audit's budget; `run` needs a
            number.
        doublings: largest number of times that the epochs are doubled, as long as this lowers the error on held-out
            images by more than 5 %; None trains in one learning-rate cycle.
        augment: changes of the adversary's images in training: "none", "crop" (random shifts) or "crop_flip" (also
            horizontal flips).
        align: whether "average" matches tokens with their copies; None decides by a trial on the adversary's images.
        read: largest number ≥ 0 of the adversary's images whose tokens are read by queries; None for all. If a shuffle
            mixes the images of a message, reading an image takes at least one message.

    "as_released" is the loop of the authors' repository: each of 30 rounds shuffles the previous round's output, and
    all outputs are concatenated. Here the adversary itself permutes the tokens of the first pass repeatedly, both for
    its own images and for victims. For patch shuffling this gives the same distribution as the authors' loop; for batch
    shuffling their loop would also mix images further. This loop uses only one release, so it says nothing about
    several rounds.

    If masks are public (cutout), "average" takes each position from the passes that kept it, and "concatenate" gives
    the masks to the decoder as channels. The other combinations match whole rows and do not support masks. Passes of
    table rows are averaged, and decoded as `BlackBox` decodes table rows.

    Source: Yao et al., patch shuffling, Eq. 5 and §V-B.3; pooling and intersection are privkit's.
    """

    name: ClassVar[str] = "adaptive"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    passes: Annotated[int, Ge(2), "black_box attacks a single one"] = 8
    combine: Combine = "auto"
    decoder: DecoderName | None = None
    epochs: Whole | None = None
    doublings: Whole | None = 0
    augment: Augment = "none"
    align: Annotated[bool, Untuned()] | None = None
    read: Whole | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.align is not None and self.combine not in ("auto", "average"):
            raise ValueError(f"align belongs to combine=average, got combine={self.combine}; leave it out")

    @property
    def mounting(self) -> ImageMounting:
        undoes = frozenset({"masks", "permutes"})
        kinds = ("images", "tables")
        return replace(mounted(self, doublings=None), passes=self.passes, domains=kinds, undoes=undoes)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_inputs(self, observation)
        if observation.columns:
            return self._of_table_rows(observation, generator, session)
        observation, undone = without_block(observation)
        views = observation.views
        rounds, query, device = by_round(views, self.passes), given(observation.query), views[0].smashed.device
        own, held_out = divided(observation, device)
        size = observation.batch_size
        if own is None or held_out is None:
            raise NotApplicable(
                f"adaptive trains on messages as large as the victim's ({size} images) and holds one out: it needs at "
                f"least {2 * size} auxiliary images"
            )
        root, coins, module = torch.randint(2**48, (3,), generator=generator).tolist()
        draws = Generator(device).manual_seed(root)
        tried = own[: min(_TRIED, len(own) // size) * size].split(size)
        with seeded(device, module), torch.no_grad():
            plan = self._plan(*([in_order(query(part, draws), size, self.name) for part in tried] for _ in range(2)))
        combined = [plan.view(same, Generator(device).manual_seed(coins + i)) for i, same in enumerate(rounds)]

        def asked(images: Tensor, draws: Generator) -> QueryResult:
            answers = [in_order(query(images, draws), len(images), self.name) for _ in range(self.passes)]
            return QueryResult.row_by_row(plan.view(answers, draws))

        placed = plan.places or plan.combine in ("concatenate", "as_released")
        name: DecoderName = self.decoder or (usual_decoder(views[0].smashed) if placed else "set")
        form = views[0].smashed.shape
        width, depth = scaled_size(form[2 if len(form) == 3 else 1]) if len(form) > 2 else (None, None)
        attack = BlackBox(
            decoder=name,
            epochs=self.epochs,
            doublings=self.doublings,
            augment=self.augment,
            width=width if name in _SCALED else None,
            depth=depth if name == "mae" else None,
        )
        second = replace(observation, views=combined, query=asked)
        simulated, way = self._simulated(observation, plan, 2 * len(tried), Generator(device).manual_seed(coins - 1))
        note = "; ".join(filter(None, (undone, way)))
        if simulated is None:
            return replace(attack.run(second, generator, session), note=note)
        known = simulated.known(Generator(device).manual_seed(coins - 2))

        def begin(decoder: Decoder) -> None:
            if isinstance(decoder, SetDecoder):
                decoder.know(*known)

        views = [simulated.view(same) or view for same, view in zip(rounds, combined, strict=True)]
        second = replace(second, views=views, query=simulated, auxiliary=simulated.images, auxiliary_labels=None)
        return replace(attack.begun(second, generator, session, begin), note=note)

    def _of_table_rows(
        self, observation: ImageObservation, generator: Generator, session: Session | None
    ) -> Reconstruction:
        if self.combine not in ("auto", "average") or self.decoder or self.augment != "none" or self.align:
            raise NotApplicable("adaptive averages passes of table rows: leave out combine, decoder, augment and align")
        attack = BlackBox(epochs=self.epochs, doublings=self.doublings)
        return attack.run(averaged_passes(observation, self.passes, self.name), generator, session)

    def _simulated(
        self, observation: ImageObservation, plan: _Plan, asked: int, draws: Generator
    ) -> tuple[SimulatedPasses | None, str]:
        """Build `SimulatedPasses` to replace queries, or None if this is impossible; and a note for the result."""
        if not plan.simulable or self.read == 0 or not self.epochs or self.augment != "none":
            return None, ""
        try:
            own, geometry = _read(observation, draws, self.read, asked)
        except NotApplicable as refusal:
            why = f"since their tokens cannot be read: {refusal}"
            return None, f"the adversary's own messages were sent anew in each epoch, {why}"
        size, pool = rows_a_message(observation.views[0]), plan.combine == "pool"
        found = SimulatedPasses(
            own=own, geometry=geometry, passes=self.passes, size=size, copies=plan.copies, pool=pool
        )
        return found, f"tokens of {len(found.images):,} own images were read, and shuffled again without a query"

    def _plan(self, once: list[View], again: list[View]) -> _Plan:
        matches = self.combine not in ("auto", "average", "concatenate")
        in_place = _Plan(combine="average" if self.combine == "auto" else self.combine, copies=1.0, places=True)
        if masked([*once, *again]):
            if matches or self.align:
                way = "align=True" if self.align else f"combine={self.combine}"
                raise NotApplicable(f"{way} matches whole rows of tokens, and each pass masks others: take average")
            return in_place
        if once[0].smashed.ndim == 2:
            if matches:
                raise NotApplicable(f"combine={self.combine} matches tokens, but the release is vectors")
            return in_place
        first, second = (torch.cat([patch_tokens(view.smashed).float() for view in views]) for views in (once, again))
        messages = sum(view.messages for view in once)
        size = first.shape[0] // messages * first.shape[1]
        if size > INTERSECTED_TOKENS and self.combine == "intersect":
            raise NotApplicable(
                f"intersect compares all pairs of a message's tokens, of which there may be {INTERSECTED_TOKENS:,}, "
                f"but a message has {size:,}: take smaller messages, or combine=pool"
            )
        copies = copy_distance(_messages(first, messages), _messages(second, messages))
        rows = keeps_rows(first, second, copies)
        combine, stay = self.combine, keeps_places(first, second)
        places = stay if self.align is None else not self.align
        if combine == "auto":
            pools = rows or size > INTERSECTED_TOKENS
            combine = "average" if places or self.align else "pool" if pools else "intersect"
        return _Plan(
            combine=combine,
            copies=copy_distance(first, second) if rows else copies,  # more groups for the estimate
            places=places and combine == "average",
            simulable=not stay and (combine == "intersect" or (combine == "pool" and rows)),
        )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    combine: Combine  # never "auto"
    copies: float  # mean squared distance > 0 between two noisy copies of one token
    places: bool  # whether tokens are averaged position by position, without matching
    simulable: bool = False  # whether passes can be simulated from known tokens, without queries

    def view(self, same: Sequence[View], coins: Generator) -> View:
        number, messages = same[0].round, same[0].messages
        if self.combine == "average" and masked(same):
            smashed, weights = unmasked(same)
            return View(round=number, smashed=smashed, messages=messages, weights=weights)
        return View(round=number, smashed=self._combined(same, coins), messages=messages)

    @torch.no_grad()
    def _combined(self, same: Sequence[View], coins: Generator) -> Tensor:
        if self.places and self.combine == "average":
            return torch.stack([view.smashed for view in same]).mean(0)
        if self.combine == "concatenate":
            return torch.cat([per_member(view) for view in same], 2 if same[0].smashed.ndim == 3 else 1)
        passes = torch.stack([patch_tokens(view.smashed).float() for view in same])
        if self.combine == "as_released":
            return _permuted_again(passes[0], len(passes), coins)
        if self.combine == "average":
            return tracked(passes, self.copies)[0]
        if self.combine == "pool":
            tokens, certain = pooled(passes, self.copies)
        else:
            messages = torch.stack([_messages(x, same[0].messages) for x in passes])
            intersection = intersected(messages, passes.shape[1] // same[0].messages, self.copies)
            tokens, certain = intersection.tokens, intersection.support
        return torch.cat([tokens, certain.unsqueeze(2)], 2)


def _messages(tokens: Tensor, messages: int) -> Tensor:
    return tokens.reshape(messages, -1, tokens.shape[2])


def _permuted_again(tokens: Tensor, rounds: int, coins: Generator) -> Tensor:
    """Permute the tokens of each row R − 1 times in succession, and join the R results as channels, [N, T, R·D]."""
    permuted = [tokens]
    for _ in range(rounds - 1):
        order = torch.rand(tokens.shape[:2], generator=coins, device=tokens.device).argsort(1)
        permuted.append(take(permuted[-1], order))
    return torch.cat(permuted, 2)


@dataclass(frozen=True, kw_only=True)
class SimulatedPasses:
    """Answers queries by simulation: shuffles tokens read from the adversary's images, and combines the passes.

    It satisfies `privkit.attacks.base.Query`. Without noise, a shuffle returns the same tokens in every pass, in other
    rows. So the simulation only draws the row of each token in each pass. It knows which token it put there, and need
    not match the tokens of different passes.
    """

    own: OwnTokens  # tokens read from the adversary's images, with their patches
    geometry: Geometry  # layout of the patches in an image
    passes: int  # number of passes, ≥ 1
    size: int  # number B of rows in a message
    copies: float  # mean squared distance > 0 between two noisy copies of one token
    pool: bool  # whether each row keeps its tokens, so that one pass has all of them; if not, passes are intersected

    @cached_property
    def images(self) -> Tensor:
        return unpatchify(self.own.patches, self.geometry.patch, self.geometry.image_shape)

    def __call__(self, images: Tensor, draws: Generator) -> QueryResult:
        """Simulate images' combined release, [N, T, D + 1]; the last channel is the share of passes with a token."""
        rows, _ = self.released(found_among(self.images, images), draws)
        return QueryResult.row_by_row(View(round=0, smashed=rows, messages=len(images) // self.size))

    def view(self, same: Sequence[View]) -> View | None:
        """Put the attacked images' first pass into the form of simulated releases; None if passes are intersected."""
        if not self.pool:
            return None
        tokens = patch_tokens(same[0].smashed).float()
        smashed = torch.cat([tokens, tokens.new_ones(*tokens.shape[:2], 1)], 2)
        return View(round=same[0].round, smashed=smashed, messages=same[0].messages)

    def known(self, draws: Generator) -> tuple[Tensor, Tensor]:
        """Simulate releases of up to 1,000 of the adversary's images (at least a message); see `released`."""
        messages = max(1, min(_KNOWN, len(self.own.tokens)) // self.size)
        return self.released(torch.arange(messages * self.size), draws)

    def released(self, rows: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        """Simulate releases [N, T, D + 1] of images (indices `rows` [N]); also return each token's patch, [N, T, P]."""
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
        """Simulate `tracked`: each token's mean over its copies, and the share of passes in which each row held it."""
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


def _read(
    observation: ImageObservation, draws: Generator, images: int | None, asked: int
) -> tuple[OwnTokens, Geometry]:
    """Read the tokens of the adversary's images by queries, after `asked` other rounds; also return the patch layout.

    Raises `NotApplicable` if tokens cannot be read, are too few for training, or seem to be assigned to wrong patches.
    """
    view, least = observation.views[0], 2 * observation.batch_size
    geometry = checked_geometry(observation, "reading own tokens")
    most = len(given(observation.auxiliary)) if images is None else images
    own = own_tokens(view, observation, geometry, draws, most, asked=asked)
    if len(own.tokens) < least:
        raise NotApplicable(
            f"the tokens of only {len(own.tokens)} own images could be read within the rules of the threat model, and "
            f"training needs "
            f"{least}"
        )
    if (shown := _explained_variance(own)) < _SHOWN:
        raise NotApplicable(
            f"a linear map of own tokens explains {100 * max(0.0, shown):.0f} % of the variance of their mean "
            "patches, so tokens may be assigned to wrong patches"
        )
    return own, geometry


def _explained_variance(own: OwnTokens) -> float:
    """Return the share ≤ 1 of the variance of images' mean patches that a linear map from tokens to patches explains.

    A small share indicates that tokens were assigned to wrong patches. The map is fitted to the tokens of half of the
    images and their supposed patches. The map is tested on the mean patch of each other image, which does not depend on
    the order of tokens.
    """
    half = len(own.tokens) // 2
    patches = own.patches[half:].mean(1)
    wrong = AffineMap.fit(own.tokens[:half], own.patches[:half], _RIDGE)(own.tokens[half:]).mean(1) - patches
    return 1 - float(wrong.square().sum() / (patches - patches.mean(0)).square().sum().clamp_min(1e-12))
