"""Read the adversary's tokens by chosen queries, and match them with the patches that were sent.

A message of copies of one image holds each token of this image as many times as there are copies, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import take
from privkit.attacks.base import NotApplicable, Query, View
from privkit.attacks.memory import Memory
from privkit.attacks.patches import Geometry, patch_tokens, patchify, unpatchify
from privkit.attacks.query_rules import Counted, QueryRules

Read = TypeVar("Read")
_ANY_NUMBER = 2**40
_SHARED, _LEAST_MESSAGES = 5, 100
"""Most images whose copies share a message, and least number of such messages. More images save rounds, but then fewer
tokens find their patches."""
_CLOSE = 1e-3  # share of a channel's standard deviation: closer tokens are copies, which differ by rounding
_LEAST_SPREAD = 1e-3  # share of the largest standard deviation of a channel; channels below it hold only rounding
_DIRECTIONS = 4  # directions in which two groups of tokens are compared
_MATCHING_ROUNDS = 6  # rounds of alternating assignment; the share of kept tokens settles after three or four
_RIDGE = 1e-6
_ROWS_A_COMPONENT = 12  # rows per principal component: few rows suffice for a patch's coarse content, not its texture
_LEAST_ODDS = -60.0
_SINKHORN_ROUNDS = 3
_FITTED_TOKENS = 4_000  # number of tokens that the rounds use; the last assignment covers all tokens
FITTED_NUMBERS = 4_000_000  # most numbers in float64 at once; bounds memory, changes no result
_LEAST_SURE = 0.02  # least share of all patches with a unique match
_SURE = 0.99  # share of a patch's odds on one token above which the match counts as unique


def rows_a_message(view: View) -> int:
    """The number of rows in each message of a view; raises `NotApplicable` if messages differ in size."""
    if view.messages < 1 or len(view.smashed) % view.messages:
        raise NotApplicable(f"{len(view.smashed)} rows are not {view.messages} messages of one size")
    return len(view.smashed) // view.messages


class Asker:
    """Sends queries round by round, as long as the threat model allows (`left` more rounds).

    `rows` is the number of images in a message of the last answer.
    """

    def __init__(
        self,
        query: Query,  # takes one round of images
        whole: int,  # number of images in a round
        draws: Generator,  # source of the clients' random draws
        geometry: Geometry,  # how patches lie over the image
        rules: QueryRules,  # the threat model's rules; if they forbid copies, the patches of a copy are moved
        asked: int = 0,  # query rounds that the attack has sent before
        memory: Memory | None = None,  # results of earlier attacks that may be reused
    ) -> None:
        self._query, self.whole, self._draws, self._geometry = query, whole, draws, geometry
        self._rules, self.rows, self._memory = rules, whole, memory or Memory()
        self.left = _ANY_NUMBER if rules.rounds is None else max(0, rules.rounds - asked)

    def round(self, images: Tensor) -> Tensor:
        """Query one round of N images, and return the T tokens of their patches, [N, T, D], in the images' order."""
        answer = self._query(images, self._draws)
        self.left -= 1
        self.rows = rows_a_message(answer.view)
        return patch_tokens(answer.view.smashed).float()[answer.row_of_each(len(images), "reading own tokens")]

    def recalled(self, given: Sequence[Any], read: Callable[[], Read]) -> Read:
        """Call `read`, or reuse its result from an earlier attack; its query rounds count in both cases.

        `given` are all inputs of `read`, and the answers so far, which identify the clients.
        """
        left = self.left

        def made() -> tuple[Read, int]:
            return read(), left - self.left

        of = *given, self.whole, self.rows, self._geometry, self._rules, left
        found, rounds = self._memory.recalled(of, self._draws, made)
        if rounds and self.left == left:
            self.left -= rounds
            if isinstance(self._query, Counted):
                self._query.rounds += rounds
        return found

    def must_have(self, rounds: int, why: str) -> None:
        """Raise `NotApplicable`, with the needed number, if fewer than `rounds` rounds are still allowed."""
        if self.left < rounds:
            allowed = self._rules.rounds or 0
            raise NotApplicable(
                f"the threat model allows {allowed} rounds of own images, but {why} it takes at least "
                f"{allowed - self.left + rounds} to read their tokens: allow more, or choose another attack"
            )

    def images(self, images: Tensor, rounds: int | None = None) -> Tensor:
        """Query the tokens [N, T, D] of the images that fit into `rounds` rounds; the last round is filled up."""
        images = images if rounds is None else images[: rounds * self.whole]
        if not len(images):
            return images.new_empty(0, self._geometry.tokens, self._geometry.token_dim)
        sent = [self._uncopied(_filled(part, self.whole), len(part)) for part in images.split(self.whole)]
        return torch.cat([self.round(part) for part in sent])[: len(images)]

    def shared(self, images: int) -> int:
        """The number g of images whose copies share a message in `unmixed`, if the attack reads `images` images."""
        most = min(_SHARED, self.rows // 2, images // _LEAST_MESSAGES)
        return max(g for g in range(1, max(1, most) + 1) if self.rows % g == 0)

    def unmixed(self, images: Tensor, scale: Tensor, shared: int = 1) -> tuple[Tensor, Tensor]:
        """Read the tokens of N images, a multiple of g (`shared`), from messages of copies of g images each.

        Returns the T tokens of each of g images, in any order, [N/g, g·T, D], and whether copies agreed, bool [N/g].
        Tokens are sorted along a random direction, which puts copies of one token side by side. Only one round is in
        memory at a time. `scale` [D] holds the channels' standard deviations.
        """
        groups, tokens = len(images) // shared, shared * self._geometry.tokens
        count, copies = self.whole // self.rows, self.rows // shared
        read = torch.empty(groups, tokens, self._geometry.token_dim, device=images.device)  # made first: small tensors
        alike = torch.empty(groups, dtype=torch.bool, device=images.device)  # that stay would split up memory
        sent = self.copied(images, shared)
        for messages, own, same in zip(sent, read.split(count), alike.split(count), strict=True):
            line = (messages / scale) @ _directions(messages, 1)
            runs = take(messages, line.squeeze(2).argsort(1)).unflatten(1, (tokens, copies))
            own.copy_(runs[:, :, copies // 2])
            same.copy_(_close((runs - own.unsqueeze(2)) / scale).all(2).all(1))
        return read, alike

    def copied(self, images: Tensor, shared: int = 1) -> Iterator[Tensor]:
        """Send messages of copies of `shared` images each; yield each round's tokens, [m, B·T, D] for m messages."""
        count, copies = self.whole // self.rows * shared, self.rows // shared
        for part in images.split(count):
            sent = self._uncopied(_filled(part, count).repeat_interleave(copies, 0), 0)
            yield self.round(sent).unflatten(0, (-1, self.rows)).flatten(1, 2)[: len(part) // shared]

    def _uncopied(self, images: Tensor, first: int) -> Tensor:
        """The images; if the rules forbid copies, the patches of each image from `first` on are shuffled inside it.

        A moved patch keeps its token if tokens do not depend on positions.
        """
        if self._rules.copies:
            return images
        patches = patchify(images[first:], self._geometry.patch)
        order = torch.rand(patches.shape[:2], generator=self._draws, device=images.device).argsort(1)
        moved = unpatchify(take(patches, order), self._geometry.patch, self._geometry.image_shape)
        return torch.cat([images[:first], moved])


def same_tokens(first: Tensor, second: Tensor) -> Tensor:
    """Whether group g of `first` and group g of `second` hold the same n tokens, in any order: bool [G].

    Both tensors hold G groups of tokens, [G, n, D].
    """
    scale = token_scale(first)
    along = _directions(first, _DIRECTIONS)
    one, two = (((x / scale) @ along).sort(1).values for x in (first, second))
    return (one - two).abs().amax((1, 2)).lt(_CLOSE * first.shape[2] ** 0.5)


def _filled(images: Tensor, count: int) -> Tensor:
    return torch.cat([images, images[-1:].expand(count - len(images), *images.shape[1:])])


def token_scale(tokens: Tensor) -> Tensor:
    """The standard deviation of each channel of tokens [..., D], at least 0.001 times the largest one: [D]."""
    spread = tokens.flatten(0, -2).std(0)
    return spread.clamp_min(max(_LEAST_SPREAD * float(spread.max()), torch.finfo(spread.dtype).tiny))


def _close(apart: Tensor) -> Tensor:
    return apart.square().mean(-1).lt(_CLOSE**2)


def _directions(tokens: Tensor, number: int) -> Tensor:
    drawn = torch.randn(tokens.shape[-1], number, generator=Generator().manual_seed(0))
    unit: Tensor = drawn / drawn.norm(dim=0)
    return unit.to(tokens.device)


@dataclass(frozen=True, kw_only=True)
class AffineMap:
    """An affine map fitted by ridge regression on standardized inputs."""

    mean: Tensor  # [F], mean of the inputs
    scale: Tensor  # [F], standard deviation of the inputs
    weight: Tensor  # [F, P]
    bias: Tensor  # [P]

    @classmethod
    def fit(cls, inputs: Tensor, outputs: Tensor, ridge: float = _RIDGE) -> AffineMap:
        """Least squares from inputs [..., F] to outputs [..., P]; `ridge` is relative to the inputs' variance."""
        x, y = inputs.flatten(0, -2), outputs.flatten(0, -2)
        rows = max(1, FITTED_NUMBERS // (x.shape[1] + y.shape[1]))
        parts = list(zip(x.split(rows), y.split(rows), strict=True))  # in float64 part by part: there may be millions
        mean = torch.stack([part.double().sum(0) for part, _ in parts]).sum(0) / len(x)
        bias = torch.stack([part.double().sum(0) for _, part in parts]).sum(0) / len(y)
        gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
        crossed = gram.new_zeros(x.shape[1], y.shape[1])
        for one, two in parts:
            away = one.double() - mean
            gram += away.T @ away
            crossed += away.T @ (two.double() - bias)
        scale = (gram.diagonal() / len(x)).sqrt() + 1e-8
        eye = torch.eye(x.shape[1], dtype=gram.dtype, device=x.device)
        weight = torch.linalg.solve(gram / scale / scale[:, None] + ridge * len(x) * eye, crossed / scale[:, None])
        return cls(mean=mean.float(), scale=scale.float(), weight=weight.float(), bias=bias.float())

    def __call__(self, inputs: Tensor) -> Tensor:
        return ((inputs - self.mean) / self.scale) @ self.weight + self.bias


def match_own_tokens(released: Tensor, patches: Tensor) -> tuple[Tensor, float, float]:
    """Order the returned tokens [M, B, T, D] like the sent patches [M, B, T, P], although a shuffle mixes the B images.

    The mean over a row does not depend on the order. So regressing rows' mean tokens on their mean patches, both
    relative to their message, gives a first affine map from a patch's principal components to its token. Then tokens
    are assigned to the predictions by Sinkhorn's iteration, the map is fitted again, and so on.

    Returns the token of each patch; and two shares of the patches with an unambiguous token: the share whose token is
    in its image's row, and the share whose token is in its own place.

    Source: iterative closest points (Besl and McKay 1992) with soft assignments (Gold et al. 1998); the start is
    derived.
    """
    m, b, t, d = released.shape
    tokens, contents = released.flatten(1, 2), patches.flatten(1, 2)
    few = max(2, _FITTED_TOKENS // (b * t))
    middle, center = tokens.mean((0, 1)), contents.mean((0, 1))
    spread = torch.stack([(part - middle).square().sum(0) for part in tokens]).sum(0).div(m * b * t).sqrt() + 1e-8
    spread = spread.clamp_min(_LEAST_SPREAD * float(spread.max()))
    rows = [x.mean(2) - x.mean((1, 2)).unsqueeze(1) for x in (patches, released)]
    if b == 1:  # only whole messages can be compared
        rows = [x - x.mean((0, 1)) for x in (patches.mean(2), released.mean(2))]
    varied = sum(((part - center).T @ (part - center) for part in contents), torch.zeros((), device=tokens.device))
    main = torch.linalg.eigh(varied).eigenvectors.flip(1)[:, : max(3, m * b // _ROWS_A_COMPONENT)]
    start = AffineMap.fit(rows[0] @ main, rows[1], 1e-3)
    predicted = (contents[:few] - center) @ main / start.scale @ start.weight
    size = (tokens[:few] - middle).square().mean().sqrt() / (predicted.square().mean().sqrt() + 1e-12)
    predicted = predicted * size + middle  # row means differ less than tokens
    for _ in range(_MATCHING_ROUNDS):
        taken, _ = nearest(predicted / spread, tokens[:few] / spread)
        forward = AffineMap.fit(contents[:few], take(tokens[:few], taken), 1e-3)
        predicted = forward(contents[:few])
    matches = [nearest((forward(x) / spread)[None], (z / spread)[None]) for x, z in zip(contents, tokens, strict=True)]
    taken, sure = (torch.cat(parts) for parts in zip(*matches, strict=True))
    return take(tokens, taken).view(m, b, t, d), own_share(taken, sure, t), own_share(taken, sure, 1)


def own_share(taken: Tensor, sure: Tensor, tokens: int) -> float:
    """Share in [0, 1] of patches whose token is in the patch's row of T = `tokens` tokens (for T = 1, in its place).

    `taken` is the token of each patch in M messages of B rows, int64 [M, B·T]; `sure`, bool [M, B·T], says whether the
    match is unique. Only unique matches count, unless there are hardly any (all black patches are alike, for example).
    """
    rows = torch.arange(taken.shape[1], device=taken.device) // tokens
    at_home = taken // tokens == rows
    return float((at_home[sure] if sure.double().mean() > _LEAST_SURE else at_home).double().mean())


def nearest(predicted: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token for each of K predictions, if each token is used about once, and whether the match is unique.

    For M messages, `predicted` and `tokens` are [M, K, D]; the results are int64 [M, K] and bool [M, K].

    >>> offer = torch.tensor([[[0.0], [5.0], [5.0], [9.0]]])
    >>> nearest(offer.flip(1) + 0.1, offer)[1].tolist()
    [[True, False, False, True]]
    """
    # A message at a time: K² numbers each.
    matches = [_sinkhorn_by_table(*pair) for pair in zip(predicted, tokens, strict=True)]
    return torch.stack([taken for taken, _ in matches]), torch.stack([sure for _, sure in matches])


def _sinkhorn_by_table(guess: Tensor, offer: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `nearest` for one message, by Sinkhorn's iteration with one table of exponentials."""
    odds = torch.cdist(guess, offer).square_()
    unit, some = odds.amin(1).median(), odds[:: max(1, len(odds) // 200)]
    if float(unit) <= 1e-3 * float(some.amax()) + 1e-12:  # else the median costs time and changes nothing
        unit = unit.clamp(min=1e-3 * float(some.median()) + 1e-12)
    odds /= -unit
    odds -= odds.amax(1, keepdim=True)
    columns = odds.amax(0)
    odds -= columns
    odds.clamp_min_(_LEAST_ODDS).exp_()  # exponentials that underflow are slow
    columns.exp_()  # so that the iteration starts where it would without the shift
    for _ in range(_SINKHORN_ROUNDS):
        rows = 1 / (odds @ columns)
        columns = 1 / (rows @ odds)
    odds *= columns
    best = odds.max(1)
    return best.indices, best.values > _SURE * odds.sum(1)
