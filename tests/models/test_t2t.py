"""T2T-ViT against a plain second writing of the paper, its published size, and weights under the authors' names."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models import SplitModel
from privkit.models.t2t import T2T_VIT, T2tVit, WholeT2tVit, sinusoids

SPEC = T2tVit(width=48, depth=3, heads=4)
SPLITS = {1: [(3, 1, 1), (3, 2, 1), (3, 2, 1)], 4: [(7, 4, 2), (3, 2, 1), (3, 2, 1)]}


def plain(
    s: dict[str, Tensor],
    images: Tensor,
    stride: int,
    heads: int,
    depth: int,
    scale: float,
    positions: bool,
    join: int = 0,
) -> Tensor:
    """Yuan et al.'s network from a state dict; the class token joins before block `join`, in the paper the first."""

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, s[f"{name}.weight"], s.get(f"{name}.bias"))

    def norm(x: Tensor, name: str, eps: float) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], s[f"{name}.weight"], s[f"{name}.bias"], eps)

    def mlp(x: Tensor, name: str) -> Tensor:
        return linear(functional.gelu(linear(x, f"{name}.fc1")), f"{name}.fc2")

    maps = images
    for i, (kernel, step, pad) in enumerate(SPLITS[stride]):
        x = functional.unfold(maps, kernel, stride=step, padding=pad).transpose(1, 2)
        if i == 2:
            x = linear(x, "tokens_to_token.project")
            break
        name = f"tokens_to_token.attention{i + 1}"
        q, k, v = linear(norm(x, f"{name}.norm1", 1e-5), f"{name}.attn.qkv").split(64, 2)
        weights = (q @ k.transpose(1, 2) * x.shape[2] ** -0.5).softmax(2)
        x = v + linear(weights @ v, f"{name}.attn.proj")
        x = x + mlp(norm(x, f"{name}.norm2", 1e-5), f"{name}.mlp")
        side = round(x.shape[1] ** 0.5)
        maps = functional.fold(x.transpose(1, 2), side, 1)
    x = torch.cat([s["cls_token"].expand(len(x), -1, -1), x], 1)
    if positions:
        d = x.shape[2]
        at = torch.arange(x.shape[1], dtype=torch.float64)
        for j in range(d):
            angle = at / 10000 ** (2 * (j // 2) / d)
            x[:, :, j] += (angle.cos() if j % 2 else angle.sin()).float()
    x, class_token = (x[:, 1:], x[:, :1]) if join else (x, None)
    for i in range(depth):
        if class_token is not None and i == join:
            x = torch.cat([class_token, x], 1)
        name = f"blocks.{i}"
        q, k, v = (
            part.unflatten(2, (heads, -1)).transpose(1, 2)
            for part in linear(norm(x, f"{name}.norm1", 1e-5), f"{name}.attn.qkv").chunk(3, 2)
        )
        seen = ((q * scale) @ k.transpose(2, 3)).softmax(3) @ v
        x = x + linear(seen.transpose(1, 2).flatten(2), f"{name}.attn.proj")
        x = x + mlp(norm(x, f"{name}.norm2", 1e-5), f"{name}.mlp")
    if class_token is not None and join == depth:
        x = torch.cat([class_token, x], 1)
    return linear(norm(x, "norm", 1e-5)[:, 0], "head")


def random_state(channels: int, stride: int) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    whole = WholeT2tVit(SPEC, channels, 10, stride).state_dict()
    return {name: value + 0.1 * torch.randn(value.shape, generator=draws) for name, value in whole.items()}


def logits(split: SplitModel, images: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = split.upper.eval()(split.lower.eval()(images))
    return found


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("cut", SPEC.cuts)
@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize(("size", "stride"), [(32, 1), (64, 4)])
def test_released_weights_give_the_papers_forward(
    tmp_path: Path, cut: str, positions: bool, size: int, stride: int
) -> None:
    """Released weights were trained with attention scaled by D^(−1/2)."""
    state = random_state(3, stride)
    save_file(state, tmp_path / "t2t.safetensors")
    below = SPEC.cuts.index(cut)  # the server's class token joins there, as in the patch-shuffling paper's cloud
    images = torch.rand(2, 3, size, size)
    owners: list[tuple[Literal["server", "client"], int]] = [("server", below), ("client", 0)]
    for owner, join in owners:
        if owner == "client" and not positions:
            continue
        spec = replace(SPEC, cut=cut, class_token=owner, checkpoint=str(tmp_path / "t2t.safetensors"))
        ours = logits(spec.build(Images(shape=(3, size, size)), 10, positions=positions, seed=0), images)
        theirs = plain(state, (images - 0.5) / 0.5, stride, 4, 3, 48**-0.5, positions, join)
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)
        unscaled = plain(state, (images - 0.5) / 0.5, stride, 4, 3, 12**-0.5, positions, join)
        if join < SPEC.depth:  # behind the last block the token has seen nothing
            assert (unscaled - theirs).abs().max() > 1e-3


def test_new_weights_scale_attention_by_the_heads_size() -> None:
    images = torch.rand(2, 3, 32, 32)
    split = SPEC.build(Images(shape=(3, 32, 32)), 10, positions=False, seed=0)
    with torch.no_grad():
        for weight in [*split.lower.parameters(), *split.upper.parameters()]:
            weight.add_(torch.randn(weight.shape), alpha=0.1)
    names = {name.replace("patch_embed", "tokens_to_token"): value for name, value in split.lower.state_dict().items()}
    theirs = plain({**names, **split.upper.state_dict()}, (images - 0.5) / 0.5, 1, 4, 3, 12**-0.5, False)
    torch.testing.assert_close(logits(split, images), theirs, atol=2e-5, rtol=1e-5)


def test_names_are_the_authors(tmp_path: Path) -> None:
    names = set(WholeT2tVit(replace(SPEC, depth=1), 3, 10, 4).state_dict())
    token = {f"tokens_to_token.attention{i}.{part}" for i in (1, 2) for part in _layer(qkv_bias=False)}
    block = {f"blocks.0.{part}" for part in _layer(qkv_bias=False)}
    ends = {f"{name}.{kind}" for name in ("tokens_to_token.project", "norm", "head") for kind in ("weight", "bias")}
    assert names == token | block | ends | {"cls_token"}
    short = {name: value for name, value in random_state(3, 1).items() if not name.startswith("blocks.2")}
    save_file(short, tmp_path / "short.safetensors")
    with pytest.raises(UsageError, match=r"does not fit width=48, depth=3: blocks\.2\.attn\.proj\.bias is missing"):
        replace(SPEC, checkpoint=str(tmp_path / "short.safetensors")).build(
            Images(shape=(3, 32, 32)), 10, positions=True, seed=0
        )


def _layer(*, qkv_bias: bool) -> set[str]:
    """Names of a transformer layer's weights."""
    parts = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    return {
        f"{p}.{kind}" for p in parts for kind in ("weight", "bias") if qkv_bias or (p, kind) != ("attn.qkv", "bias")
    }


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("width", "depth", "heads", "millions"), [(384, 14, 6, 21.5), (512, 24, 8, 64.1)])
def test_published_sizes(width: int, depth: int, heads: int, millions: float) -> None:
    """Yuan et al. 2021, table 2; the fixed positions are counted there as weights."""
    split = T2tVit(width=width, depth=depth, heads=heads).build(
        Images(shape=(3, 224, 224)), 1000, positions=True, seed=0
    )
    weights = sum(w.numel() for half in (split.lower, split.upper) for w in half.parameters())
    assert round((weights + sinusoids(197, width).numel()) / 1e6, 1) == millions
    with torch.no_grad():
        assert split.lower(torch.zeros(1, 3, 224, 224)).shape == (1, 196, width)


def test_overlapping_tokens_never_hide_places() -> None:
    """Moving one 16-pixel patch changes more tokens than its own."""
    split = replace(SPEC, stride=4).build(Images(shape=(3, 64, 64)), 10, positions=False, seed=0)
    images = torch.rand(1, 3, 64, 64)
    swapped = images.clone()
    swapped[..., :16, :16], swapped[..., :16, 16:32] = images[..., :16, 16:32], images[..., :16, :16]
    with torch.no_grad():
        before, after = split.lower(images)[0], split.lower(swapped)[0]
    assert split.hides_places is False
    assert torch.cdist(after, before).amin(1).max() > 1e-3 * before.norm(dim=1).max()


def test_only_positions_tell_places_of_one_color() -> None:
    """Away from the padded border, tokens of one color are equal if and only if no position is added."""
    for positions in (True, False):
        split = replace(SPEC, stride=4).build(Images(shape=(3, 224, 224)), 10, positions=positions, seed=0)
        with torch.no_grad():
            tokens = split.lower(torch.full((1, 3, 224, 224), 0.3))[0].unflatten(0, (14, 14))
        inside = tokens[3:-3, 3:-3].flatten(0, 1)
        assert bool((inside - inside[0]).abs().max() < 1e-5) is not positions


def test_bad_fields() -> None:
    for bad in ({"width": 50}, {"depth": 0}, {"stride": 0}, {"mlp_ratio": 0.0}, {"mlp_ratio": float("nan")}):
        with pytest.raises(ValueError, match="must"):
            T2tVit(**bad)  # type: ignore[arg-type]
    assert T2T_VIT.cut == "tokens"
