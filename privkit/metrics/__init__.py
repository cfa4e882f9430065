"""Metrics, one value for each example, with a declared data range; callers choose how values are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.metrics.classification import TaskScores, accuracy, auc, mcc, task_scores
    from privkit.metrics.cost import Cost, measure, peak_memory
    from privkit.metrics.feature_networks import FeatureNetwork, feature_network
    from privkit.metrics.perception import Perception
    from privkit.metrics.perceptual import f_sim, identity, lpips, recognized

__all__ = [
    "METRICS",
    "Cost",
    "FeatureNetwork",
    "Perception",
    "TaskScores",
    "accuracy",
    "auc",
    "f_sim",
    "feature_network",
    "identity",
    "lpips",
    "mcc",
    "measure",
    "peak_memory",
    "recognized",
    "task_scores",
]

METRICS: dict[str, str] = {
    "accuracy": "privkit.metrics.classification:accuracy",
    "auc": "privkit.metrics.classification:auc",
    "mcc": "privkit.metrics.classification:mcc",
    "mse": "privkit.attacks.scores.image:mse",
    "psnr": "privkit.attacks.scores.image:psnr",
    "ssim": "privkit.attacks.scores.image:ssim",
}
"""Name -> "module:function" of every metric."""

__getattr__ = lazy(__name__)
