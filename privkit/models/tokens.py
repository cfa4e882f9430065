"""Transformers in two segments with tokens between them. Weight names and random initial values equal timm's."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import sqrt
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.errors import UsageError
from privkit.torch_utils.out_of_memory import ran_out

EPSILON = 1e-6  # ε of layer normalization in timm's transformers; torch's own default is larger


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        mixed: Tensor = self.fc2(functional.gelu(self.fc1(tokens)))
        return mixed


class Attention(nn.Module):
    """Multi-head attention; the heads split the width equally. `fused_attn` says whether a fused kernel is used."""

    def __init__(self, width: int, heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.heads, self.fused_attn = heads, True
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=qkv_bias), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, width = tokens.shape
        q, k, v = self.qkv(tokens).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused_attn:
            seen = functional.scaled_dot_product_attention(q, k, v)
        else:
            seen = ((q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        mixed: Tensor = self.proj(seen.transpose(1, 2).reshape(n, length, width))
        return mixed


class Block(nn.Module):
    """A transformer block, with layer normalization before the attention and before the MLP.

    Args:
        heads: number of attention heads, a divisor of width.
        mlp_ratio: width of the MLP's hidden layer, as a multiple of `width`.

    Source: Dosovitskiy et al. 2021, "An image is worth 16x16 words", equations 2 and 3; names of weights are timm's.
    """

    def __init__(
        self, width: int, heads: int, *, mlp_ratio: float = 4.0, qkv_bias: bool = True, epsilon: float = EPSILON
    ) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, epsilon), Attention(width, heads, qkv_bias)
        self.norm2, self.mlp = nn.LayerNorm(width, epsilon), Mlp(width, int(width * mlp_ratio))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


class UncutVit(nn.Module):
    """The parts of an uncut ViT, equal to timm's `VisionTransformer` with the same arguments and seed."""

    def __init__(
        self,
        *,
        img_size: tuple[int, int],
        patch_size: int,
        in_chans: int,
        num_classes: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        class_token: bool,
        no_embed_class: bool,
        global_pool: Literal["avg", "token"],
        pos_embed: Literal["learn", "none"],
    ) -> None:
        super().__init__()
        patches = (img_size[0] // patch_size) * (img_size[1] // patch_size)
        places = patches if no_embed_class or not class_token else patches + 1
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)})
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if class_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, places, embed_dim)) if pos_embed == "learn" else None
        self.blocks = nn.Sequential(*(Block(embed_dim, num_heads) for _ in range(depth)))
        pooled = global_pool == "avg"
        self.norm = nn.Identity() if pooled else nn.LayerNorm(embed_dim, EPSILON)
        self.fc_norm = nn.LayerNorm(embed_dim, EPSILON) if pooled else nn.Identity()
        self.head = nn.Linear(embed_dim, num_classes)
        if self.pos_embed is not None:
            draw(self.pos_embed)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        draw_linear(self)


def draw(weight: Tensor) -> None:
    """Draw weights in place from a normal distribution with standard deviation 0.02, equal to timm's for equal seeds.

    Source: timm's `trunc_normal_`, by the inverse error function. torch's newer version of it draws other numbers.
    """
    with torch.no_grad():
        weight.uniform_(-1, 1).erfinv_().mul_(0.02 * sqrt(2)).clamp_(-2, 2)  # ±1 would become infinite


def draw_linear(network: nn.Module) -> None:
    """Draw the weights of every linear layer of the network, and set the biases to zero."""
    for part in network.modules():
        if isinstance(part, nn.Linear):
            draw(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def centered(images: Tensor) -> Tensor:
    """Scale images from [0, 1] to [−1, 1], as the lower segments of privkit's image models do."""
    return (images - 0.5) / 0.5


class Centered(nn.Module):
    """`centered` as a module."""

    def forward(self, images: Tensor) -> Tensor:
        return centered(images)


def patches(images: Tensor, side: int, stride: int) -> Tensor:
    """Cut N images into T patches, row by row, each flattened like a convolution's weight: [N, T, C·side²]. Pixels
    beyond the last whole patch are left out; patches overlap if `stride` < `side`.
    """
    cells = images.unfold(2, side, stride).unfold(3, side, stride)
    return cells.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class PatchLinear(nn.Module):
    """A patch embedding as one matrix product, with the weights of timm's convolution `proj` under the same name.

    With `torch.func.vmap` over n clients, this is one batched product; a convolution would become a slow, grouped one.
    """

    def __init__(self, proj: nn.Conv2d) -> None:
        super().__init__()
        self.proj, self.side, self.stride = proj, proj.kernel_size[0], proj.stride[0]

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> tokens [N, T, D]."""
        return functional.linear(patches(images, self.side, self.stride), self.proj.weight.flatten(1), self.proj.bias)


def stackable(module: nn.Module) -> nn.Module:
    """Replace fused attention by plain products, in place, in privkit's and timm's blocks; returns the module. On a
    CPU, torch has no batching rule for fused attention, so n stacked clients would run one by one.
    """
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False  # type: ignore[assignment]
    return module


class Lower(nn.Module):
    """The client's segment: normalisation, patches, class token (if the client adds it), positions, first blocks."""

    pos_embed: Tensor | None

    def __init__(
        self, patch_embed: nn.Module, blocks: nn.Sequential, *, pos_embed: Tensor | None, cls_token: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.patch_embed, self.blocks, self.cls_token = patch_embed, stackable(blocks), cls_token
        if pos_embed is None or isinstance(pos_embed, nn.Parameter):
            self.pos_embed = pos_embed
        else:
            self.register_buffer("pos_embed", pos_embed, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] in [0, 1] -> tokens [N, T, D], or [N, T+1, D] with the class token in front."""
        tokens = self.patch_embed(centered(images))
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed
        encoded: Tensor = self.blocks(tokens)
        return encoded


class Upper(nn.Module):
    """The server's segment: class token (if the server adds it), remaining blocks, norm and classifier."""

    def __init__(
        self,
        blocks: nn.Sequential,
        *,
        norm: nn.Module,
        head: nn.Module,
        fc_norm: nn.Module | None = None,
        cls_token: nn.Parameter | None,
        pool: Literal["avg", "token"],
    ) -> None:
        super().__init__()
        self.cls_token, self.blocks, self.pool = cls_token, blocks, pool
        self.norm, self.fc_norm, self.head = norm, fc_norm or nn.Identity(), head

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, D] (T+1 with the client's class token) -> logits [N, classes]."""
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
        tokens = self.norm(self.blocks(tokens))
        pooled = tokens[:, 0] if self.pool == "token" else tokens.mean(1)
        logits: Tensor = self.head(self.fc_norm(pooled))
        return logits


class FirstBlock(nn.Module):
    """A frozen copy of the first block above the cut and of the server's class token; the client runs this block."""

    def __init__(self, block: nn.Module, cls_token: Tensor | None) -> None:
        super().__init__()
        self.block = deepcopy(block)
        self.cls_token = None if cls_token is None else nn.Parameter(cls_token.detach().clone())
        self.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, D] -> [N, T, D]. The block also reads the class token; the server adds its own."""
        if self.cls_token is None:
            return self.block(tokens)  # type: ignore[no-any-return]
        return self.block(torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1))[:, 1:]  # type: ignore[no-any-return]


def has_block(upper: nn.Module) -> TypeGuard[Upper]:
    """Whether a server's segment begins with a transformer block that `first_block` can take."""
    return isinstance(upper, Upper) and len(upper.blocks) > 0


def first_block(upper: nn.Module) -> FirstBlock:
    """Remove the first block from the server's segment, and return it with its weights. Raises `UsageError` if the
    segment does not begin with a transformer block.

    Source: the code of patch shuffling, in which the client runs the first of T2T-ViT-24's blocks, the server the rest.
    """
    if not has_block(upper):
        raise UsageError(
            "frozen_block=first takes a transformer's first block above the cut, and this model has none there; cut it "
            "lower, choose another model, or use frozen_block=true"
        )
    first, upper.blocks = upper.blocks[0], upper.blocks[1:]
    return FirstBlock(first, upper.cls_token)


def read_weights(path: str) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors file, or from a .pth file of plain tensors; other files raise `UsageError`.

    An outer dictionary of a training script ("state_dict_ema", "state_dict", "model") is removed.
    """
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if ran_out(error):
            raise
        raise UsageError(f"checkpoint {path} cannot be read as safetensors or plain tensors: {error}") from None
    for wrapper in ("state_dict_ema", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
        raise UsageError(f"checkpoint {path} cannot be read as safetensors or plain tensors: it holds no state dict")
    return state


def load_fitting(model: nn.Module, state: Mapping[str, Tensor], path: str, needed: tuple[str, ...], fit: str) -> None:
    """Load the weights of `state` whose shapes fit the model; for example, a classifier of another size is skipped.
    Raises `UsageError` if a weight of the model whose name begins with one of `needed` is missing or does not fit. The
    message names the file `path` and the options `fit`.
    """
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    absent = sorted(name for name in own if name.startswith(needed) and name not in fitting)
    if absent:
        raise UsageError(f"checkpoint {path} does not fit {fit}: {absent[0]} is missing or has another shape")
    model.load_state_dict(fitting, strict=False)
