"""Find the adversary's tokens approximately by queries, if a token also depends on other images of its message.

This happens if a transformer block runs after a shuffle of whole messages. Then no token recurs with the same numbers,
but the answer holds one token for each sent patch. In a message of copies of one image, attention mixes mainly tokens
of this image, so they form one cluster ("heap") for each patch. `in_place` puts the heaps' centers in the order of the
patches. The pairs of center and patch train a decoder from a token to its patch and to the mean patch of its image.
Then messages of different images are sent. Their decoded tokens are matched with the sent patches, and the decoder is
fitted to the matches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.assign import distances, hungarian, take
from privkit.attacks.base import NotApplicable
from privkit.attacks.order.in_place import in_place
from privkit.attacks.order.token_reading import (
    AffineMap,
    Asker,
    nearest,
    own_share,
    token_scale,
)
from privkit.attacks.patches import Geometry, patchify

_COPIED_IMAGES = 100  # the adversary's images that are sent in messages of copies
_LEAST_ROUNDS = 40  # least number of query rounds; fewer identify too few patches
_RIDGE = 1e-4
_MATCHINGS = 3  # matchings by patches and images' mean patches; 3 more also use the mean of an image's tokens
_LEAST_ERROR = 1e-3  # least assumed squared error of the decoder, as a share of the variance of the decoded numbers
_SOUND = 0.5  # least share of the variance of own patches that decoded tokens must explain


@dataclass(frozen=True, kw_only=True)
class _ApproximateTokens:
    tokens: Tensor  # [N, T, D], in the order of the patches
    patches: Tensor  # [N, T, P]
    share: float  # share of the uniquely matched patches whose token came back in their image's row


def even_heaps(messages: Tensor, number: int) -> Tensor:
    """Cluster the tokens of each of M messages, [M, n, D], into H = `number` clusters of equal size.

    Returns the clusters' centers [M, H, D]. The token farthest from the mean and its nearest neighbors form the first
    cluster; the remaining tokens form the next clusters in the same way.
    """
    m, n, d = messages.shape
    left = messages.new_ones(m, n)
    centers = []
    for _ in range(number):
        middle = (left.unsqueeze(1) @ messages) / left.sum(1)[:, None, None]
        out = distances(messages, middle).squeeze(2).masked_fill(left == 0, -1).argmax(1)
        first = messages.gather(1, out[:, None, None].expand(-1, -1, d))
        near = distances(messages, first).squeeze(2).masked_fill(left == 0, torch.inf)
        heap = near.topk(n // number, 1, largest=False).indices
        centers.append(take(messages, heap).mean(1))
        left = left.scatter(1, heap, 0.0)
    return torch.stack(centers, 1)


@dataclass(frozen=True, kw_only=True)
class _Matcher:
    """Matches tokens with sent patches, by a decoder from a token to its patch and to means of its image."""

    decode: AffineMap
    error: Tensor  # [P + S], the root mean square error of each decoded number

    @classmethod
    def fit(cls, tokens: Tensor, sent: Tensor) -> _Matcher:
        """Fit the decoder to tokens [N, T, D]; `sent` [N, T, P + S] holds each token's patch and its image's means."""
        decode = AffineMap.fit(tokens, sent, _RIDGE)
        variance = torch.stack([(decode(x) - y).square().mean(0) for x, y in zip(tokens, sent, strict=True)]).mean(0)
        least = _LEAST_ERROR * float(sent.flatten(0, 1).var(0).mean()) + 1e-12
        return cls(decode=decode, error=(variance + least).sqrt())

    def taken(self, message: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
        """The index of each sent patch's token in a message [B, T, D], int64 [B·T], and whether the match is unique."""
        seen, wanted = (x.flatten(0, 1) / self.error for x in (self.decode(message), sent))
        taken, sure = nearest(wanted[None], seen[None])
        return taken[0], sure[0]


@torch.no_grad()
def read_approximately(
    asker: Asker,
    images: Tensor,  # [N, C, H, W], the adversary's images; N fills whole rounds
    geometry: Geometry,
    read: int,  # largest number of the adversary's images that are sent in messages of copies
    once: Tensor,  # [B, T, D], the tokens that came back for the first B images, which are one round
    again: Tensor,  # [B, T, D], the tokens that came back for the same images in a second round
) -> _ApproximateTokens:
    """Find approximate tokens of the adversary's patches by queries, where tokens depend on a message's other images.

    Raises `NotApplicable` if too few rounds are allowed, or if tokens reveal too little of the adversary's patches.
    """
    asker.must_have(_LEAST_ROUNDS, "where a token depends on the other images of its message")
    read = min(read, _COPIED_IMAGES)
    given = "approximate tokens", images, read, once, again
    return asker.recalled(given, lambda: _read(asker, images, geometry, read, once, again))


def _read(
    asker: Asker, images: Tensor, geometry: Geometry, read: int, once: Tensor, again: Tensor
) -> _ApproximateTokens:
    whole, size, t = asker.whole, asker.rows, geometry.tokens
    messages, patches, scale = whole // size, patchify(images, geometry.patch), token_scale(once)
    copied = images[: min(read, asker.left // 2 * messages)]
    centers = torch.cat([even_heaps(came / scale, t) for came in asker.copied(copied)])
    alone, sent = in_place(centers, patches[: len(copied)], geometry), _shared(patches)
    matcher = _Matcher.fit(alone, sent[: len(copied)])
    rows = torch.cat([once, asker.images(images[whole:], asker.left)]) / scale
    sent, patches = sent[: len(rows)], patches[: len(rows)]
    for number in range(2 * _MATCHINGS):
        pairs = [matcher.taken(*pair) for pair in zip(rows.split(size), sent.split(size), strict=True)]
        taken, sure = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        tokens = take(rows.unflatten(0, (-1, size)).flatten(1, 2), taken).reshape(rows.shape)
        if number + 1 >= _MATCHINGS:
            sent = _shared(patches, tokens.mean(1))
        matcher = _Matcher.fit(tokens, sent)
    _must_be_sound(matcher, again / scale, sent[:whole], size, (centers, patches[: len(centers)]))
    return _ApproximateTokens(tokens=tokens * scale, patches=patches, share=own_share(taken, sure, t))


def _shared(patches: Tensor, *of_images: Tensor) -> Tensor:
    """Append to each patch, [N, T, P], its image's mean patch and the other given means of its image, [N, S] each."""
    whole = torch.cat([patches.mean(1), *of_images], 1).unsqueeze(1)
    return torch.cat([patches, whole.expand(-1, patches.shape[1], -1)], 2)


def _must_be_sound(matcher: _Matcher, again: Tensor, sent: Tensor, size: int, alone: tuple[Tensor, Tensor]) -> None:
    """Raise `NotApplicable` if decoded tokens explain less than half of the variance of their patches.

    The decoder was not fitted to the tokens tested here: `again` [B, T, D], from images that were sent again, with
    their patches and means `sent` [B, T, P + S]; and `alone`, tokens and patches from messages of copies.
    """
    tokens, patches = alone
    numbers = patches.shape[2]
    decoded = matcher.decode(tokens)[..., :numbers]
    shown = [_explained(take(decoded, hungarian(distances(decoded, patches))), patches)]
    for came, wanted in zip(again.split(size), sent.split(size), strict=True):
        taken, _ = matcher.taken(came, wanted)
        seen = matcher.decode(came.flatten(0, 1)[taken])
        shown.append(_explained(seen[:, :numbers], wanted.flatten(0, 1)[:, :numbers]))
    if not min(shown) >= _SOUND:
        raise NotApplicable(
            f"own tokens are read by queries, but the same images sent twice gave different tokens, which explain "
            f"only {100 * min(shown):.0f} % of the variance of the sent patches (needed: {100 * _SOUND:.0f} %): give "
            f"the attack the lower segment"
        )


def _explained(seen: Tensor, wanted: Tensor) -> float:
    varied = wanted.flatten(0, -2).var(0, correction=0).mean()
    return 1 - float((seen - wanted).square().mean() / varied.clamp_min(1e-12))
