"""Confusional labels: the server learns secret soft labels, and the label holder decodes the server's predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Generator, Tensor, nn

from privkit.constraints import Whole
from privkit.defenses.base import Defense, Effect, FrozenBlock, Release
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import NOT_DP, Nothing
from privkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ConfusionalLabels(Defense):
    """The label holder replaces label y by row y of a secret matrix C of soft labels; nothing is proven.

    The loss is the cross-entropy with C[y], so gradients look as if records had other labels. The label holder decodes
    a prediction p by p·C⁻¹. C only renames labels: all records of one label still have the same soft label and
    gradients of similar direction.

    Attributes:
        spread: probability, in [0, 1), that is spread evenly over all labels in a soft label; the remaining probability
            lies on one wrong label.
        seed: seed that determines the wrong label of each label.

    Source: Zou et al. 2022, "Defending batch-level label inference and replacement attacks in vertical federated
    learning", §4 (CAE): a confusional autoencoder with C as encoder and C⁻¹ as decoder. The paper trains the
    autoencoder to give wrong labels of high entropy; here C is drawn with this property and inverted, so decoding is
    exact.
    """

    name: ClassVar[str] = "confusional_labels"
    effects: ClassVar[frozenset[Effect]] = frozenset({"answers"})
    soft_labels: ClassVar[bool] = True
    place = "server"
    at_inference = False

    spread: Annotated[float, Ge(0), Lt(1)] = 0.5
    seed: Whole = 0
    frozen_block: FrozenBlock = False

    def matrix(self, classes: int) -> Tensor:
        """The matrix C, float64 [classes, classes]: row y is the soft label that replaces label y, and sums to 1."""
        cycle = _cycle(classes, self.seed)
        soft = torch.full((classes, classes), self.spread / classes, dtype=torch.float64)
        soft[cycle, cycle.roll(1)] += 1 - self.spread
        return soft

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        require_messages(self.name, smashed)
        soft = labels @ self.matrix(labels.shape[-1]).to(labels)
        return Release(smashed=smashed, labels=soft), Nothing(
            reason=f"smashed data leave as they are, and gradients of one label stay similar {NOT_DP}",
            source="Zou et al. 2022 claim no bound",
        )

    def head(self) -> nn.Module:
        return _Decoder(self)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _cycle(classes: int, seed: int) -> Tensor:
    """The labels in random order, int64 [classes]; each label is replaced by the next one."""
    return torch.randperm(classes, generator=Generator().manual_seed(seed))


class _Decoder(nn.Module):
    """Leaves logits [N, L] unchanged in training; at inference, turns soft labels' logits into true labels' logits."""

    def __init__(self, stage: ConfusionalLabels) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, logits: Tensor) -> Tensor:
        if not isinstance(logits, Tensor):
            raise UsageError(f"{self.stage.name} needs a server's segment with one output, got several")
        if self.training:
            return logits
        inverse = torch.linalg.inv(self.stage.matrix(logits.shape[1])).to(logits.device)
        shares: Tensor = logits.double().softmax(1) @ inverse
        return shares.clamp_min(1e-12).log().to(logits.dtype)
