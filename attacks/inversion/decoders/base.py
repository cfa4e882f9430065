"""What black-box inversion asks of a decoder network."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn

from privkit.attacks.inversion.decoders.maps import MapGeometry
from privkit.attacks.patches import Geometry

_LEARNING_RATE_TIMES_WIDTH = 0.4  # swept at width 96 (docs/results/shuffling.md); 7.8e-4 at the MAE decoder's 512


class Decoder(nn.Module):
    """A network from rows of a release, [N, T, D], [N, D, h, w] or [N, D], to images [N, C, H, W] or other records.

    Attributes:
        layout: how it reads a release: as patches of the image, or as a picture.
        width: channels, which set the peak of the learning rate.
        whole_message: whether it reads all rows of a message together, and not each row by itself.
    """

    layout: ClassVar[type[Geometry] | type[MapGeometry]]
    width: int
    whole_message: ClassVar[bool] = False

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        return cls(cls.layout.of(release, image_shape), width=width, depth=depth)

    @property
    def learning_rate(self) -> float:
        """Peak of the learning rate's cosine where the user names none."""
        return _LEARNING_RATE_TIMES_WIDTH / self.width

    @abstractmethod
    def forward(self, release: Tensor) -> Tensor:
        """What is drawn, not clamped, so that the loss sees every error."""

    def guess(self, release: Tensor) -> Tensor:
        """What the decoder takes the records behind a release for: the images, cut to [0, 1]."""
        images: Tensor = self(release)
        return images.float().clamp(0, 1)

    def error_sums(self, release: Tensor, truth: Tensor) -> tuple[float, float]:
        """Sums of square errors over all pixels, of the guess and as drawn."""
        drawn = self(release).float()
        return (drawn.clamp(0, 1) - truth).square().sum().item(), (drawn - truth).square().sum().item()

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        """What training minimises: a scalar, the mean square error unless a decoder says otherwise.

        Args:
            release: rows of one round of the adversary's own.
            truth: float32 [N, C, H, W] in [0, 1], the images behind them.
        """
        return nn.functional.mse_loss(self(release).float(), truth)
