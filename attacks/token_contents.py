"""What a released token shows: the patch behind it, learned from own images whose tokens came back shuffled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 6  # of alternating assignment; the keep share that it finds settles after three or four
RIDGE = 1e-6
ROWS_A_COMPONENT = 12  # few rows tell the coarse contents of a patch, not its texture
SINKHORN_ROUNDS = 3
FITTED_TOKENS = 4_000  # that the rounds look at; the last assignment is of all


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """An affine map fitted by ridge regression on standardized inputs.

    Attributes:
        mean: [F] of the inputs.
        scale: [F], their standard deviation.
        weight: [F, P].
        bias: [P].
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, inputs: Tensor, outputs: Tensor, ridge: float = RIDGE) -> Ridge:
        """Least squares from inputs [..., F] to outputs [..., P]; `ridge` is relative to the inputs' variance.

        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> Ridge.fit(x, 2 * x + 1)(x).allclose(2 * x + 1, atol=1e-4)
        True
        """
        x, y = inputs.flatten(0, -2).double(), outputs.flatten(0, -2).double()
        mean, scale = x.mean(0), x.std(0, correction=0) + 1e-8
        x, bias = (x - mean) / scale, y.mean(0)
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        weight = torch.linalg.solve(x.T @ x + ridge * len(x) * eye, x.T @ (y - bias))
        return cls(mean=mean.float(), scale=scale.float(), weight=weight.float(), bias=bias.float())

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs [..., P] of inputs [..., F]."""
        return ((inputs - self.mean) / self.scale) @ self.weight + self.bias


def match_own_tokens(released: Tensor, patches: Tensor) -> tuple[Tensor, float]:
    """Order the tokens that came back for the adversary's own images, though a shuffle hides whose is whose.

    The mean over a row knows no order: how rows differ from their message in tokens, against how they differ in
    patches, gives a first affine map from a patch's principal components
    to its token. Then tokens are assigned to the predictions by Sinkhorn's
    iteration, the map is fitted again, and so on.

    Args:
        released: [M, B, T, D], messages as they came back.
        patches: [M, B, T, P], the own images' patches in order.

    Returns:
        The token of each patch, [M, B, T, D], and the share of patches whose token lies in its own image's row.

    Source: iterative closest points (Besl and McKay 1992) with soft assignments (Gold et al. 1998);
    the start is derived.
    """
    m, b, t, d = released.shape
    tokens, contents = released.flatten(1, 2), patches.flatten(1, 2)
    spread = tokens.flatten(0, 1).std(0, correction=0) + 1e-8
    rows = [x.mean(2) - x.mean((1, 2)).unsqueeze(1) for x in (patches, released)]
    if b == 1:  # nothing but whole messages to compare
        rows = [x - x.mean((0, 1)) for x in (patches.mean(2), released.mean(2))]
    centered = (contents - contents.mean((0, 1))).flatten(0, 1)
    main = torch.linalg.eigh(centered.T @ centered).eigenvectors.flip(1)[:, : max(3, m * b // ROWS_A_COMPONENT)]
    start = Ridge.fit(rows[0] @ main, rows[1], 1e-3)
    predicted = (centered @ main / start.scale @ start.weight).view(m, b * t, d)
    size = (tokens - tokens.mean((0, 1))).square().mean().sqrt() / (predicted.square().mean().sqrt() + 1e-12)
    predicted = predicted * size + tokens.mean((0, 1))  # rows differ less than tokens where a part was mixed in
    few = max(2, FITTED_TOKENS // (b * t))
    for _ in range(ROUNDS):
        taken = nearest(predicted[:few] / spread, tokens[:few] / spread)
        forward = Ridge.fit(contents[:few], _taken(tokens[:few], taken), 1e-3)
        predicted = forward(contents)
    taken = nearest(predicted / spread, tokens / spread)
    return _taken(tokens, taken).view(m, b, t, d), own_share(taken, t)


def own_share(taken: Tensor, tokens: int) -> float:
    """Share of patches whose token lies in their own row; `taken` is int64 [M, B·T]."""
    rows = torch.arange(taken.shape[1], device=taken.device) // tokens
    return float((taken // tokens == rows).double().mean())


def _taken(tokens: Tensor, taken: Tensor) -> Tensor:
    """Rows of each message's tokens."""
    return tokens.gather(1, taken.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


def nearest(predicted: Tensor, tokens: Tensor) -> Tensor:
    """The token that each prediction most likely means, int64 [M, K], if each token is meant about once.

    Args:
        predicted: [M, K, D].
        tokens: [M, K, D].
    """
    found = []
    for guess, offer in zip(predicted, tokens, strict=True):  # a message at a time: K² numbers each
        distance = torch.cdist(guess, offer).square()
        closest = distance.amin(1)
        logits = -distance / closest.median().clamp(min=1e-3 * float(distance.median()) + 1e-12)
        for _ in range(SINKHORN_ROUNDS):
            logits = logits - logits.logsumexp(1, keepdim=True)
            logits = logits - logits.logsumexp(0, keepdim=True)
        found.append(logits.argmax(1))
    return torch.stack(found)
