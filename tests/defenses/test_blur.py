"""Blur: against scikit-image's block means, and nothing but those left."""

import numpy as np
import pytest
import torch
from skimage.measure import block_reduce
from torch import Generator

from privkit.defenses.blur import Blur


def blurred(images: torch.Tensor, **options: object) -> torch.Tensor:
    return Blur(**options).apply(images, torch.zeros(images.shape[:2]), Generator())[0].smashed  # type: ignore[arg-type]


def test_nearest_enlarges_the_means_of_blocks() -> None:
    images = torch.rand(2, 3, 3, 28, 42, dtype=torch.float64, generator=Generator().manual_seed(0))
    means = block_reduce(images.numpy(), (1, 1, 1, 14, 14), np.mean)
    expected = means.repeat(14, axis=3).repeat(14, axis=4)
    np.testing.assert_allclose(blurred(images, enlarge="nearest").numpy(), expected, atol=1e-12)


def test_images_of_equal_blocks_blur_alike() -> None:
    """What the client holds are the means: detail below them changes nothing, at any enlargement."""
    images = torch.rand(1, 2, 1, 28, 28, dtype=torch.float64, generator=Generator().manual_seed(0))
    detail = torch.randn(images.shape, dtype=torch.float64, generator=Generator().manual_seed(1))
    cells = detail.unfold(3, 7, 7).unfold(4, 7, 7)
    detail = (cells - cells.mean((-1, -2), keepdim=True)).transpose(-3, -2).reshape(images.shape)
    for enlarge in ("bilinear", "nearest"):
        plain, detailed = (blurred(x, factor=7, enlarge=enlarge) for x in (images, images + detail))
        torch.testing.assert_close(plain, detailed)
    assert detail.abs().max() > 0.1


def test_sides_that_do_not_divide_average_what_a_pixel_touches() -> None:
    images = torch.rand(1, 1, 1, 32, 32, dtype=torch.float64, generator=Generator().manual_seed(0))
    release, receipt = Blur(factor=9, enlarge="nearest").apply(images, torch.zeros(1, 1), Generator())
    assert receipt.quantities == {"height": 3, "width": 3}
    windows = [(0, 11), (10, 22), (21, 32)]  # ⌊i·32/3⌋ to ⌈(i+1)·32/3⌉
    means = np.array([[images[0, 0, 0, a:b, c:d].mean().item() for c, d in windows] for a, b in windows])
    got = release.smashed[0, 0, 0].numpy()
    np.testing.assert_allclose(got[[0, 16, 31]][:, [0, 16, 31]], means, atol=1e-12)


def test_a_factor_of_one_is_no_blur_and_224_leaves_16() -> None:
    images = torch.rand(1, 2, 3, 9, 7)
    assert torch.equal(blurred(images, factor=1), images)
    receipt = Blur().apply(torch.zeros(1, 1, 1, 224, 224), torch.zeros(1, 1), Generator())[1]
    assert receipt.quantities == {"height": 16, "width": 16}
    certificate = receipt.certificate()
    assert certificate.kind == "nothing"
    assert certificate.quantities == {"height": 16.0, "width": 16.0}
    assert "16×16 pixels" in certificate.statement


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves no pixel of images of 12×28; use a factor of at most 12"):
        blurred(torch.zeros(1, 2, 3, 12, 28))
    with pytest.raises(ValueError, match="factor must be a whole number >= 1, got 0"):
        Blur(factor=0)
    with pytest.raises(ValueError, match="enlarge must be one of bilinear, nearest"):
        Blur(enlarge="cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs images"):
        blurred(torch.zeros(1, 2, 16, 8))
