"""A recurrent network on token sequences, cut after the embedding or after its last state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.domains.tokens.domain import PADDING, Tokens
from privkit.models.base import Depth, NamedCuts, SplitModel
from privkit.torch_utils.seeded import seeded

_LAYERS: dict[str, type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
"""Kind -> torch's layer."""


@dataclass(frozen=True, kw_only=True)
class Recurrent(NamedCuts):
    """Token embedding, recurrent layers, and a linear classifier on the state after the last token.

    Padding is embedded as zeros and moved in front of the text, so that the last state has just read the last token.
    torch cannot batch recurrent layers over clients: several clients run one after another, and the row says so.

    Attributes:
        kind: "lstm", "gru" or "rnn" (tanh).
        embedding: size of a token's vector.
        width: size of the state.
        depth: recurrent layers, one on top of the other.
        cut: last layer of the lower segment: "embedding" sends tokens [N, T, embedding], "state" sends vectors
            [N, width].

    Source: Hochreiter and Schmidhuber 1997, "Long short-term memory".

    >>> names = Tokens(length=8, vocabulary=("", "?", "a", "b"))
    >>> LSTM.build(names, 2, positions=True, seed=0).lower(names.zeros(3)).shape
    torch.Size([3, 64])
    """

    domain: ClassVar[str] = "tokens"

    kind: Literal["lstm", "gru", "rnn"] = "lstm"
    embedding: Count = 32
    width: Count = 64
    depth: Depth = 1
    cut: str = "state"

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("embedding", "state")

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
        with seeded(torch.device("cpu"), seed):
            embedding = _EmbeddedLast(nn.Embedding(len(domain.vocabulary), self.embedding, padding_idx=PADDING))
            state = _LastState(_LAYERS[self.kind](self.embedding, self.width, self.depth, batch_first=True))
            head = nn.Linear(self.width, classes)
        if self.cut == "embedding":
            return SplitModel(lower=embedding, upper=nn.Sequential(state, head), hides_places=True)
        return SplitModel(lower=nn.Sequential(embedding, state), upper=head, hides_places=False)


class _EmbeddedLast(nn.Module):
    """Embedding of a sequence whose padding was moved from its end to its front."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, ids: Tensor) -> Tensor:
        """Ids int64 [N, T] -> tokens [N, T, embedding]."""
        padding = (ids == PADDING).sum(1, keepdim=True)
        places = torch.arange(ids.shape[1], device=ids.device)
        tokens: Tensor = self.embedding(ids.gather(1, (places - padding) % ids.shape[1]))
        return tokens


class _LastState(nn.Module):
    """The state of the last recurrent layer after the last token."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, embedding] -> states [N, width]."""
        states: Tensor = self.layers(tokens)[0]
        return states[:, -1]


LSTM = Recurrent()
"""One LSTM layer of width 64, cut at its last state: trains in seconds."""
RNN = Recurrent(kind="rnn")
"""The same with a plain recurrent layer."""
