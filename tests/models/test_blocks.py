"""Our transformer layers are timm's: the same names, the same weights for a seed, the same numbers, bit by bit."""

from functools import partial
from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from timm.layers.mlp import Mlp as TimmMlp
from timm.layers.weight_init import trunc_normal_
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from privkit.models.tokens import Block, Mlp, UncutVit, draw, stackable

TOKENS = [
    {"class_token": False, "no_embed_class": True, "global_pool": "avg"},
    {"class_token": True, "no_embed_class": True, "global_pool": "token"},
    {"class_token": True, "no_embed_class": False, "global_pool": "token"},
]
NORM = partial(nn.LayerNorm, eps=1e-6)
"""That of timm's networks; a block alone has another one in older versions."""


def seeded(make: Any, *given: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    return make(*given, **options)


def assert_same_weights(ours: nn.Module, theirs: nn.Module) -> None:
    """Under the same names in the same order, so that an optimizer takes them alike."""
    own, others = list(ours.named_parameters()), list(theirs.named_parameters())
    assert [name for name, _ in own] == [name for name, _ in others]
    assert all(torch.equal(value, other) for (_, value), (_, other) in zip(own, others, strict=True))


def passed(module: nn.Module, tokens: Tensor) -> list[Tensor]:
    """What a module answers, and the gradients of its input and its weights."""
    given = tokens.clone().requires_grad_()
    out = module.train()(given)
    return [out, *torch.autograd.grad(out.square().sum(), [given, *module.parameters()])]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("positions", ["learn", "none"])
def test_a_seed_draws_timms_weights(tokens: dict[str, Any], positions: str) -> None:
    if positions == "learn" and Version(timm.__version__) < Version("1.0.23"):
        pytest.skip(f"timm {timm.__version__} draws the positions twice")
    sizes = {"img_size": (12, 8), "patch_size": 4, "in_chans": 3, "num_classes": 5, "embed_dim": 24, "depth": 2}
    options: dict[str, Any] = {**sizes, **tokens, "num_heads": 3, "pos_embed": positions}
    ours, theirs = seeded(UncutVit, **options), None
    after = torch.get_rng_state()
    theirs = seeded(VisionTransformer, **options)
    assert torch.equal(torch.get_rng_state(), after)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("own", "options"),
    [
        ({}, {"qkv_bias": True, "norm_layer": NORM}),
        ({"mlp_ratio": 3.0}, {"mlp_ratio": 3.0, "qkv_bias": True, "norm_layer": NORM}),
        ({"qkv_bias": False, "epsilon": 1e-5}, {"norm_layer": nn.LayerNorm}),  # T2T-ViT's
    ],
)
def test_a_block_computes_what_timms_computes(fused: bool, own: dict[str, Any], options: dict[str, Any]) -> None:
    ours, theirs = seeded(Block, 24, 3, **own), seeded(TimmBlock, 24, 3, **options)
    assert_same_weights(ours, theirs)
    if not fused:
        stackable(ours), stackable(theirs)
    tokens = torch.randn(2, 7, 24)
    assert all(torch.equal(a, b) for a, b in zip(passed(ours, tokens), passed(theirs, tokens), strict=True))


def test_an_mlp_computes_what_timms_computes() -> None:
    ours, theirs = seeded(Mlp, 8, 16), seeded(TimmMlp, 8, 16)
    assert_same_weights(ours, theirs)
    tokens = torch.randn(2, 5, 8)
    assert all(torch.equal(a, b) for a, b in zip(passed(ours, tokens), passed(theirs, tokens), strict=True))


def test_weights_are_drawn_as_timm_draws_them() -> None:
    ours, theirs = torch.empty(300, 50), torch.empty(300, 50)
    seeded(draw, ours)
    seeded(trunc_normal_, theirs, std=0.02)
    assert torch.equal(ours, theirs)
    assert ours.std().item() == pytest.approx(0.02, rel=0.02)
