"""The fixed (deterministic) part of a defense, applied to each record separately. An adversary can compute it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import one_hot

from privkit.defenses.base import Defense, is_own
from privkit.torch_utils.seeded import seeded

_ROWS = 4
"""Number of random records on which a stage is tested for random draws."""


def known_forms(stages: Sequence[Defense], classes: int) -> list[nn.Module]:
    """The fixed (deterministic and public) part of each defense step that has one, as a module on N records [N, ...].

    White-box attacks invert these modules. privkit's own defenses declare their fixed part by `public_transform`. A
    user's declaration could be wrong, and the failure of an attack that relies on it would look like protection. So a
    user's defense itself is applied, with the noise options named in its `noise_fields` set to zero.
    """
    return [
        _AsApplied(stage, classes) if is_own(stage) and stage.group == 1 else PublicTransform(stage)
        for stage in stages
        if is_own(stage) or type(stage).public_transform is not Defense.public_transform
    ]


class PublicTransform(nn.Module):
    """A defense's public deterministic part, as declared by its author."""

    def __init__(self, defense: Defense) -> None:
        super().__init__()
        self.defense = defense

    def forward(self, smashed: Tensor) -> Tensor:
        """Records [N, ...] -> [N, ...]."""
        return self.defense.public_transform(smashed)


class _AsApplied(PublicTransform):
    """Applies a user's stage (only its public part, if the stage draws more than noise) to each record alone."""

    def __init__(self, defense: Defense, classes: int) -> None:
        super().__init__(defense)
        self._silent, self._classes = defense.noiseless() if defense.noise_fields else defense, classes
        self.fixed: bool | None = None  # whether the stage without its noise is deterministic; None if untested

    def forward(self, smashed: Tensor) -> Tensor:
        if self.fixed is None:
            self.fixed = self._draws_nothing(smashed)
        return self._applied(smashed, 0) if self.fixed else super().forward(smashed)

    def _applied(self, rows: Tensor, seed: int) -> Tensor:
        labels = torch.zeros(len(rows), 1, dtype=torch.int64, device=rows.device)
        given = one_hot(labels, self._classes).float() if self.defense.soft_labels else labels
        release, _ = self._silent.apply(rows.unsqueeze(1), given, Generator(rows.device).manual_seed(seed))
        return release.smashed.squeeze(1)

    @torch.no_grad()
    def _draws_nothing(self, rows: Tensor) -> bool:
        """Whether the result for test records is independent of random draws and of other records in the batch."""
        draws = Generator().manual_seed(0)
        made = torch.rand(_ROWS, *rows.shape[1:], generator=draws).to(rows)
        try:
            with seeded(rows.device, 0):
                one, other = (self._applied(made, seed) for seed in (0, 1))
                turned = self._applied(made.flip(0), 2).flip(0)
        except Exception:  # a user's stage may raise anything on data that it was not made for
            return False
        return one.shape[:1] == made.shape[:1] and all(torch.allclose(one, each) for each in (other, turned))
