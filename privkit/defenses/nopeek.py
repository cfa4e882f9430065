"""Penalties on distance correlation: of images and smashed data (NoPeek), or of labels and smashed data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privkit.constraints import NonNegative
from privkit.defenses.base import Effect, FrozenBlock
from privkit.defenses.none import Unchanged
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class NoPeek(Unchanged):
    """Adds weight · dCor(images, smashed data) of each batch to the clients' loss; nothing is proven.

    Attributes:
        weight: weight ≥ 0 of the distance correlation dCor, which lies in [0, 1]; for comparison, the task's loss
            starts near ln(classes).

    Source: Vepakomma et al. 2020, "NoPeek: Information leakage reduction to share activations in distributed deep
    learning"; the default weight is privkit's.
    """

    name: ClassVar[str] = "nopeek"
    effects: ClassVar[frozenset[Effect]] = frozenset({"trains"})
    images_only: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 2
    receipt: ClassVar[Nothing] = Nothing(
        reason="a low distance correlation over the batches of the training bounds no attack, and the first rounds "
        "send smashed data that are not decorrelated yet; no differential privacy",
        source="Vepakomma et al. 2020 claim no bound",
    )

    weight: NonNegative = 1.0
    frozen_block: FrozenBlock = False

    def penalty(self, images: Tensor, smashed: Tensor, companion: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Weighted distance correlation of each message, [M]; raises a ValueError for messages of one image."""
        if images.shape[1] < self.smallest_batch:
            raise ValueError(
                f"nopeek needs batches of at least 2 images, got {images.shape[1]}: a batch of one has no distances"
            )
        return self.weight * distance_correlation(images.flatten(2), smashed.flatten(2))


@dataclass(frozen=True, kw_only=True)
class LabelDecorrelation(Unchanged):
    """Adds weight · dCor(smashed data, labels) of each batch to the label holder's loss; nothing is proven.

    dCor is the distance correlation with one-hot labels. The label holder sends back the gradient of the whole loss, so
    clients learn to send smashed data that reveal less about labels. An adversary who reads this gradient still learns
    the labels.

    Attributes:
        weight: weight of the distance correlation, ≥ 0.

    Source: Sun et al. 2022, "Label leakage and protection from forward embedding in vertical federated learning" (arXiv
    2203.01451); the default weight is privkit's.
    """

    name: ClassVar[str] = "label_decorrelation"
    effects: ClassVar[frozenset[Effect]] = frozenset({"answers"})
    smallest_batch: ClassVar[int] = 2
    soft_labels: ClassVar[bool] = True
    receipt: ClassVar[Nothing] = Nothing(
        reason="a low distance correlation over the batches of the training bounds no attack, and gradients that go "
        "back follow from labels; no differential privacy",
        source="Sun et al. 2022 claim no bound",
    )
    place = "server"
    at_inference = False

    weight: NonNegative = 0.3
    frozen_block: FrozenBlock = False

    def label_term(self, arrived: Tensor, labels: Tensor) -> Tensor:
        return self.weight * distance_correlation(arrived.flatten(2), labels)


def distance_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Distance correlation (V-statistic) of B paired vectors x [M, B, P] and y [M, B, Q] in each of M batches, [M].

    It lies in [0, 1] up to rounding, in float32 or wider, and is 0 if the x or the y of a batch are constant. Its
    gradient is finite everywhere: the gradient is set to 0 at coinciding vectors and at a correlation of 0, for which
    the square root has no derivative.

    Source: Székely, Rizzo and Bakirov 2007, "Measuring and testing dependence by correlation of distances", Def. 4.
    """
    with torch.autocast(x.device.type, enabled=False):  # bf16 has too few digits for differences
        a, b = _centered_distances(x), _centered_distances(y)
        covariance, first, second = (a * b).mean((1, 2)), a.square().mean((1, 2)), b.square().mean((1, 2))
        both = first * second
        varied = both > 0
        squared = covariance / torch.where(varied, both, torch.ones_like(both)).sqrt()
        return _root(torch.where(varied, squared, torch.zeros_like(squared)), torch.finfo(both.dtype).eps)


def _centered_distances(samples: Tensor) -> Tensor:
    """Doubly centered matrices of the Euclidean distances of B samples, for each of M batches: [M, B, P] -> [M, B, B].

    Samples are first divided by their largest norm, which cancels in the distance correlation. Distances are computed
    by one batched matrix product; distances below this product's rounding error count as zero.
    """
    z = samples if samples.dtype == torch.float64 else samples.float()
    z = z - z.mean(1, keepdim=True)
    largest = z.detach().norm(dim=2).amax(1).view(-1, 1, 1)
    z = z / torch.where(largest > 0, largest, torch.ones_like(largest))
    squares = z.square().sum(2)
    gaps = squares.unsqueeze(1) + squares.unsqueeze(2) - 2 * z @ z.transpose(1, 2)
    off = ~torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    d = _root(gaps * off, 16 * torch.finfo(z.dtype).eps)
    return d - d.mean(1, keepdim=True) - d.mean(2, keepdim=True) + d.mean((1, 2), keepdim=True)


def _root(x: Tensor, tiny: float) -> Tensor:
    large = x > tiny
    return torch.where(large, torch.where(large, x, torch.ones_like(x)).sqrt(), torch.zeros_like(x))
