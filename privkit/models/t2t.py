"""T2T-ViT, cut after its tokens-to-token module or after a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from privkit.constraints import Count, Positive
from privkit.domains.images.domain import Images
from privkit.models.base import SMALL_IMAGE, Depth, NamedCuts, SplitModel, check_class_token
from privkit.models.blocks import Block, draw, draw_linear
from privkit.models.tokens import Lower, Upper
from privkit.models.tokens_to_token import TokensToToken
from privkit.models.weights import load_fitting, read_weights
from privkit.torch_utils.seeded import seeded


class Whole(nn.Module):
    """The uncut network's parts, under the authors' names."""

    def __init__(self, spec: T2tVit, channels: int, classes: int, stride: int) -> None:
        super().__init__()
        width = spec.width
        self.tokens_to_token = TokensToToken(channels, width, stride)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        layers = (
            Block(width, spec.heads, mlp_ratio=spec.mlp_ratio, qkv_bias=False, epsilon=1e-5) for _ in range(spec.depth)
        )
        self.blocks = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        draw(self.cls_token)
        draw_linear(self)


@dataclass(frozen=True, kw_only=True)
class T2tVit(NamedCuts):
    """T2T-ViT with the transformer type of its tokens-to-token module.

    Sixteen-pixel tokens at 224 pixels. Soft splits overlap, so that a token tells its neighbors even without positions:
    `SplitModel.hides_places` is False. Positions are sinusoids and are not learned.

    Attributes:
        width: token size D: 384 for T2T-ViT-14, 512 for T2T-ViT-24.
        depth: blocks: 14 or 24.
        heads: a divisor of width: 6 or 8.
        mlp_ratio: hidden layer of a block's MLP in units of D.
        stride: of the first soft split; None is the published 4 from 64 pixels a side on, and 1 below.
        cut: last layer of the lower segment: "tokens" (tokens-to-token and positions: the edge of the patch-shuffling
            paper), "block1", "block2", ...
        class_token: who owns it: "server" adds it to the smashed data, and blocks below the cut never see it; "client"
            puts it in front of its tokens before positions are added, so that T+1 tokens cross.
        checkpoint: the authors' state dict (.safetensors, or .pth read with weights_only). Their released weights scale
            the blocks' attention by D^(−1/2), not (D/heads)^(−1/2); queries are rescaled on loading.

    Source: Yuan et al. 2021, "Tokens-to-token ViT", §3 and tables 1 and 2.

    >>> split = T2T_VIT.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64, 384])
    """

    domain: ClassVar[str] = "images"

    width: Count = 384
    depth: Depth = 14
    heads: Count = 6
    mlp_ratio: Positive = 3.0
    stride: Count | None = None
    cut: str = "tokens"
    class_token: Literal["server", "client"] = "server"
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2 or self.width % self.heads:
            raise ValueError(f"width must be even and a multiple of heads ({self.heads}), got {self.width}")

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("tokens", *(f"block{i + 1}" for i in range(self.depth)))

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        clients = self.class_token == "client"
        if clients:
            check_class_token(positions, "take class_token=server")
        with seeded(torch.device("cpu"), seed):
            stride = self.stride or (1 if min(domain.shape[1:]) < SMALL_IMAGE else 4)
            net = Whole(self, domain.shape[0], classes, stride)
        if self.checkpoint is not None:
            self._load(net, self.checkpoint)
        down, across = net.tokens_to_token.grid(domain.shape)
        table = sinusoids(down * across + 1, self.width) if positions else None
        if table is not None and not clients:
            net.cls_token.data += table[:, :1]  # its position is constant: the server's token contains it
            table = table[:, 1:]
        below = self.cuts.index(self.cut)
        lower = Lower(
            net.tokens_to_token, net.blocks[:below], pos_embed=table, cls_token=net.cls_token if clients else None
        )
        upper = Upper(
            net.blocks[below:],
            norm=net.norm,
            fc_norm=nn.Identity(),
            head=net.head,
            cls_token=None if clients else net.cls_token,
            pool="token",
        )
        return SplitModel(lower=lower, upper=upper, hides_places=False, class_token=self.class_token)

    def _load(self, net: Whole, path: str) -> None:
        """Load the authors' weights; a classifier of another size is left as it is."""
        state = {name.removeprefix("module."): value for name, value in read_weights(path).items()}
        for name in [name for name in state if name.startswith("blocks.") and name.endswith(".qkv.weight")]:
            query, rest = state[name][: self.width], state[name][self.width :]
            state[name] = torch.cat([query * self.heads**-0.5, rest])
        load_fitting(net, state, path, ("tokens_to_token", "blocks"), f"width={self.width}, depth={self.depth}")


def sinusoids(length: int, width: int) -> Tensor:
    """Fixed positions [1, length, width]: sines in even and cosines in odd columns.

    Source: Vaswani et al. 2017, §3.5.

    >>> sinusoids(2, 4)[0, 0]
    tensor([0., 1., 0., 1.])
    """
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[None].float()


T2T_VIT = T2tVit()
"""T2T-ViT-14, cut after the tokens-to-token module."""
