"""Image metrics equal scikit-image's own functions, image by image."""

import numpy as np
import pytest
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from privkit.attacks.scores.image import mse, psnr, ssim

SHAPES = [(5, 1, 28, 28), (4, 3, 32, 32), (3, 3, 9, 14)]


def pair(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    return draws.random(shape, dtype=np.float32), draws.random(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_scikit_image(shape: tuple[int, ...]) -> None:
    a, b = pair(shape)
    doubles = list(zip(a.astype(np.float64), b.astype(np.float64), strict=True))
    np.testing.assert_allclose(mse(a, b, data_range=1.0), [mean_squared_error(x, y) for x, y in doubles], rtol=1e-12)
    np.testing.assert_allclose(
        psnr(a, b, data_range=1.0), [peak_signal_noise_ratio(x, y, data_range=1.0) for x, y in doubles], rtol=1e-12
    )
    channels_last = [(x.transpose(1, 2, 0), y.transpose(1, 2, 0)) for x, y in doubles]
    np.testing.assert_allclose(
        ssim(a, b, data_range=1.0),
        [structural_similarity(x, y, data_range=1.0, channel_axis=-1) for x, y in channels_last],
        atol=1e-12,
    )


def test_a_declared_range_rescales() -> None:
    a, b = pair((3, 1, 8, 8))
    np.testing.assert_allclose(mse(2 * a - 1, 2 * b - 1, data_range=2.0), mse(a, b, data_range=1.0), rtol=1e-5)
    np.testing.assert_allclose(psnr(2 * a - 1, 2 * b - 1, data_range=2.0), psnr(a, b, data_range=1.0), rtol=1e-5)


def test_the_range_never_defaults() -> None:
    a, b = pair((1, 1, 8, 8))
    for metric in (mse, psnr, ssim):
        with pytest.raises(TypeError):
            metric(a, b)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="data_range"):
            metric(a, b, data_range=0.0)


def test_an_exact_copy() -> None:
    a, _ = pair((2, 1, 8, 8))
    assert (mse(a, a, data_range=1.0) == 0).all()
    assert np.isposinf(psnr(a, a, data_range=1.0)).all()
    assert ssim(a, a, data_range=1.0) == pytest.approx([1.0, 1.0])


def test_refuses_nan_other_shapes_and_small_images() -> None:
    a, b = pair((1, 1, 8, 8))
    with pytest.raises(ValueError, match="NaN"):
        mse(a, np.where(b > 0.5, np.nan, b), data_range=1.0)
    with pytest.raises(ValueError, match="one shape"):
        mse(a, b[:, :, :4], data_range=1.0)
    with pytest.raises(ValueError, match="7×7"):
        ssim(a[..., :6], b[..., :6], data_range=1.0)
