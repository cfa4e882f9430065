"""What a released token shows: the patch behind it, learned from own images whose tokens came back shuffled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.assign import take

ROUNDS = 6  # of alternating assignment; the keep share that it finds settles after three or four
_RIDGE = 1e-6
_ROWS_A_COMPONENT = 12  # few rows tell the coarse contents of a patch, not its texture
_LEAST_ODDS = -60.0
_SINKHORN_ROUNDS = 3
_FITTED_TOKENS = 4_000  # that the rounds look at; the last assignment is of all
NUMBERS_AT_ONCE = 4_000_000  # of inputs in float64; bounds memory, changes nothing
_LEAST_SURE = 0.02  # of all patches
_SURE = 0.99  # share of a patch's odds on one token, above which it is taken for a match and not for one of several


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """An affine map fitted by ridge regression on standardized inputs."""

    mean: Tensor  # [F] of the inputs
    scale: Tensor  # [F], their standard deviation
    weight: Tensor  # [F, P]
    bias: Tensor  # [P]

    @classmethod
    def fit(cls, inputs: Tensor, outputs: Tensor, ridge: float = _RIDGE) -> Ridge:
        """Least squares from inputs [..., F] to outputs [..., P]; `ridge` is relative to the inputs' variance."""
        x, y = inputs.flatten(0, -2), outputs.flatten(0, -2)
        rows = max(1, NUMBERS_AT_ONCE // (x.shape[1] + y.shape[1]))
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
    """Order the tokens that came back for the adversary's own images, though a shuffle hides whose is whose.

    The mean over a row knows no order: how rows differ from their message in tokens, against how they differ in
    patches, gives a first affine map from a patch's principal components to its token. Then tokens are assigned to the
    predictions by Sinkhorn's iteration, the map is fitted again, and so on.

    Args:
        released: [M, B, T, D], messages as they came back.
        patches: [M, B, T, P], the own images' patches in order.

    Returns:
        The token of each patch, [M, B, T, D]; the share of patches whose token lies in its own image's row, among
        those that no other token would do for; and the share of those whose token lies in its own place.

    Source: iterative closest points (Besl and McKay 1992) with soft assignments (Gold et al. 1998);
    the start is derived.
    """
    m, b, t, d = released.shape
    tokens, contents = released.flatten(1, 2), patches.flatten(1, 2)
    few = max(2, _FITTED_TOKENS // (b * t))
    middle, center = tokens.mean((0, 1)), contents.mean((0, 1))
    spread = torch.stack([(part - middle).square().sum(0) for part in tokens]).sum(0).div(m * b * t).sqrt() + 1e-8
    rows = [x.mean(2) - x.mean((1, 2)).unsqueeze(1) for x in (patches, released)]
    if b == 1:  # nothing but whole messages to compare
        rows = [x - x.mean((0, 1)) for x in (patches.mean(2), released.mean(2))]
    varied = sum(((part - center).T @ (part - center) for part in contents), torch.zeros((), device=tokens.device))
    main = torch.linalg.eigh(varied).eigenvectors.flip(1)[:, : max(3, m * b // _ROWS_A_COMPONENT)]
    start = Ridge.fit(rows[0] @ main, rows[1], 1e-3)
    predicted = (contents[:few] - center) @ main / start.scale @ start.weight
    size = (tokens[:few] - middle).square().mean().sqrt() / (predicted.square().mean().sqrt() + 1e-12)
    predicted = predicted * size + middle  # rows differ less than tokens where a part was mixed in
    for _ in range(ROUNDS):
        taken, _ = nearest(predicted / spread, tokens[:few] / spread)
        forward = Ridge.fit(contents[:few], take(tokens[:few], taken), 1e-3)
        predicted = forward(contents[:few])
    matches = [nearest((forward(x) / spread)[None], (z / spread)[None]) for x, z in zip(contents, tokens, strict=True)]
    taken, sure = (torch.cat(parts) for parts in zip(*matches, strict=True))
    return take(tokens, taken).view(m, b, t, d), own_share(taken, sure, t), own_share(taken, sure, 1)


def own_share(taken: Tensor, sure: Tensor, tokens: int) -> float:
    """Share of patches whose token, int64 [M, B·T], lies in their own row of T tokens, or with T = 1 in its own place.

    Only sure ones, bool [M, B·T], count, unless there are hardly any: black patches are all alike.
    """
    rows = torch.arange(taken.shape[1], device=taken.device) // tokens
    at_home = taken // tokens == rows
    return float((at_home[sure] if sure.double().mean() > _LEAST_SURE else at_home).double().mean())


def nearest(predicted: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The token that each prediction most likely means, if each token is meant about once, and whether it is sure.

    From predictions and tokens [M, K, D]: int64 [M, K] and bool [M, K].

    >>> offer = torch.tensor([[[0.0], [5.0], [5.0], [9.0]]])
    >>> nearest(offer.flip(1) + 0.1, offer)[1].tolist()
    [[True, False, False, True]]
    """
    # A message at a time: K² numbers each.
    matches = [_sinkhorn_by_table(*pair) for pair in zip(predicted, tokens, strict=True)]
    return torch.stack([taken for taken, _ in matches]), torch.stack([sure for _, sure in matches])


def _sinkhorn_by_table(guess: Tensor, offer: Tensor) -> tuple[Tensor, Tensor]:
    """Sinkhorn's iteration by products with one table of exponentials, whose rows and columns all hold a 1."""
    odds = torch.cdist(guess, offer).square_()
    closest, some = odds.amin(1), odds[:: max(1, len(odds) // 200)]
    odds /= -closest.median().clamp(min=1e-3 * float(some.median()) + 1e-12)
    odds -= odds.amax(1, keepdim=True)
    columns = odds.amax(0)
    odds -= columns
    odds.clamp_min_(_LEAST_ODDS).exp_()  # where exponentials underflow, they are slow
    columns.exp_()  # so that the iteration starts where it would without the shift
    for _ in range(_SINKHORN_ROUNDS):
        rows = 1 / (odds @ columns)
        columns = 1 / (rows @ odds)
    odds *= columns
    best = odds.max(1)
    return best.indices, best.values > _SURE * odds.sum(1)
