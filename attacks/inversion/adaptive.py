"""Adaptive inversion: what crossed in several passes of the same images is put together before it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, Session, View
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.decoders import Decoder, DecoderName
from privkit.attacks.inversion.decoders.mae import scaled_size
from privkit.attacks.inversion.decoders.unordered import SetDecoder
from privkit.attacks.inversion.intersection import INTERSECTED_TOKENS, intersected
from privkit.attacks.inversion.mixed_releases import per_member
from privkit.attacks.inversion.own_images import divided
from privkit.attacks.inversion.recurrence import copy_distance, keeps_places, keeps_rows, pooled, tracked
from privkit.attacks.inversion.rounds import by_round, masked, unmasked
from privkit.attacks.inversion.simulated_passes import SimulatedPasses
from privkit.attacks.patches import patch_tokens
from privkit.attacks.search_space import Untuned
from privkit.constraints import Checked, Whole
from privkit.torch_utils.seeded import seeded

Combine = Literal["auto", "average", "concatenate", "pool", "intersect", "as_released"]
_TRIED = 8  # messages of own images that the distance of copies is learned from
_SCALED = ("mae", "set", "message")  # decoders whose natural width would grow with the combined channels


@dataclass(frozen=True, kw_only=True)
class Adaptive(Checked):
    """Several releases of the same victims, combined, and a decoder trained on own images combined likewise.

    It assumes that the server can tell which rows of different passes are the same image, and, for "intersect", that
    they travel in the same messages: an upper bound for an adversary who has to link them first. The lower segment is
    the same in all passes, as a frozen one is; the defense draws anew in each.

    If tokens are pooled or intersected, the adversary first reads those of its own images by chosen queries
    (`own_tokens`). Then it shuffles them itself and sends no own message R times, and the decoder starts with the map
    from tokens to patches. If tokens cannot be read, own messages are sent anew in each epoch; the row says which.

    Attributes:
        passes: R ≥ 2, how often the same victims crossed; views come pass after pass.
        combine: "average" (noise of R passes shrinks by √R; tokens without a fixed place are first matched with their
            copies), "concatenate" (on the channel axis, as the paper says), "pool" (of all tokens that a row ever held,
            the T that recur most, each averaged over its copies), "intersect" (the same with all rows of a message
            competing for its tokens), "as_released" (below), or "auto": "average" where own images come back with their
            tokens in place or masked by public coins, else "pool" where rows bring the same tokens again or a message
            has more tokens than can be intersected, else "intersect".
        decoder: of `BlackBox`; None for "mae" where tokens have places or are concatenated, and "set" elsewhere.
        epochs: passes over the auxiliary images, ≥ 0; None takes the budget's.
        doublings: as in `BlackBox`.
        augment: as in `BlackBox`.
        align: whether "average" matches tokens first; None tries it on own images.
        read: own images at most whose tokens are read one message each, if a shuffle mixes a message's images; None for
            all, 0 for none.

    "as_released" is the loop of the authors' repository, by name: there, each of 30 rounds shuffles the previous
    round's output, and all are concatenated. Views hold no shuffle of a shuffle, and a query takes images; so the
    adversary permutes the tokens of the first pass again and again by itself, for own images and victims alike. Of
    patch shuffling that is the authors' very distribution; their batch shuffling would also mix rows further. Whatever
    it gives is no evidence on several rounds: all of it is computed from one release and the adversary's own coins.

    Where masks are public (cutout), "average" takes each cell from the passes that kept it, and "concatenate" hands on
    the masks as channels; the others match whole rows and refuse.

    Source: Yao et al., patch shuffling, Eq. 5 and §V-B.3; pooling and intersection are privkit's.
    """

    name: ClassVar[str] = "adaptive"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    passes: Annotated[int, Ge(2), "black_box attacks a single one"] = 8
    combine: Combine = "auto"
    decoder: DecoderName | None = None
    epochs: Whole | None = None
    doublings: Whole | None = 0
    augment: Literal["none", "crop", "crop_flip"] = "none"
    align: Annotated[bool, Untuned()] | None = None
    read: Whole | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.align is not None and self.combine not in ("auto", "average"):
            raise ValueError(f"align is about combine=average, got combine={self.combine}; leave it out")

    @property
    def mounting(self) -> ImageMounting:
        """The passes that it puts together, and otherwise as `BlackBox`."""
        undoes = frozenset({"masks", "permutes"})
        return replace(mounted(self, doublings=None), passes=self.passes, undoes=undoes)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Combine the passes, train the decoder on own images combined likewise, and decode the rows of one pass.

        >>> from privkit.attacks.patches import patchify
        >>> def query(images: Tensor, draws: Generator) -> QueryResult:
        ...     tokens = patchify(images, 2)[:, torch.randperm(16, generator=draws)]
        ...     return QueryResult(view=View(round=0, smashed=tokens), members=torch.arange(len(images)).unsqueeze(1))
        >>> victims, draws = torch.rand(10, 1, 8, 8), torch.Generator().manual_seed(0)
        >>> views = [query(victims, draws).view for _ in range(2)]
        >>> observation = ImageObservation(
        ...     views=views, image_shape=(1, 8, 8), batch_size=10, auxiliary=torch.rand(40, 1, 8, 8), query=query
        ... )
        >>> Adaptive(passes=2, epochs=1).run(observation, torch.Generator().manual_seed(0)).images.shape
        torch.Size([10, 1, 8, 8])
        """
        views = observation.views
        check(self, observation)
        assert observation.query is not None
        rounds, query, device = by_round(views, self.passes), observation.query, views[0].smashed.device
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
            plan = self._plan(*([_in_order(query(part, draws), size) for part in tried] for _ in range(2)))
        combined = [plan.view(same, Generator(device).manual_seed(coins + i)) for i, same in enumerate(rounds)]

        def asked(images: Tensor, draws: Generator) -> QueryResult:
            answers = [_in_order(query(images, draws), len(images)) for _ in range(self.passes)]
            return QueryResult(
                view=plan.view(answers, draws), members=torch.arange(len(images), device=device).unsqueeze(1)
            )

        name: DecoderName = self.decoder or (
            "mae" if plan.places or plan.combine in ("concatenate", "as_released") else "set"
        )
        channels = views[0].smashed.shape[2 if views[0].smashed.ndim == 3 else 1]
        attack = BlackBox(
            decoder=name,
            epochs=self.epochs,
            doublings=self.doublings,
            augment=self.augment,
            width=scaled_size(channels)[0] if name in _SCALED else None,
            depth=scaled_size(channels)[1] if name == "mae" else None,
        )
        second = replace(observation, views=combined, query=asked)
        simulated, note = self._simulated(observation, plan, 2 * len(tried), Generator(device).manual_seed(coins - 1))
        if simulated is None:
            return replace(attack.run(second, generator, session), note=note)
        known = simulated.known(Generator(device).manual_seed(coins - 2))

        def begin(decoder: Decoder) -> None:
            if isinstance(decoder, SetDecoder):
                decoder.know(*known)

        views = [simulated.view(same) or view for same, view in zip(rounds, combined, strict=True)]
        second = replace(second, views=views, query=simulated, auxiliary=simulated.images, auxiliary_labels=None)
        return replace(attack.begun(second, generator, session, begin), note=note)

    def _simulated(
        self, observation: ImageObservation, plan: _Plan, asked: int, draws: Generator
    ) -> tuple[SimulatedPasses | None, str]:
        """Passes that need no query, after `asked` rounds of them, or None; and a sentence on the way that is taken."""
        if not plan.simulable or self.read == 0 or not self.epochs or self.augment != "none":
            return None, ""
        pool = plan.combine == "pool"
        try:
            found = SimulatedPasses.of(
                observation, draws, self.read, asked=asked, passes=self.passes, copies=plan.copies, pool=pool
            )
        except NotApplicable as refusal:
            return None, f"own messages were sent anew in each epoch, since their tokens cannot be read: {refusal}"
        return found, f"tokens of {len(found.images):,} own images were read, and shuffled again without a query"

    def _plan(self, once: list[View], again: list[View]) -> _Plan:
        """How to combine, from messages of own images that were sent twice."""
        if masked([*once, *again]):
            if self.combine not in ("auto", "average", "concatenate") or self.align:
                way = "align=True" if self.align else f"combine={self.combine}"
                raise NotApplicable(f"{way} matches whole rows of tokens, but each pass masks others: take average")
            return _Plan(combine="average" if self.combine == "auto" else self.combine, copies=1.0, places=True)
        if once[0].smashed.ndim == 2:
            if self.combine not in ("auto", "average", "concatenate"):
                raise NotApplicable(f"combine={self.combine} matches tokens, but the release is vectors")
            return _Plan(combine="average" if self.combine == "auto" else self.combine, copies=1.0, places=True)
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
            copies=copy_distance(first, second) if rows else copies,  # more groups to learn it from
            places=places and combine == "average",
            simulable=not stay and (combine == "intersect" or (combine == "pool" and rows)),
        )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How passes become one release.

    Attributes:
        combine: never "auto".
        copies: squared distance of a token's copies.
        places: whether tokens are averaged in the places where they came.
        simulable: whether own passes of tokens that are known can be put together likewise without being sent.
    """

    combine: Combine
    copies: float
    places: bool
    simulable: bool = False

    def view(self, same: Sequence[View], coins: Generator) -> View:
        """One view from all passes of one round."""
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
    """Rows [N, T, D] as messages [M, B·T, D]."""
    return tokens.reshape(messages, -1, tokens.shape[2])


def _in_order(answer: QueryResult, images: int) -> View:
    """The answer's view with its rows in the order of the images that were sent."""
    by_round([answer.view], 1)
    order = answer.members.flatten().argsort(stable=True)
    if len(order) != images or not bool((answer.members.flatten()[order].diff() == 1).all()):
        raise NotApplicable("adaptive needs a query that answers with one row for each image")
    weights = answer.view.weights
    return replace(answer.view, smashed=answer.view.smashed[order], weights=None if weights is None else weights[order])


def _permuted_again(tokens: Tensor, rounds: int, coins: Generator) -> Tensor:
    """Each round permutes the previous round's rows; all rounds on the channel axis, [N, T, R·D]."""
    n, t, d = tokens.shape
    permuted = [tokens]
    for _ in range(rounds - 1):
        order = torch.rand(n, t, generator=coins, device=tokens.device).argsort(1)
        permuted.append(permuted[-1].gather(1, order.unsqueeze(2).expand(-1, -1, d)))
    return torch.cat(permuted, 2)
