"""Metrics: per example, with a declared data range; a reduction is always named by the caller."""

METRICS: dict[str, str] = {
    "accuracy": "privkit.metrics.classification:accuracy",
    "mse": "privkit.attacks.scores.image:mse",
    "psnr": "privkit.attacks.scores.image:psnr",
    "ssim": "privkit.attacks.scores.image:ssim",
}
"""Name -> "module:function" of every metric."""
