"""Measures of a guess: images, orders, and scores that separate two kinds of examples. Imports no attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.attacks.scores.image import IMAGE_METRICS, image_scores, mse, psnr, ssim
    from privkit.attacks.scores.labels import cluster_accuracy, label_accuracy
    from privkit.attacks.scores.leak import Leak, per_batch_auc, pooled_auc, roc_points, threshold_at, tpr_at
    from privkit.attacks.scores.nearest import found
    from privkit.attacks.scores.order import direct_accuracy, membership_accuracy, neighbor_accuracy

__all__ = [
    "IMAGE_METRICS",
    "Leak",
    "cluster_accuracy",
    "direct_accuracy",
    "found",
    "image_scores",
    "label_accuracy",
    "membership_accuracy",
    "mse",
    "neighbor_accuracy",
    "per_batch_auc",
    "pooled_auc",
    "psnr",
    "roc_points",
    "ssim",
    "threshold_at",
    "tpr_at",
]

__getattr__ = lazy(__name__)
