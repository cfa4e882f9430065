"""Metrics of guesses and of the classification task. Docstrings state the range of values, and whether there is one
value per example."""

METRICS: dict[str, str] = {
    "accuracy": "privkit.metrics.classification:accuracy",
    "auc": "privkit.metrics.classification:auc",
    "mcc": "privkit.metrics.classification:mcc",
    "mse": "privkit.attacks.scores.image:mse",
    "psnr": "privkit.attacks.scores.image:psnr",
    "ssim": "privkit.attacks.scores.image:ssim",
}
"""Name -> "module:function" of every metric."""

__all__ = ["METRICS"]
