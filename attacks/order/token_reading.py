"""Reading own tokens by chosen queries: copies of one image come back unmixed, and repeated patches label their tokens.

A message of copies of one image holds each of its tokens as often as there are copies, wherever a shuffle dealt them.
An image in which one patch lies once, the next twice and so on names the token of each patch by how often it comes.
From these pairs follows what any patch looks like behind the cut, and so which token of an own image lies where.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import distances, hungarian, take
from privkit.attacks.base import NotApplicable, Query, QueryResult, View
from privkit.attacks.order.token_contents import Ridge, match_own_tokens
from privkit.attacks.patches import Geometry, patch_tokens, patchify, unpatchify
from privkit.attacks.query_rules import QueryRules

_ANY_NUMBER = 2**40
LABEL_IMAGES = 50  # images of repeated patches: twice as many were measured to place no token better
_CLOSE = 1e-3  # of a channel's standard deviation: two copies of a token, computed in another order
_LEAST_SPREAD = 1e-3  # of the widest channel's: narrower ones hold rounding
_DIRECTIONS = 4  # in which two lots of tokens are compared
_PLAIN = 0.5  # least share of copies that must come back alike, and of labels that must be found
_FITS = 3  # of the map from patches to tokens, on own images in the order of the fit before
_NUMBERS_AT_ONCE = 2**24  # of the tables of pairs, and of inputs of the map


def rows_a_message(view: View) -> int:
    """B, the rows of each of a view's messages; `NotApplicable` if they differ."""
    if view.messages < 1 or len(view.smashed) % view.messages:
        raise NotApplicable(f"{len(view.smashed)} rows are no {view.messages} messages of one size")
    return len(view.smashed) // view.messages


class Asker:
    """The query, round by round, within the threat model's rules.

    Attributes:
        rows: B, images of a message, as the last answer had them.
        left: rounds that may still be asked.
    """

    def __init__(
        self,
        query: Query,  # takes one round of images
        whole: int,  # images of a round
        draws: Generator,  # of the clients' coins
        geometry: Geometry,  # how patches lie over the image
        rules: QueryRules,  # of the threat model; if it forbids copies, they have their patches in other places
        asked: int = 0,  # rounds that the attack sent before
    ) -> None:
        self._query, self.whole, self._draws, self._geometry = query, whole, draws, geometry
        self._rules, self.rows = rules, whole
        self.left = _ANY_NUMBER if rules.rounds is None else max(0, rules.rounds - asked)

    def round(self, images: Tensor) -> Tensor:
        """Tokens [N, T, D] of patches that came back for one round of images, the rows in the order of the images.

        Raises:
            NotApplicable: if the answer has no row for each image.
        """
        answer = self._query(images, self._draws)
        self.left -= 1
        self.rows = rows_a_message(answer.view)
        return patch_tokens(answer.view.smashed).float()[_order(answer, len(images))]

    def must_have(self, rounds: int, why: str) -> None:
        """Refuse a threat model that allows too few rounds, by `NotApplicable` with the number that is needed."""
        if self.left < rounds:
            allowed = self._rules.rounds or 0
            raise NotApplicable(
                f"the threat model allows {allowed} rounds of own images, but {why} it takes at least "
                f"{allowed - self.left + rounds} to read their tokens: allow more, or choose another attack"
            )

    def images(self, images: Tensor, rounds: int | None = None) -> Tensor:
        """Rows [N, T, D] as they come back, of as many images as `rounds` take; the last round is filled up."""
        images = images if rounds is None else images[: rounds * self.whole]
        if not len(images):
            return images.new_empty(0, self._geometry.tokens, self._geometry.token_dim)
        sent = [self._uncopied(_filled(part, self.whole), len(part)) for part in images.split(self.whole)]
        return torch.cat([self.round(part) for part in sent])[: len(images)]

    def unmixed(self, images: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Each image's own tokens [N, T, D] in no order, from a message of its copies, and which came back alike, [N].

        Tokens lie along a line in a random direction: each one fills a run as long as there are copies. One round is
        held at a time. `scale` [D] is of the tokens' channels.
        """
        size, tokens, count = self.rows, self._geometry.tokens, self.whole // self.rows
        read = torch.empty(len(images), tokens, self._geometry.token_dim, device=images.device)  # small pieces that
        alike = torch.empty(len(images), dtype=torch.bool, device=images.device)  # stay would split up memory
        for part, own, same in zip(images.split(count), read.split(count), alike.split(count), strict=True):
            sent = self._uncopied(_filled(part, count).repeat_interleave(size, 0), 0)
            messages = self.round(sent).unflatten(0, (-1, size)).flatten(1, 2)[: len(part)]
            line = (messages / scale) @ _directions(messages, 1)
            runs = take(messages, line.squeeze(2).argsort(1)).unflatten(1, (tokens, size))
            own.copy_(runs[:, :, size // 2])
            same.copy_(_close((runs - own.unsqueeze(2)) / scale).all(2).all(1))
        return read, alike

    def _uncopied(self, images: Tensor, first: int) -> Tensor:
        """Images whose copies from row `first` on have their patches in other places, if copies are forbidden."""
        if self._rules.copies:
            return images
        return torch.cat([images[:first], _moved_patches(images[first:], self._geometry, self._draws)])


def same_tokens(first: Tensor, second: Tensor) -> Tensor:
    """Whether two lots [G, n, D] hold the same tokens in whatever order, bool [G].

    >>> tokens = torch.rand(2, 5, 3)
    >>> same_tokens(tokens, tokens.flip(1)).tolist(), same_tokens(tokens, tokens.flip(0)).tolist()
    ([True, True], [False, False])
    """
    scale = token_scale(first)
    along = _directions(first, _DIRECTIONS)
    one, two = (((x / scale) @ along).sort(1).values for x in (first, second))
    return (one - two).abs().amax((1, 2)).lt(_CLOSE * first.shape[2] ** 0.5)


def multiplicities(tokens: int) -> list[int]:
    """How often each patch of a label image is repeated: 1, 2, 3, …, the last one as often as fills the image.

    >>> multiplicities(16), multiplicities(49)[-2:], multiplicities(4)
    ([1, 2, 3, 4, 6], [8, 13], [1, 3])
    """
    several, left = [1], tokens - 1
    while left - (several[-1] + 1) > several[-1] + 1:
        several.append(several[-1] + 1)
        left -= several[-1]
    return [*several, left]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Tokens whose patch is known, from images of repeated patches."""

    patches: Tensor  # [L, K, P], the patches of each such image
    whole: Tensor  # [L, P], the mean patch of each image
    tokens: Tensor  # [L, K, D]
    sure: Tensor  # bool [L, K], whether exactly as many tokens came back alike as the patch was repeated


def label_images(patches: Tensor, geometry: Geometry, number: int, draws: Generator) -> tuple[Tensor, Tensor]:
    """Images [L, C, H, W] of repeated own patches [N, T, P], and these patches [L, K, P]; `number` is L ≥ 1."""
    several = torch.tensor(multiplicities(geometry.tokens), device=patches.device)
    every = patches.flatten(0, 1)
    spread = every.var(1)
    distinct = (spread >= spread.mean() / 10).nonzero().squeeze(1)
    rows = torch.randint(len(distinct), (number, len(several)), generator=draws, device=patches.device)
    chosen = every[distinct[rows]]
    return unpatchify(chosen.repeat_interleave(several, 1), geometry.patch, geometry.image_shape), chosen


def labelled(chosen: Tensor, rows: Tensor) -> Labels:
    """The token of each repeated patch [L, K, P], told by how often it came among tokens [L, T, D] in any order.

    >>> rows = torch.tensor([[7.0, 5.0, 7.0, 7.0]]).view(1, 4, 1)  # a patch once, another three times
    >>> labelled(torch.zeros(1, 2, 9), rows).tokens.flatten().tolist()
    [5.0, 7.0]
    """
    several = torch.tensor(multiplicities(rows.shape[1]), device=rows.device)
    scaled = rows / token_scale(rows)
    alike = torch.stack([_close(one.unsqueeze(0) - one.unsqueeze(1)) for one in scaled])
    fits = alike.sum(2).unsqueeze(1) == several.unsqueeze(1)  # [L, K, T]
    first = fits.int().argmax(2)
    tokens = rows.gather(1, first.unsqueeze(2).expand(-1, -1, rows.shape[2]))
    whole = (chosen * several.unsqueeze(1)).sum(1) / rows.shape[1]
    return Labels(patches=chosen, whole=whole, tokens=tokens, sure=fits.sum(2) == several)


def in_place(rows: Tensor, patches: Tensor, labels: Labels) -> Tensor:
    """Each own image's tokens [N, T, D], given in any order, in the order of its patches [N, T, P].

    An affine map from a patch and its image's mean patch to the token is fitted to the labels, then to the images in
    the order that it gives them. Without enough labels (a model may tell places apart) tokens are matched as
    `match_own_tokens` matches them.
    """
    if labels.sure.double().mean() < _PLAIN:
        return match_own_tokens(rows.unsqueeze(1), patches.unsqueeze(1))[0].squeeze(1)
    scale, seen = token_scale(rows), _with_mean(patches, patches.mean(1))
    known, ordered = _with_mean(labels.patches, labels.whole)[labels.sure], labels.tokens[labels.sure]
    some = max(1, _NUMBERS_AT_ONCE // (rows.shape[1] * max(rows.shape[1], seen.shape[2])))
    for _ in range(_FITS):
        forward, known = Ridge.fit(known, ordered), seen
        parts = zip(rows.split(some), seen.split(some), strict=True)
        ordered = torch.cat([take(row, hungarian(distances(row / scale, forward(x) / scale))) for row, x in parts])
    return ordered


def _with_mean(patches: Tensor, whole: Tensor) -> Tensor:
    return torch.cat([patches, whole.unsqueeze(1).expand_as(patches)], 2)


def _filled(images: Tensor, count: int) -> Tensor:
    return torch.cat([images, images[-1:].expand(count - len(images), *images.shape[1:])])


def _moved_patches(images: Tensor, geometry: Geometry, draws: Generator) -> Tensor:
    """Images with their patches in other places: tokens without positions are the same."""
    patches = patchify(images, geometry.patch)
    order = torch.rand(patches.shape[:2], generator=draws, device=images.device).argsort(1)
    return unpatchify(take(patches, order), geometry.patch, geometry.image_shape)


def _order(answer: QueryResult, images: int) -> Tensor:
    order = answer.members.flatten().argsort(stable=True)
    if len(order) != images or not torch.equal(answer.members.flatten()[order], torch.arange(images).to(order)):
        raise NotApplicable("own tokens are read from a query that answers with a row of tokens for each image")
    return order


def token_scale(tokens: Tensor) -> Tensor:
    """[D], the standard deviation of each channel."""
    spread = tokens.flatten(0, -2).std(0)
    return spread.clamp_min(max(_LEAST_SPREAD * float(spread.max()), torch.finfo(spread.dtype).tiny))


def _close(apart: Tensor) -> Tensor:
    """Whether scaled differences [..., D] are those of copies, bool [...]."""
    return apart.square().mean(-1).lt(_CLOSE**2)


def _directions(tokens: Tensor, number: int) -> Tensor:
    """Unit vectors [D, number] that depend on nothing."""
    drawn = torch.randn(tokens.shape[-1], number, generator=Generator().manual_seed(0))
    unit: Tensor = drawn / drawn.norm(dim=0)
    return unit.to(tokens.device)
