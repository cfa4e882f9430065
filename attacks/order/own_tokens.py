"""The tokens of the adversary's images, in order: from the lower segment, or from answers to queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import hungarian
from privkit.attacks.base import NotApplicable, View, given
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.recurrence import copy_distance, gathered, keeps_places
from privkit.attacks.order.approximate_reading import read_approximately
from privkit.attacks.order.in_place import in_place
from privkit.attacks.order.token_reading import (
    AffineMap,
    Asker,
    match_own_tokens,
    nearest,
    own_share,
    rows_a_message,
    same_tokens,
    token_scale,
)
from privkit.attacks.patches import Geometry, patch_tokens, patchify

OWN_NUMBERS = 2**29  # most numbers in own tokens and patches, 2 GiB in float32; further images are left out
MATCHED_TOKENS = 16_384  # most tokens of a message: a table of all its pairs then takes 1 GiB
_COPIES_ALIKE = 0.5  # least share of the adversary's images whose copies come back with the same tokens
OWN_ROUNDS = 2
"""Rounds that show which tokens a shuffle keeps in their row, if the lower segment is known."""
_NOISY = 1e-3  # share of the mean squared distance of two tokens; if copies lie farther apart, noise was added
_IN_ORDER = 0.8  # share of noisy tokens in their places above which the order counts as unchanged
_AS_GOOD = 1.001  # factor on the least error, up to which an order counts as best; with equal tokens, several are best
_UNEXPLAINED = 0.5  # unexplained share of the tokens' variance above which the best order is not trusted
_PENALTY = 1e-3  # penalty of squared coefficients of a map from patches to tokens
_SURE = 5.0  # least signal, in standard deviations of what noise alone would show
KEEPS_ALL = 0.97  # estimated share of kept tokens above which a shuffle counts as not mixing images


def checked_geometry(observation: ImageObservation, name: str = "jigsaw") -> Geometry:
    """The layout of tokens over images; raises `NotApplicable` if the attack `name` cannot solve their order."""
    views, auxiliary = observation.views, observation.auxiliary
    if auxiliary is None or (observation.lower is None and observation.query is None):
        raise NotApplicable(f"{name} needs auxiliary images, and the lower segment or a query to see their tokens")
    if any(view.mixed > 1 for view in views):
        raise NotApplicable(f"{name} puts whole tokens into their places, but each row is a mixture of several images")
    geometry = replace(Geometry.of(views[0].smashed, observation.image_shape), class_tokens=0)  # not a puzzle piece
    if geometry.tokens < 4 or geometry.patch < 2:
        raise NotApplicable(
            f"{name} needs at least 4 tokens of patches of at least 2 pixels per side, got {geometry.tokens} tokens of "
            f"{geometry.patch} pixels"
        )
    size = rows_a_message(views[0])
    least = max(2 * size, observation.batch_size if observation.query is not None else 0)
    if len(auxiliary) < least:
        raise NotApplicable(
            f"{name} learns from messages as large as the victim's ({size} images), and a query takes a whole round: "
            f"it needs at least {least} auxiliary images, got {len(auxiliary)}"
        )
    return geometry


@dataclass(frozen=True, kw_only=True)
class OwnTokens:
    """The adversary's knowledge about the tokens of its own images."""

    tokens: Tensor  # [N, T, D], in order
    patches: Tensor  # [N, T, P], the patch of each token
    keep: float  # share of tokens that a shuffle certainly keeps in their row
    in_order: bool  # whether tokens come back in their places, so no order must be solved
    # [N, T, D], the rows as they came back, if their tokens were matched with patches
    released: Tensor | None = None


@torch.no_grad()
def own_tokens(
    view: View,  # a view of the victims
    observation: ImageObservation,  # observation with the lower segment or a query, or both
    geometry: Geometry,  # the view's geometry
    draws: Generator,  # source of the clients' random draws in queries
    read: int,  # largest number of the adversary's images whose tokens are read from messages of copies
    # how many times the same victims were sent; `gathered` combines these releases before the order is solved. The
    # result's `keep` is then the share kept after this step, estimated from own images that are sent the same number
    # of times
    passes: int = 1,
    asked: int = 0,  # query rounds that the attack has sent before
    approximate: bool = False,  # whether tokens may be read approximately if they differ in each answer
) -> OwnTokens:
    """Get the tokens of the adversary's images in order: from the lower segment, or read by chosen queries.

    Raises `NotApplicable` if a message is too large, if tokens cannot be read, or if the lower segment's tokens have
    another shape than the released tokens.
    """
    auxiliary, masked = given(observation.auxiliary), view.weights is not None
    size, query, whole = rows_a_message(view), observation.query, observation.batch_size
    if query is not None and size * geometry.tokens > MATCHED_TOKENS:
        raise NotApplicable(
            f"all pairs of a message's tokens are compared, of which there may be {MATCHED_TOKENS:,}, but a message "
            f"has {size * geometry.tokens:,}: take smaller messages, or give the lower segment and no query"
        )
    whole = size if query is None else whole  # a query takes a round
    held = max(2 * whole, OWN_NUMBERS // (geometry.tokens * (geometry.token_dim + geometry.patch_dim)))
    images = auxiliary[: min(held, len(auxiliary)) // whole * whole].to(view.smashed.device)
    if observation.lower is None:
        asker = Asker(given(query), whole, draws, geometry, observation.rules, asked, observation.memory)
        return _queried_tokens(asker, images, geometry, read, passes, approximate, masked=masked)
    patches = patchify(images, geometry.patch)
    ordered = torch.cat([patch_tokens(observation.lower(part)).float() for part in images.split(size)])
    if ordered.shape[1:] != (geometry.tokens, geometry.token_dim):
        raise NotApplicable(
            f"the lower segment gives {list(ordered.shape[1:])} tokens, but the release is "
            f"{[geometry.tokens, geometry.token_dim]}"
        )
    if query is None or not observation.rules.allow(asked + 1):
        return OwnTokens(tokens=ordered, patches=patches, keep=1.0, in_order=False)
    asker = Asker(query, whole, draws, geometry, observation.rules, asked)
    some = images[: min(OWN_ROUNDS, asker.left) * whole]
    released = asker.images(some)
    gone = gone_tokens(released) if masked else released.new_zeros(()).bool()
    released = torch.where(gone, ordered[: len(released)], released)
    noise = noise_of(ordered[: len(released)], released, asker.rows)
    shares, filled = shares_kept(ordered[: len(released)], released, asker.rows, noise > 0), float(gone.float().mean())
    keep, placed = (max(0.0, (share - filled) / max(1 - filled, 1e-9)) for share in shares)
    again = min(passes - 1, asker.left // -(-len(some) // whole))
    if keep <= KEEPS_ALL and again:
        crossed = gathered([released, *(asker.images(some) for _ in range(again))], asker.rows)
        keep, _ = shares_kept(ordered[: len(released)], crossed.tokens, asker.rows, noise > 0)
    in_order = placed > (_IN_ORDER if noise else KEEPS_ALL)
    if noise:  # the victims' tokens have this noise, too
        ordered = ordered + noise**0.5 * torch.randn(ordered.shape, generator=draws, device=ordered.device)
    return OwnTokens(tokens=ordered, patches=patches, keep=keep, in_order=in_order)


def _queried_tokens(
    asker: Asker,
    images: Tensor,
    geometry: Geometry,
    read: int,
    passes: int,
    approximate: bool,
    masked: bool,  # whether public masks replace tokens by zeros
) -> OwnTokens:
    """Read the tokens of the adversary's images by queries; raises `NotApplicable` if they cannot be read."""
    whole = asker.whole
    once, again = asker.round(images[:whole]), asker.round(images[:whole])
    size, patches = asker.rows, patchify(images, geometry.patch)

    def as_released() -> OwnTokens:
        released = torch.cat([once, asker.images(images[whole:], asker.left)])
        return OwnTokens(tokens=released, patches=patches[: len(released)], keep=1.0, in_order=True)

    if masked and _stay_where_both_are(once, again):
        return as_released()
    same = bool(same_tokens(*(x.unflatten(0, (-1, size)).flatten(1, 2) for x in (once, again))).all())
    each = same and bool(same_tokens(*(x.flatten(0, 1).unsqueeze(1) for x in (once, again))).all())
    noise = 0.0 if same else noise_of(once, again, size) / 2
    if noise and _share(once, again, noise) > _IN_ORDER:
        return as_released()
    if each or (not same and keeps_places(once, again)):
        found = as_released()
        matched, share, placed = match_own_tokens(*(x.unflatten(0, (-1, size)) for x in (found.tokens, found.patches)))
        own, in_order = matched.flatten(0, 1), placed > KEEPS_ALL
        if each and not in_order and _in_places(found.tokens, found.patches, own):
            return found
        rows = None if in_order else found.tokens
        return replace(found, tokens=own, keep=own_row_share(share, size), in_order=in_order, released=rows)
    if not same and not approximate:
        raise NotApplicable(
            "own tokens are read by queries, but the same images sent twice gave different tokens: something other "
            "than the order is random; give the attack the lower segment"
        )
    if not same:
        near = read_approximately(asker, images, geometry, read, once, again)
        keep, ordered = own_row_share(near.share, size), near.tokens
        if passes > 1:
            keep, _ = shares_kept(ordered[:whole], _gathered(asker, (once, again), images[:whole], whole, passes), size)
        return OwnTokens(tokens=ordered, patches=near.patches, keep=keep, in_order=False)
    if same_tokens(once, again).all():
        of_rows = "tokens of rows", images, once, again
        ordered = asker.recalled(of_rows, lambda: _in_rows(asker, images, patches, geometry, once))
        return OwnTokens(tokens=ordered, patches=patches[: len(ordered)], keep=1.0, in_order=False)
    shared = asker.shared(min(max(size, read), len(images)))
    a_round = whole // size * shared
    asker.must_have(-(-size // a_round), "where a shuffle mixes the images of a message")
    first, images = images[:whole], images[: min(max(size, read), asker.left * a_round) // shared * shared]
    of_copies = "tokens of copies", images, patches, once, again
    ordered, alike = asker.recalled(of_copies, lambda: _unmixed(asker, images, patches, geometry, once, shared))
    patches = patches[: len(images)]
    known = min(whole, len(ordered) // size * size)
    crossed = torch.cat([once[:known], again[:known]])
    if passes > 1:
        crossed = _gathered(asker, (once, again), first, known, passes).repeat(2, 1, 1)
    keep, _ = shares_kept(ordered[:known].repeat(2, 1, 1), crossed, size)
    return OwnTokens(tokens=ordered[alike], patches=patches[alike], keep=keep, in_order=False)


def gone_tokens(tokens: Tensor) -> Tensor:
    """Whether each token [N, T, D] is all zeros, as behind a mask: bool [N, T, 1]."""
    return ~tokens.ne(0).any(2, keepdim=True)


def _stay_where_both_are(once: Tensor, again: Tensor) -> bool:
    """Whether tokens keep their places in two rounds of the same images, [N, T, D]; masked tokens are left out."""
    gone = gone_tokens(once) | gone_tokens(again)
    left = (~gone).sum(1, keepdim=True).clamp_min(1)
    one, two = (torch.where(gone, torch.where(gone, 0, x).sum(1, keepdim=True) / left, x) for x in (once, again))
    apart = one - one.mean(1, keepdim=True)
    if not bool(apart.square().sum() > 0):
        return False
    noise = float((one - two).square().sum()) / max(1, 2 * int((~gone).sum()) * once.shape[2])
    return _share(one, two, noise * float((~gone).float().mean())) > _IN_ORDER


def _in_places(released: Tensor, patches: Tensor, matched: Tensor) -> bool:
    """Whether released tokens [N, T, D] are in the places of their patches [N, T, P]; all images have the same order.

    The tokens that were `matched` with each patch give a map from patches to tokens, and with it the order that fits
    all images best. The tokens are in their places if patches explain them as well in the released order as in this
    best order. They also count as in place if even the best order explains less than half of the tokens' variance: then
    a patch does not tell where its token belongs.
    """
    scale = token_scale(released)
    one, two = ((x - x.mean(0)) / scale for x in (AffineMap.fit(patches, matched, _PENALTY)(patches), released))
    other = patches[:, hungarian(-torch.einsum("ntd,nsd->ts", one, two).unsqueeze(0))[0]]
    wrong = [
        float(((AffineMap.fit(sent, released, _PENALTY)(sent) - released) / scale).square().mean())
        for sent in (patches, other)
    ]
    away = (released - released.flatten(0, 1).mean(0)) / scale
    return wrong[0] <= _AS_GOOD * wrong[1] or wrong[1] > _UNEXPLAINED * float(away.square().mean())


def _in_rows(asker: Asker, images: Tensor, patches: Tensor, geometry: Geometry, once: Tensor) -> Tensor:
    """Tokens [N, T, D] in order, if they stay in their row; `once` is an answer to the first round of images."""
    rows = torch.cat([once, asker.images(images[asker.whole :], asker.left)])
    return in_place(rows, patches[: len(rows)], geometry)


def _unmixed(
    asker: Asker, images: Tensor, patches: Tensor, geometry: Geometry, once: Tensor, shared: int
) -> tuple[Tensor, Tensor]:
    """Tokens [N, T, D] in order, read from messages of copies; and whether the copies agreed, bool [N].

    `once` is an answer to one round of images; copies of `shared` images are in each message.
    """
    groups, alike = asker.unmixed(images, token_scale(once), shared)
    if alike.double().mean() < _COPIES_ALIKE:
        raise NotApplicable(
            "own tokens are read from messages of copies, but the copies of an image gave different tokens: a token "
            "depends on the other images of its message; give the attack the lower segment"
        )
    return in_place(groups, patches[: len(images)], geometry), alike.repeat_interleave(shared)


def _gathered(asker: Asker, two: tuple[Tensor, Tensor], first: Tensor, known: int, passes: int) -> Tensor:
    """Tokens [known, T, D] of the images `first`, combined over up to `passes` answers, of which `two` are given."""
    seen = [*two, *(asker.round(first) for _ in range(min(passes, asker.left + 2) - 2))]
    return gathered([tokens[:known] for tokens in seen], asker.rows).tokens


def noise_of(ordered: Tensor, released: Tensor, size: int) -> float:
    """The variance of the noise in each number of a token, from the same tokens without and with noise, [N, T, D].

    Their order within a message of `size` rows can differ. Noise as small as rounding gives 0.
    """
    copies = copy_distance(*(x.unflatten(0, (-1, size)).flatten(1, 2) for x in (ordered, released)))
    apart = 2 * float(ordered.flatten(0, 1).var(0, correction=0).sum())
    return copies / ordered.shape[2] if copies > _NOISY * apart else 0.0


def shares_kept(ordered: Tensor, released: Tensor, size: int, noisy: bool = False) -> tuple[float, float]:
    """Estimate the share of tokens that a shuffle certainly keeps in their row, and the share that it keeps in place.

    `ordered` [N, T, D] are the tokens without the defense, `released` [N, T, D] the tokens with it; `size` is the
    number of rows in a message. Noisy tokens cannot be matched one by one, so their shares are computed from
    covariances.
    """
    if noisy:
        means = (x.mean(1).unflatten(0, (-1, size)) for x in (ordered, released))
        return (_share(*means) if size > 1 else 1.0), _share(ordered, released)
    matches = nearest(*(x.unflatten(0, (-1, size)).flatten(1, 2) for x in (ordered, released)))
    return own_row_share(own_share(*matches, ordered.shape[1]), size), own_share(*matches, 1)


def _share(first: Tensor, second: Tensor, noise: float = 0.0) -> float:
    """Share in [0, 1] of the n rows of each of G groups that are in the same place in both releases, [G, n, D].

    All other rows are assumed to be in random places. The share is the slope of a regression of the second release on
    the first, whose numbers have noise of variance `noise`. It is 0 if the noise is too strong for an estimate.

    >>> rows = torch.rand(50, 8, 4, generator=Generator().manual_seed(0))
    >>> _share(rows, rows), _share(rows, torch.cat([rows[:, :4], rows[:, 4:].flip(1)], 1)) < 0.6
    (1.0, True)
    """
    one, two = (x - x.mean(1, keepdim=True) for x in (first, second))
    known = float(one.square().sum()) - noise * one.numel() * (1 - 1 / one.shape[1])
    if known <= max(1e-30, _SURE * noise * one.numel() ** 0.5):
        return 0.0
    return min(1.0, max(0.0, float((one * two).sum()) / known))


def own_row_share(own: float, batch: int) -> float:
    """The share k′ in [0, 1] of tokens that a batch shuffle certainly keeps in their image's row.

    The other tokens go to a random row of the B = `batch` ≥ 1 rows of a message. So the share `own` of tokens that are
    found in their image's row is k′ + (1 − k′)/B, which is solved for k′.

    Source: derived from patch shuffling's Algorithm 2 (k′ = ⌊kN⌋/N).
    """
    return min(1.0, max(0.0, (own - 1 / batch) / (1 - 1 / batch))) if batch > 1 else 1.0
