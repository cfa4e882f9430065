"""Networks on token sequences: a perceptron, recurrent layers, a transformer, ALBERT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from privkit.attacks.scores.tokens import PADDING
from privkit.constraints import Count
from privkit.domains.tokens.domain import Tokens
from privkit.errors import UsageError
from privkit.models.base import Depth, EvenHeads, NamedCuts, SplitModel
from privkit.models.tokens import Block, Upper, load_fitting, read_weights, stackable
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class _TextMlp(NamedCuts):
    """A text classifier: token embedding, mean over T positions, a hidden layer and a linear layer, with tanh between.

    Padding is embedded as zeros and counts in the mean, since the server does not know which tokens are padding.

    Attributes:
        embedding: size of a token's vector.
        width: units of the hidden layer.
        cut: last layer of the lower segment: "embedding" sends tokens [N, T, embedding], "fc" sends the hidden layer
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

    cuts: ClassVar[tuple[str, ...]] = ("embedding", "fc")

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
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
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


TEXT_MLP = _TextMlp()  # the network of accurate_sl on IMDB, cut after its hidden layer


_LAYERS: dict[str, type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
"""Kind of a recurrent layer -> torch's class."""


@dataclass(frozen=True, kw_only=True)
class Recurrent(NamedCuts):
    """A text classifier: token embedding, recurrent layers, and a linear layer on the state after the last token.

    Padding is embedded as zeros and moved in front of the text, so that the last state directly follows the last token.
    torch cannot batch recurrent layers over clients, so clients run one after another, which the results report.

    Attributes:
        kind: kind of recurrent layer: "lstm", "gru" or "rnn" (tanh).
        embedding: size of a token's vector.
        width: size of the recurrent state.
        depth: number of stacked recurrent layers.
        cut: last layer of the lower segment: "embedding" sends tokens [N, T, embedding], "state" sends vectors [N,
            width].

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

    cuts: ClassVar[tuple[str, ...]] = ("embedding", "state")

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        with seeded(torch.device("cpu"), seed):
            embedding = _EmbeddedLast(nn.Embedding(len(domain.vocabulary), self.embedding, padding_idx=PADDING))
            state = _LastState(_LAYERS[self.kind](self.embedding, self.width, self.depth, batch_first=True))
            head = nn.Linear(self.width, classes)
        if self.cut == "embedding":
            return SplitModel(lower=embedding, upper=nn.Sequential(state, head), hides_places=True)
        return SplitModel(lower=nn.Sequential(embedding, state), upper=head, hides_places=False)


class _EmbeddedLast(nn.Module):
    """Embeds a sequence after moving its padding from the end to the front."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, ids: Tensor) -> Tensor:
        padding = (ids == PADDING).sum(1, keepdim=True)
        places = torch.arange(ids.shape[1], device=ids.device)
        tokens: Tensor = self.embedding(ids.gather(1, (places - padding) % ids.shape[1]))
        return tokens


class _LastState(nn.Module):
    """Runs recurrent layers on tokens [N, T, D]; returns the last layer's state after the last token, [N, width]."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.layers(tokens)[0]
        return states[:, -1]


LSTM = Recurrent()  # one LSTM layer of width 64, cut at its last state: trains in seconds
RNN = Recurrent(kind="rnn")  # a plain recurrent layer of width 64, cut at its last state


@dataclass(frozen=True, kw_only=True)
class Transformer(EvenHeads):
    """A text classifier: token and position embedding, transformer blocks in both segments, and the mean over tokens.

    Padding is embedded as zeros without a position. It crosses the cut like any token, since the server does not know
    which tokens are padding.

    Attributes:
        width: token size D.
        depth: number of blocks in both segments together.
        heads: attention heads, a divisor of width.
        cut: last layer of the lower segment: "embedding", "block1", "block2", ...

    Source: Vaswani et al. 2017, "Attention is all you need"; blocks are as timm's (normalised before attention).

    >>> names = Tokens(length=8, vocabulary=("", "?", "a", "b"))
    >>> split = TRANSFORMER_MICRO.build(names, 2, positions=True, seed=0)
    >>> tokens = split.lower(names.zeros(3))
    >>> tokens.shape, split.upper(tokens).shape
    (torch.Size([3, 8, 64]), torch.Size([3, 2]))
    """

    domain: ClassVar[str] = "tokens"

    width: Count = 64
    depth: Depth = 3
    heads: Count = 4
    cut: str = "block1"

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("embedding", *(f"block{i + 1}" for i in range(self.depth)))

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        with seeded(torch.device("cpu"), seed):
            embedding = nn.Embedding(len(domain.vocabulary), self.width, padding_idx=PADDING)
            places = nn.Parameter(0.02 * torch.randn(1, domain.length, self.width)) if positions else None
            blocks = [Block(self.width, self.heads) for _ in range(self.depth)]
            head = nn.Linear(self.width, classes)
        below = self.cuts.index(self.cut)
        upper = Upper(
            nn.Sequential(*blocks[below:]),
            norm=nn.LayerNorm(self.width),
            head=head,
            cls_token=None,
            pool="avg",
        )
        lower = _TokenLower(embedding, places, nn.Sequential(*blocks[:below]))
        return SplitModel(lower=lower, upper=upper, hides_places=not positions)


class _TokenLower(nn.Module):
    """The client's segment: embedding of tokens and positions, and the first blocks."""

    def __init__(self, embedding: nn.Embedding, positions: nn.Parameter | None, blocks: nn.Sequential) -> None:
        super().__init__()
        self.embedding, self.positions, self.blocks = embedding, positions, stackable(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != PADDING).unsqueeze(-1)
        tokens = self.embedding(ids)
        if self.positions is not None:
            tokens = tokens + self.positions
        encoded: Tensor = self.blocks(tokens * there)
        return encoded


TRANSFORMER_MICRO = Transformer()  # three blocks of width 64, cut after the first: trains in seconds


_EMBEDDING, _PLACES = 128, 512


@dataclass(frozen=True, kw_only=True)
class Albert(EvenHeads):
    """The text classifier ALBERT: twelve encoder layers with shared weights, the pooler with its tanh, a linear layer.

    The client sends the pooled vector of the first token, [N, width] in [−1, 1]. Padding is masked at the client. There
    are 11,683,584 weights below the classifier with the published vocabulary of 30,000. Needs the package transformers
    (extra `albert`).

    Attributes:
        width: size of a token's vector.
        depth: number of encoder layers.
        heads: attention heads, a divisor of width.
        checkpoint: path of a published ALBERT's model.safetensors, for pretrained weights. The dataset's option
            `tokenizer` must then name the matching tokenizer.
        cut: last layer of the lower segment; "pool" is the only choice.

    Source: Lan et al. 2020, "ALBERT", table 1 (base, with the dropout of version 2: none); accurate_sl, Table 1.
    """

    domain: ClassVar[str] = "tokens"

    width: Count = 768
    depth: Depth = 12
    heads: Count = 12
    checkpoint: str = ""
    cut: str = "pool"

    cuts: ClassVar[tuple[str, ...]] = ("pool",)

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        try:
            from transformers import AlbertConfig, AlbertModel
        except ImportError:
            raise UsageError(
                "albert needs the package transformers: pip install 'privkit-sl[albert]', or take another model of "
                "texts"
            ) from None
        with seeded(torch.device("cpu"), seed):
            config = AlbertConfig(
                vocab_size=len(domain.vocabulary),
                embedding_size=_EMBEDDING,
                hidden_size=self.width,
                num_hidden_layers=self.depth,
                num_attention_heads=self.heads,
                intermediate_size=4 * self.width,
                max_position_embeddings=max(_PLACES, domain.length),
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
            network = AlbertModel(config)
            head = nn.Linear(self.width, classes)
        if self.checkpoint:
            state = {name.removeprefix("albert."): value for name, value in read_weights(self.checkpoint).items()}
            fit = f"width={self.width} and {len(domain.vocabulary)} tokens"
            load_fitting(network, state, self.checkpoint, ("embeddings", "encoder", "pooler"), fit)
        return SplitModel(lower=_Pooled(network), upper=head, hides_places=False)


class _Pooled(nn.Module):
    """ALBERT's pooler output, [N, width], with padding masked in the attention."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        pooled: Tensor = self.network(input_ids=ids, attention_mask=(ids != PADDING).long()).pooler_output
        return pooled


ALBERT = Albert()  # ALBERT-base-v2: 768 numbers go to the classifier
