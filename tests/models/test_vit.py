"""The split of a ViT is timm's own ViT, cut in two."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.base import SplitModel
from privkit.models.tokens import PatchLinear
from privkit.models.vit import VIT_BASE, VIT_MICRO, VIT_TINY, VIT_TINY6, Vit

SHAPE = (1, 28, 28)
IMAGES = Images(shape=SHAPE)


def timm_vit(spec: Vit, **options: Any) -> VisionTransformer:
    return VisionTransformer(
        img_size=28,
        patch_size=7,
        in_chans=1,
        num_classes=10,
        embed_dim=spec.width,
        depth=spec.depth,
        num_heads=spec.heads,
        **options,
    ).eval()


def merged(lower: torch.nn.Module, upper: torch.nn.Module, spec: Vit) -> dict[str, torch.Tensor]:
    """State of both segments under timm's own names."""
    cut = spec.cuts.index(spec.cut)
    state = dict(lower.state_dict())
    for name, value in upper.state_dict().items():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            name = f"blocks.{int(number) + cut}.{rest}"
        state[name] = value
    return state


def assert_equal(split: SplitModel, whole: torch.nn.Module, spec: Vit) -> None:
    """With the same weights, both segments give what timm's whole network gives."""
    whole.load_state_dict(merged(split.lower, split.upper, spec))
    images = torch.rand(3, *SHAPE)
    with torch.no_grad():
        ours, theirs = split.upper.eval()(split.lower.eval()(images)), whole((images - 0.5) / 0.5)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cut", VIT_MICRO.cuts)
@pytest.mark.parametrize("positions", [True, False])
def test_lower_then_upper_is_timms_forward(cut: str, positions: bool) -> None:
    """The patch embedding is a product in place of timm's convolution, and rounds differently."""
    spec = Vit(cut=cut)
    split = spec.build(IMAGES, 10, positions=positions, seed=0)
    whole = timm_vit(spec, class_token=False, global_pool="avg", pos_embed="learn" if positions else "none")
    assert_equal(split, whole, spec)


def test_a_class_token_belongs_to_the_server() -> None:
    spec = Vit(cut="embedding", pool="token")
    split = spec.build(IMAGES, 10, positions=True, seed=0)
    assert "cls_token" in split.upper.state_dict()
    assert "cls_token" not in split.lower.state_dict()
    whole = timm_vit(spec, class_token=True, global_pool="token", no_embed_class=True)
    assert_equal(split, whole, spec)
    assert split.lower(torch.rand(3, *SHAPE)).shape == (3, 16, 96)


@pytest.mark.parametrize("cut", VIT_MICRO.cuts)
def test_the_clients_class_token_is_timms_own(cut: str) -> None:
    """Token first, then a position for all T+1: timm's default order, and DP-CutMixSL §3.A's."""
    spec = Vit(cut=cut, pool="token", class_token="client")
    split = spec.build(IMAGES, 10, positions=True, seed=0)
    whole = timm_vit(spec, class_token=True, global_pool="token", no_embed_class=False)
    assert_equal(split, whole, spec)
    assert split.lower(torch.rand(3, *SHAPE)).shape == (3, 17, 96)
    assert "cls_token" not in split.upper.state_dict()


def test_without_positions_the_release_does_not_know_places() -> None:
    """Swapping patches of the image swaps tokens and changes nothing else; with positions it does."""
    images = torch.rand(2, *SHAPE)
    swapped = images.clone()
    swapped[..., :7, :7], swapped[..., 7:14, :7] = images[..., 7:14, :7], images[..., :7, :7]
    order = torch.arange(16)
    order[0], order[4] = 4, 0
    for positions in (False, True):
        lower = VIT_MICRO.build(IMAGES, 10, positions=positions, seed=0).lower.eval()
        with torch.no_grad():
            same = torch.allclose(lower(swapped), lower(images)[:, order], atol=1e-5)
        assert same is not positions


@pytest.mark.parametrize(
    ("spec", "shape", "tokens", "millions"),
    [
        (VIT_MICRO, (1, 28, 28), 16, 0.45),
        (VIT_TINY, (3, 32, 32), 64, 5.4),
        (VIT_TINY6, (3, 32, 32), 64, 2.7),
        pytest.param(VIT_BASE, (3, 224, 224), 196, 85.8, marks=pytest.mark.slow),
    ],
)
def test_sizes(spec: Vit, shape: tuple[int, int, int], tokens: int, millions: float) -> None:
    split = spec.build(Images(shape=shape), 10, positions=True, seed=0)
    with torch.no_grad():
        assert split.lower(torch.zeros(1, *shape)).shape == (1, tokens, spec.width)
    parameters = sum(p.numel() for part in (split.lower, split.upper) for p in part.parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.03)


def test_weights_follow_the_seed_and_nothing_else() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (VIT_MICRO.build(IMAGES, 10, positions=True, seed=s).lower.state_dict() for s in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_patch_must_divide_the_image() -> None:
    with pytest.raises(UsageError, match="does not divide images of 28×28; allowed"):
        Vit(patch=5).build(IMAGES, 10, positions=True, seed=0)
    for bad in ({"cut": "block5"}, {"cut": "block0"}, {"heads": 5}, {"width": 0}, {"depth": 10**9}):
        with pytest.raises(ValueError, match="must"):
            Vit(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_a_checkpoint_is_loaded_and_never_unpickled(tmp_path: Path, kind: str) -> None:
    trained = timm_vit(Vit(), class_token=False, global_pool="avg")
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(trained.state_dict(), path)
    else:
        torch.save(trained.state_dict(), path)
    split = Vit(checkpoint=str(path)).build(IMAGES, 10, positions=True, seed=0)
    name = "blocks.0.attn.qkv.weight"
    assert torch.equal(split.lower.state_dict()[name], trained.state_dict()[name])
    with pytest.raises(UsageError, match="does not fit width=48"):
        Vit(width=48, checkpoint=str(path)).build(IMAGES, 10, positions=True, seed=0)
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(UsageError, match="cannot be read as safetensors or plain tensors: it holds no state dict"):
        Vit(checkpoint=str(tmp_path / "list.pth")).build(IMAGES, 10, positions=True, seed=0)
    evil = tmp_path / "evil.pth"
    torch.save({"head": Vit()}, evil)
    with pytest.raises(UsageError, match="cannot be read"):
        Vit(checkpoint=str(evil)).build(IMAGES, 10, positions=True, seed=0)


@pytest.mark.parametrize("owner", ["server", "client"])
def test_a_published_checkpoint_with_a_position_for_its_class_token(tmp_path: Path, owner: Any) -> None:
    """The usual layout, T+1 positions, gives timm's logits whoever owns the token."""
    trained = timm_vit(Vit(), class_token=True, global_pool="token", no_embed_class=False)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(torch.randn(weight.shape), alpha=0.1)
    path = tmp_path / "published.pth"
    torch.save({"model": trained.state_dict()}, path)
    split = Vit(pool="token", class_token=owner, cut="embedding", checkpoint=str(path)).build(
        IMAGES, 10, positions=True, seed=0
    )
    images = torch.rand(3, *SHAPE)
    with torch.no_grad():
        ours, theirs = split.upper.eval()(split.lower.eval()(images)), trained((images - 0.5) / 0.5)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_patches_are_in_the_order_of_a_convolution() -> None:
    """Images that are not a square, and patches that overlap or leave pixels over."""
    for side, stride in ((4, 4), (5, 3), (3, 2)):
        conv, images = torch.nn.Conv2d(3, 7, side, stride), torch.rand(2, 3, 20, 12)
        tokens = PatchLinear(conv)(images)
        torch.testing.assert_close(tokens, conv(images).flatten(2).transpose(1, 2), atol=1e-5, rtol=0)
