"""Training of a network that classifies every released token, on tokens of known texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.fit import Learner
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.seeded import seeded

_LEARNING_RATE = 2e-3
_READ_ROWS = 256


def encoder(width: int) -> nn.TransformerEncoder:
    """Build two transformer blocks over tokens of a text, without position embedding; `width` is a multiple of 4."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class TokenTraining(Learner):
    """Trains a network to classify tokens; an epoch returns the cross-entropy on the first `held` texts.

    Args:
        network: network, trained in place, from standardized tokens [n, T, D] (or [n, T, D + 1] if `seen` is given) to
            logits [n, T, L] of L labels.
        tokens: released tokens of M known texts, [M, T, D].
        labels: label of each token, int64 [M, T]; −100 for a token that does not count.
        held: number of texts that are held out, the first ones of `tokens`.
        epochs: number of epochs, which sets the learning-rate schedule.
        step_rows: number of texts per training step.
        seen: how much of each token is seen, [M, T] from 0 to 1; the network gets this share as the token's last
            number. None if all tokens are seen.
        seed: the seed of the order of texts.

    Attributes:
        middle: mean of each of the D numbers of a token, [D].
        scale: standard deviation of each of these numbers, [D].
    """

    def __init__(
        self,
        network: nn.Module,
        tokens: Tensor,
        labels: Tensor,
        *,
        held: int,
        epochs: int,
        step_rows: int,
        seed: int,
        seen: Tensor | None = None,
    ) -> None:
        spread = tokens.flatten(0, 1) if seen is None else tokens[seen > 0]
        self.middle, self.scale = spread.mean(0), spread.std(0).clamp_min(1e-6)
        self._tokens, self._labels = self._inputs(tokens, seen), labels
        self._held, self._step_rows, self._seed = held, step_rows, seed
        optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
        steps = epochs * ceil((len(tokens) - held) / step_rows)
        super().__init__(network, optimizer, partial(one_cycle, optimizer, _LEARNING_RATE), steps)

    def _inputs(self, tokens: Tensor, seen: Tensor | None) -> Tensor:
        standard = (tokens - self.middle) / self.scale
        return standard if seen is None else torch.cat([standard * seen.unsqueeze(2), seen.unsqueeze(2)], 2)

    def _loss(self, rows: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(self._tokens[rows]).flatten(0, 1), self._labels[rows].flatten())

    def epoch(self, number: int) -> float:
        device = self._tokens.device
        self.network.train()
        with seeded(device, self._seed + number):
            order = self._held + torch.randperm(len(self._tokens) - self._held, device=device)
            for rows in order.split(self._step_rows):
                self.step(self._loss(rows))
        self.network.eval()
        with torch.no_grad():
            return self._loss(torch.arange(self._held, device=device)).item()

    @torch.no_grad()
    def read(self, released: Tensor, named: Callable[[Tensor], Tensor], seen: Tensor | None = None) -> Tensor:
        """Apply the function `named` to the logits of released tokens [N, T, D], chunk by chunk."""
        self.network.eval()

        def part(rows: slice) -> Tensor:
            return named(self.network(self._inputs(released[rows], None if seen is None else seen[rows])))

        return in_chunks(part, len(released), _READ_ROWS)
