"""A multi-layer perceptron on the mean of a text's token vectors, cut after any of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.domains.tokens.domain import PADDING, Tokens
from privkit.models.base import NamedCuts, SplitModel
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class TextMlp(NamedCuts):
    """Token embedding, the mean over all places, and one hidden layer, with tanh between them.

    Padding is embedded as zeros and counts in the mean, since the server is not told the mask.

    Attributes:
        embedding: size of a token's vector.
        width: units of the hidden layer.
        cut: last layer of the lower segment: "embedding" sends tokens [N, T, embedding], "fc" the hidden layer
            [N, width] in [−1, 1].

    Source: accurate_sl, Table 1, "MLP on IMDB", cut after "fc" (16 numbers) and after "embedding" (4,096 at T = 256).

    >>> film = Tokens(length=8, vocabulary=("", "?", "good", "bad"))
    >>> TEXT_MLP.build(film, 2, positions=True, seed=0).lower(film.zeros(3)).shape
    torch.Size([3, 16])
    """

    domain: ClassVar[str] = "tokens"

    embedding: Count = 16
    width: Count = 16
    cut: str = "fc"

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("embedding", "fc")

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
        with seeded(torch.device("cpu"), seed):
            pieces = [
                nn.Embedding(len(domain.vocabulary), self.embedding, padding_idx=PADDING),
                nn.Sequential(_Mean(), nn.Tanh(), nn.Linear(self.embedding, self.width), nn.Tanh()),
                nn.Linear(self.width, classes),
            ]
        below = self.cuts.index(self.cut) + 1
        lower, upper = nn.Sequential(*pieces[:below]), nn.Sequential(*pieces[below:])
        return SplitModel(lower=lower, upper=upper, hides_places=self.cut == "embedding")


class _Mean(nn.Module):
    """The mean over the places of a sequence."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, D] -> [N, D]."""
        return tokens.mean(1)


TEXT_MLP = TextMlp()
"""The network of accurate_sl on IMDB, cut after its hidden layer."""
