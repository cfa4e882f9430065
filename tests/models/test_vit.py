"""The split of a ViT is timm's own ViT, cut in two."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from privkit.errors import UsageError
from privkit.models import VIT_BASE, VIT_MICRO, VIT_TINY, Vit

SHAPE = (1, 28, 28)


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


def merged(lower: torch.nn.Module, upper: torch.nn.Module, cut: int) -> dict[str, torch.Tensor]:
    """State of both segments under timm's own names."""
    state = dict(lower.state_dict())
    for name, value in upper.state_dict().items():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            name = f"blocks.{int(number) + cut}.{rest}"
        state[name] = value
    return state


@pytest.mark.parametrize("cut", [0, 1, 3, 4])
@pytest.mark.parametrize("positions", [True, False])
def test_lower_then_upper_is_timms_forward(cut: int, positions: bool) -> None:
    spec = Vit(cut=cut)
    split = spec.build(SHAPE, 10, positions=positions, seed=0)
    whole = timm_vit(spec, class_token=False, global_pool="avg", pos_embed="learn" if positions else "none")
    whole.load_state_dict(merged(split.lower, split.upper, cut))
    images = torch.rand(3, *SHAPE)
    with torch.no_grad():
        ours, theirs = split.upper.eval()(split.lower.eval()(images)), whole((images - 0.5) / 0.5)
    if positions:
        assert torch.equal(ours, theirs)
    else:  # without positions timm lays the tokens out differently in memory, which rounds differently
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_class_token_belongs_to_the_server() -> None:
    spec = Vit(cut=0, pool="token")
    split = spec.build(SHAPE, 10, positions=True, seed=0)
    assert "cls_token" in split.upper.state_dict()
    assert "cls_token" not in split.lower.state_dict()
    whole = timm_vit(spec, class_token=True, global_pool="token", no_embed_class=True)
    whole.load_state_dict(merged(split.lower, split.upper, 0))
    images = torch.rand(3, *SHAPE)
    with torch.no_grad():
        assert torch.equal(split.upper.eval()(split.lower.eval()(images)), whole((images - 0.5) / 0.5))
    assert split.lower(images).shape == (3, 16, 96)


def test_without_positions_the_release_does_not_know_places() -> None:
    """Swapping patches of the image swaps tokens and changes nothing else; with positions it does."""
    images = torch.rand(2, *SHAPE)
    swapped = images.clone()
    swapped[..., :7, :7], swapped[..., 7:14, :7] = images[..., 7:14, :7], images[..., :7, :7]
    order = torch.arange(16)
    order[0], order[4] = 4, 0
    for positions in (False, True):
        lower = VIT_MICRO.build(SHAPE, 10, positions=positions, seed=0).lower.eval()
        with torch.no_grad():
            same = torch.allclose(lower(swapped), lower(images)[:, order], atol=1e-5)
        assert same is not positions


@pytest.mark.parametrize(
    ("spec", "shape", "tokens", "millions"),
    [
        (VIT_MICRO, (1, 28, 28), 16, 0.45),
        (VIT_TINY, (3, 32, 32), 64, 5.4),
        (VIT_BASE, (3, 224, 224), 196, 85.8),
    ],
)
def test_sizes(spec: Vit, shape: tuple[int, int, int], tokens: int, millions: float) -> None:
    split = spec.build(shape, 10, positions=True, seed=0)
    with torch.no_grad():
        assert split.lower(torch.zeros(1, *shape)).shape == (1, tokens, spec.width)
    parameters = sum(p.numel() for part in (split.lower, split.upper) for p in part.parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.03)


def test_weights_follow_the_seed_and_nothing_else() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (VIT_MICRO.build(SHAPE, 10, positions=True, seed=s).lower.state_dict() for s in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_patch_must_divide_the_image() -> None:
    with pytest.raises(UsageError, match="does not divide images of 28×28; allowed"):
        Vit(patch=5).build(SHAPE, 10, positions=True, seed=0)
    for bad in ({"cut": 5}, {"cut": -1}, {"heads": 5}, {"width": 0}):
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
    split = Vit(checkpoint=str(path)).build(SHAPE, 10, positions=True, seed=0)
    name = "blocks.0.attn.qkv.weight"
    assert torch.equal(split.lower.state_dict()[name], trained.state_dict()[name])
    with pytest.raises(UsageError, match="does not fit width=48"):
        Vit(width=48, checkpoint=str(path)).build(SHAPE, 10, positions=True, seed=0)
    evil = tmp_path / "evil.pth"
    torch.save({"head": Vit()}, evil)
    with pytest.raises(UsageError, match="cannot be read"):
        Vit(checkpoint=str(evil)).build(SHAPE, 10, positions=True, seed=0)
