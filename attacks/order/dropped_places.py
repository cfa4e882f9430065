"""Finds the places of tokens in releases from which tokens were dropped, by each place's distribution of tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import cheapest_in_order, distances, take
from privkit.attacks.base import NotApplicable, Query, View
from privkit.attacks.order.followed_tokens import PlaceLaws
from privkit.attacks.patches import as_tokens

_IMAGES = 500  # largest number of the adversary's images whose tokens are collected
_RELEASES = 96  # largest number of releases of each image
_TOKENS = 1_024  # largest number of tokens of all releases of an image: all pairs are compared
_SAME = 1e-4  # share of the mean squared distance of two tokens; below this distance, they are copies of one token
_LARGE = 0.9  # quantile over images of the number of found tokens: it is taken as the number of an image's tokens
_LEAST = 0.1  # least share of images for which all tokens must be found
# total number of principal components over all places' distributions, and least number for each place
_COMPONENTS, _FEWEST = 2_048, 16
_NEW = 0.5  # largest share of tokens that may occur for the first time
_CONTRADICTED = 0.01  # largest share of pairs of tokens that may come in both orders


def dropped_places(query: Query, own: Tensor, batch: int, draws: Generator) -> Callable[[View], tuple[Tensor, Tensor]]:
    """Learn each place's token distribution, to find the places of tokens in releases from which tokens were dropped.

    A token has the same numbers in every release of its image. So several releases of an image reveal all of its
    tokens, and the order of any two. The attack queries up to 96 releases of about 500 images of `own`, in rounds of
    `batch` images. The tokens of a released row keep their order, and get the likeliest places in this order.

    Returns a function from a view with L tokens per row, [N, L, D], to the tokens in their T places, [N, T, D], and
    bool [N, T]: whether a place has a token. Raises `NotApplicable` if more than half of the returned tokens come for
    the first time, if tokens come in different orders, if too few images show all T tokens, or if rows mix images.
    """
    some = own[: max(batch, _IMAGES // batch * batch)]
    sets = [_sets(query, images, draws) for images in some.split(batch)]
    sizes = torch.cat([one for _, one in sets])
    count = int(sizes.float().quantile(_LARGE, interpolation="lower"))
    whole = torch.cat([tokens[size == count, :count] for tokens, size in sets if tokens.shape[1] >= count])
    if len(whole) < max(2, _LEAST * len(some)):
        raise NotApplicable(f"only {len(whole)} of {len(some)} own images kept all {count} tokens: too few are left")
    laws = PlaceLaws.fit(whole, max(_FEWEST, _COMPONENTS // count))

    def located(view: View) -> tuple[Tensor, Tensor]:
        tokens = as_tokens(view.smashed).float()
        if tokens.shape[1] > count:
            raise NotApplicable(f"a row holds {tokens.shape[1]} tokens, own images have {count}")
        places = cheapest_in_order(laws.costs(tokens))
        rows = tokens.new_zeros(len(tokens), count, tokens.shape[2])
        rows.scatter_(1, places.unsqueeze(2).expand_as(tokens), tokens)
        return rows, torch.zeros_like(rows[..., 0]).scatter_(1, places, 1.0).bool()

    return located


def _sets(query: Query, images: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """The distinct tokens of each image in their order, padded to [N, m, D], and their number, int64 [N]."""
    releases = [_released(query, images, draws)]
    length = releases[0].shape[1]
    releases += [_released(query, images, draws) for _ in range(min(_RELEASES, max(2, _TOKENS // length)) - 1)]
    crossed = torch.cat(releases, 1)
    away = crossed - crossed.mean((0, 1))  # what all tokens share would drown their differences
    apart = distances(away, away)
    first = (apart <= _SAME * apart.mean((1, 2), keepdim=True)).int().argmax(2)  # where a token came first
    new = first == torch.arange(crossed.shape[1], device=first.device)
    sizes = new.sum(1)
    if float(new.float().mean()) > _NEW:
        raise NotApplicable(
            f"{100 * float(new.float().mean()):.0f} % of the tokens in {len(releases)} releases of own images were "
            f"new: noise was added, tokens depend on the other images of their batch, or too few are left of each image"
        )
    name = (new.cumsum(1) - 1).gather(1, first).unflatten(1, (-1, length))  # [N, R, L] in 0..m-1
    here = nn.functional.one_hot(name, int(sizes.max())).float()  # [N, R, L, m]
    later = here.flip(2).cumsum(2).flip(2) - here
    before = torch.einsum("nrlm,nrlk->nmk", here, later) > 0
    both = (before & before.transpose(1, 2)).float().sum() / before.float().sum().clamp_min(1)
    if both > _CONTRADICTED:
        raise NotApplicable(
            f"{100 * float(both):.0f} % of the pairs of own tokens came in both orders, so the order of tokens does "
            f"not show their places: take union, or black_box, whose mask tokens need no places"
        )
    for _ in range(ceil(log2(max(2, before.shape[1])))):
        before |= (before.float() @ before.float()) > 0
    behind = torch.arange(before.shape[1], device=sizes.device) >= sizes.unsqueeze(1)
    rank = (before.sum(1) - before.sum(2)).masked_fill(behind, before.shape[1])
    at = (~new).int().argsort(dim=1, stable=True)[:, : before.shape[1]]  # where the tokens with names 0..m-1 are
    return take(take(crossed, at), rank.argsort(dim=1, stable=True)), sizes


def _released(query: Query, images: Tensor, draws: Generator) -> Tensor:
    answer = query(images, draws)
    if answer.view.mixed > 1:
        raise NotApplicable("each row holds tokens of several images, and some tokens are missing: take union")
    return as_tokens(answer.view.smashed).float()[answer.row_of_each(len(images), "seen_tokens")]
