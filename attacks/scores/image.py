"""Image metrics, one value per image: MSE, PSNR and SSIM as scikit-image defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]
Values = NDArray[np.float64]

_SMALLEST_SSIM_SIDE = 7  # scikit-image's default uniform window


def _pair(truth: Pixels, guess: Pixels, data_range: float) -> tuple[Pixels, Pixels]:
    if truth.shape != guess.shape or truth.ndim != 4:
        raise ValueError(f"need two arrays [N, C, H, W] of one shape, got {truth.shape} and {guess.shape}")
    if not data_range > 0:
        raise ValueError(f"data_range must be > 0 (1.0 for images in [0, 1]), got {data_range}")
    if not (np.isfinite(truth).all() and np.isfinite(guess).all()):
        raise ValueError("images hold NaN or infinity: there is nothing to compare")
    return truth, guess


def mse(truth: Pixels, guess: Pixels, *, data_range: float) -> Values:
    """Mean squared error ≥ 0 of each of N images [N, C, H, W], as a share of the data range squared; lower is closer.

    Source: scikit-image `mean_squared_error`, after division by the data range (largest minus smallest possible value).
    """
    truth, guess = _pair(truth, guess, data_range)
    difference = (truth.astype(np.float64) - guess) / data_range
    return np.asarray(np.square(difference).mean(axis=(1, 2, 3)))


def psnr(truth: Pixels, guess: Pixels, *, data_range: float) -> Values:
    """Peak signal-to-noise ratio of each of N images, in dB, float64 [N]; higher is closer, `inf` for an exact copy.

    It is computed image by image: the mean of these values is not the PSNR of the mean MSE.

    Source: scikit-image `peak_signal_noise_ratio`; 10·log10(range²/MSE).
    """
    with np.errstate(divide="ignore"):
        return np.asarray(-10 * np.log10(mse(truth, guess, data_range=data_range)))


def ssim(truth: Pixels, guess: Pixels, *, data_range: float) -> Values:
    """Structural similarity of each of N images, float64 [N] in [−1, 1]; higher is closer.

    It is computed in a uniform 7×7 window, and averaged over channels; sides must have at least 7 pixels.

    Source: Wang et al. 2004, computed by scikit-image `structural_similarity`.
    """
    from skimage.metrics import structural_similarity

    truth, guess = _pair(truth, guess, data_range)
    if min(truth.shape[2:]) < _SMALLEST_SSIM_SIDE:
        raise ValueError(f"SSIM needs images of at least 7×7 pixels, got {truth.shape[2]}×{truth.shape[3]}")
    pairs = zip(truth.astype(np.float64), guess.astype(np.float64), strict=True)
    return np.array([structural_similarity(a, b, data_range=data_range, channel_axis=0) for a, b in pairs])


IMAGE_METRICS = {"mse": mse, "psnr": psnr, "ssim": ssim}
"""Name -> function of each image metric, in the order of the tables."""


def image_scores(truth: Pixels, guess: Pixels, *, data_range: float) -> dict[str, Values]:
    """Compute every image metric, name -> float64 [N], without SSIM if images are too small; arguments as in `mse`."""
    small = min(truth.shape[2:]) < _SMALLEST_SSIM_SIDE
    metrics = {name: metric for name, metric in IMAGE_METRICS.items() if not (small and name == "ssim")}
    return {name: metric(truth, guess, data_range=data_range) for name, metric in metrics.items()}
