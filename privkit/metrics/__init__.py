"""Metrics: per example, with a declared data range; a reduction is always named by the caller."""

METRICS: dict[str, str] = {
    "accuracy": "privkit.metrics.classification:accuracy",
    "mse": "privkit.metrics.image:mse",
    "psnr": "privkit.metrics.image:psnr",
    "ssim": "privkit.metrics.image:ssim",
}
"""Name -> "module:function" of every metric."""
