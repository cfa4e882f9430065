"""ALBERT of transformers on token sequences, cut behind its pooler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.domains.tokens.domain import PADDING, Tokens
from privkit.errors import UsageError
from privkit.models.base import Depth, NamedCuts, SplitModel, check_heads
from privkit.models.weights import load_fitting, read_weights
from privkit.torch_utils.seeded import seeded

_EMBEDDING, _PLACES = 128, 512


@dataclass(frozen=True, kw_only=True)
class Albert(NamedCuts):
    """Twelve encoder layers that share their weights, the pooler with its tanh, and a linear classifier.

    The client sends the pooled vector of the first token, [N, width] in [−1, 1]. Padding is masked at the client.
    There are 11,683,584 weights below the classifier with the published vocabulary of 30,000. Needs the package
    transformers (extra `albert`).

    Attributes:
        width: size of a token's vector.
        depth: encoder layers.
        heads: attention heads, a divisor of width.
        checkpoint: model.safetensors of a published ALBERT for pretrained weights. The dataset then needs its
            `tokenizer`, whose vocabulary the weights know.
        cut: last layer of the lower segment: "pool", the only one.

    Source: Lan et al. 2020, "ALBERT", table 1 (base, with the dropout of version 2: none); accurate_sl, Table 1.
    """

    domain: ClassVar[str] = "tokens"

    width: Count = 768
    depth: Depth = 12
    heads: Count = 12
    checkpoint: str = ""
    cut: str = "pool"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.width, self.heads)

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("pool",)

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
        try:
            from transformers import AlbertConfig, AlbertModel
        except ImportError:
            raise UsageError(
                "albert needs the package transformers: pip install 'privkit[albert]', or take another model of texts"
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
    """The pooler's output, with padding masked."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        """Ids int64 [N, T] -> vectors [N, width] in [−1, 1]."""
        pooled: Tensor = self.network(input_ids=ids, attention_mask=(ids != PADDING).long()).pooler_output
        return pooled


ALBERT = Albert()
"""ALBERT-base-v2: 768 numbers go to the classifier."""
