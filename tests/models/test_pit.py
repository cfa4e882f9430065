"""The split of a PiT is timm's own, cut in two, on smaller patches."""

import pytest
import timm
import torch
from timm.models.pit import PoolingVisionTransformer

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.imported import hides_places
from privkit.models.pit import PIT_TINY, Pit

SHAPE = (3, 32, 32)
IMAGES = Images(shape=SHAPE)


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("cut", PIT_TINY.cuts)
@pytest.mark.parametrize("size", [28, 32])
def test_lower_then_upper_is_timms_forward(cut: str, size: int) -> None:
    split = Pit(cut=cut).build(Images(shape=(3, size, size)), 10, positions=True, seed=0)
    whole = PoolingVisionTransformer(
        img_size=size,
        patch_size=4,
        stride=2,
        num_classes=10,
        base_dims=(32, 32, 32),
        depth=(2, 6, 4),
        heads=(2, 4, 8),
    ).eval()
    state = {**split.lower.state_dict(), **split.upper.state_dict()}
    whole.load_state_dict({name.replace("embed.proj", "embed.conv"): value for name, value in state.items()})
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        ours, theirs = split.upper.eval()(split.lower.eval()(images)), whole((images - 0.5) / 0.5)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_at_224_pixels_it_is_the_published_network() -> None:
    """27×27 patches of 16 pixels and 4.85 million weights: PiT-Ti of Heo et al. 2021, table 1."""
    split = PIT_TINY.build(Images(shape=(3, 224, 224)), 1000, positions=True, seed=0)
    own = {w.shape for half in (split.lower, split.upper) for w in half.parameters()}
    published = timm.create_model("pit_ti_224")
    assert own == {w.shape for w in published.parameters()}
    with torch.no_grad():
        assert split.lower(torch.zeros(1, 3, 224, 224)).shape == (1, 27 * 27, 64)
    weights = sum(w.numel() for half in (split.lower, split.upper) for w in half.parameters())
    assert weights == sum(w.numel() for w in published.parameters())
    assert round(weights / 1e6, 2) == 4.85


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        (Pit(), (225, 64)),
        (Pit(cut="stage1"), (226, 64)),
        (Pit(cut="stage2"), (65, 128)),
        (Pit(cut="stage3"), (17, 256)),
        (Pit(patch=4, stride=4), (64, 64)),
    ],
)
def test_smashed_shapes(spec: Pit, tokens: tuple[int, int]) -> None:
    with torch.no_grad():
        assert spec.build(IMAGES, 10, positions=True, seed=0).lower(torch.zeros(2, *SHAPE)).shape == (
            2,
            *tokens,
        )


@pytest.mark.parametrize(("stride", "apart"), [(4, True), (2, False)])
def test_only_patches_that_lie_apart_hide_places(stride: int, apart: bool) -> None:
    for positions in (True, False):
        split = Pit(patch=4, stride=stride).build(IMAGES, 10, positions=positions, seed=0)
        assert split.hides_places is (apart and not positions)
        if apart:
            assert hides_places(split.lower, IMAGES) is split.hides_places
        with torch.no_grad():  # nothing is padded: without positions, one color gives one token
            tokens = split.lower(torch.full((1, *SHAPE), 0.3))[0]
        assert bool((tokens - tokens[0]).abs().max() < 1e-5) is not positions


def test_bad_patches() -> None:
    for bad in ({"patch": 0}, {"stride": -1}):
        with pytest.raises(ValueError, match="must be a whole number >= 1"):
            Pit(**bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"patch must be at most the image's smaller side \(8\), got 9"):
        Pit(patch=9).build(Images(shape=(1, 8, 8)), 10, positions=True, seed=0)
