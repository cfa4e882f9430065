"""T2T-ViT, cut after its tokens-to-token module or after a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.constraints import Count, Positive
from privkit.domains.images.domain import Images
from privkit.models.base import SMALL_IMAGE, Depth, NamedCuts, SplitModel, check_class_token
from privkit.models.tokens import Block, Lower, Mlp, Upper, draw, draw_linear, load_fitting, patches, read_weights
from privkit.torch_utils.seeded import seeded

_TOKEN = 64  # size of a token inside the tokens-to-token module
_LONG = 512  # above this number of tokens, attention is fused, since T² weights per image would not fit in memory


class _TokenTransformer(nn.Module):
    """A one-head attention layer that changes the token size to 64; the attention's values serve as the residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(_TOKEN)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(size, 3 * _TOKEN, bias=False), "proj": nn.Linear(_TOKEN, _TOKEN)})
        self.mlp = Mlp(_TOKEN, _TOKEN)
        self.scale = size**-0.5

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.attn["qkv"](self.norm1(tokens)).chunk(3, -1)
        if tokens.shape[1] > _LONG:
            q, k, one_head = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
            seen = functional.scaled_dot_product_attention(q, k, one_head, scale=self.scale).squeeze(1)
        else:
            seen = ((q * self.scale) @ k.transpose(1, 2)).softmax(-1) @ v
        tokens = v + self.attn["proj"](seen)
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


class _TokensToToken(nn.Module):
    """Three soft splits (overlapping patches), each followed by a layer: two transformer layers and a linear layer."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.splits = (_soft_split(stride), _soft_split(2), _soft_split(2))
        self.attention1 = _TokenTransformer(channels * self.splits[0][0] ** 2)
        self.attention2 = _TokenTransformer(_TOKEN * self.splits[1][0] ** 2)
        self.project = nn.Linear(_TOKEN * self.splits[2][0] ** 2, width)

    def grid(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """The numbers of rows and columns of output tokens."""
        _, height, width = image_shape
        for kernel, stride, pad in self.splits:
            height, width = ((side + 2 * pad - kernel) // stride + 1 for side in (height, width))
        return height, width

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> tokens [N, T, width]."""
        maps = images
        for split, layer in zip(self.splits, (self.attention1, self.attention2, self.project), strict=True):
            kernel, stride, pad = split
            tokens: Tensor = layer(patches(functional.pad(maps, (pad,) * 4), kernel, stride))
            height, width = ((side + 2 * pad - kernel) // stride + 1 for side in maps.shape[2:])
            maps = tokens.transpose(1, 2).unflatten(2, (height, width))
        return tokens


def _soft_split(stride: int) -> tuple[int, int, int]:
    """(Kernel, stride, padding) of a soft split, as published for strides 4 and 2. The grid shrinks by the stride."""
    kernel = max(3, 2 * stride - 1)
    return kernel, stride, (kernel - stride + 1) // 2


class WholeT2tVit(nn.Module):
    """The modules of the uncut network, with the weight names of the authors' code."""

    def __init__(self, spec: T2tVit, channels: int, classes: int, stride: int) -> None:
        super().__init__()
        width = spec.width
        self.tokens_to_token = _TokensToToken(channels, width, stride)
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
    """T2T-ViT with a transformer-type tokens-to-token module.

    For images of 224×224 pixels, a token represents 16×16 pixels. The patches overlap, so tokens reveal their neighbors
    even without positions, and `SplitModel.hides_places` is False. Positions are fixed sinusoids.

    Attributes:
        width: token size D: 384 for T2T-ViT-14, 512 for T2T-ViT-24.
        depth: number of blocks: 14 or 24.
        heads: number of attention heads, a divisor of width: 6 or 8.
        mlp_ratio: width of the hidden layer of a block's MLP, as a multiple of D.
        stride: stride in pixels of the first soft split (overlapping patches); None means 4, as published, for images
            of 64 pixels or more per side, and 1 for smaller ones.
        cut: last layer of the lower segment: "tokens" (tokens-to-token and positions, which the patch-shuffling paper
            runs at the edge), "block1", "block2", ...
        class_token: who owns the class token. "server" adds it to the smashed data, so blocks below the cut do not see
            it. "client" puts it in front of the tokens before positions are added, so one token more crosses the cut.
        checkpoint: path of the authors' state dict (.safetensors, or .pth read with weights_only). Their network scales
            the blocks' attention by D^(−1/2), not (D/heads)^(−1/2), so queries are rescaled on loading.

    Source: Yuan et al. 2021, "Tokens-to-token ViT", §3 and tables 1 and 2.

    >>> split = T2T_VIT.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64, 384])
    """

    domain: ClassVar[str] = "images"
    overlapping: ClassVar[bool] = True

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
            net = WholeT2tVit(self, domain.shape[0], classes, stride)
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
            head=net.head,
            cls_token=None if clients else net.cls_token,
            pool="token",
        )
        return SplitModel(lower=lower, upper=upper, hides_places=False, class_token=self.class_token)

    def _load(self, net: WholeT2tVit, path: str) -> None:
        state = {name.removeprefix("module."): value for name, value in read_weights(path).items()}
        for name in [name for name in state if name.startswith("blocks.") and name.endswith(".qkv.weight")]:
            query, rest = state[name][: self.width], state[name][self.width :]
            state[name] = torch.cat([query * self.heads**-0.5, rest])
        load_fitting(net, state, path, ("tokens_to_token", "blocks"), f"width={self.width}, depth={self.depth}")


def sinusoids(length: int, width: int) -> Tensor:
    """Fixed positions [1, length, width]: sines in even and cosines in odd columns (Vaswani et al. 2017, §3.5)."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[None].float()


T2T_VIT = T2tVit()  # T2T-ViT-14, cut after the tokens-to-token module
