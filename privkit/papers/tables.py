"""Numbers that the papers print: parameters, minimizers, ε. Data only; nothing here is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DP_CUTMIXSL = "Oh et al., DP-CutMixSL"
ACCURATE_SL = "Xu et al., Accurate Split Learning on Noisy Signals"
PATCH_SHUFFLING = "Yao et al., patch shuffling"

ONE_RELEASE = "one release: rounds add up only while the lower model does not learn from the same records"
"""What every published single-release bound takes for granted."""


@dataclass(frozen=True, kw_only=True)
class DpParameters:
    """Parameters of a differential-privacy measurement, as printed.

    Attributes:
        clients: n.
        patches: N.
        dimensions: D_s, of the smashed data.
        label_dimensions: D_y.
        clip: Δ; each coordinate lies in [0, Δ].
        order: Rényi order α.
        delta: δ.
        sigmas: σ_s = σ_y. The paper calls them variances, but its own k₂* = 28.55 needs standard deviations.
        source: paper and table.
    """

    clients: int
    patches: int
    dimensions: int
    label_dimensions: int
    clip: float
    order: float
    delta: float
    sigmas: tuple[float, ...]
    source: str


TABLE_1 = DpParameters(
    clients=10,
    patches=64,
    dimensions=10,
    label_dimensions=2,
    clip=0.15,
    order=2.0,
    delta=0.5,
    sigmas=(8 / 255, 16 / 255, 32 / 255),
    source=f"{DP_CUTMIXSL}, Table 1",
)

GROUP_SIZES = {"dp_mixsl": 28.55, "dp_cutmixsl": 27.07}
"""k₂* and k₃* as printed under Fig. 7 of the DP-CutMixSL paper, at σ = 16/255."""

Noise = Literal["gaussian", "laplace"]


@dataclass(frozen=True, kw_only=True)
class PrintedBound:
    """One cell of Table 11 of the accurate split learning paper.

    Attributes:
        name: model and data set.
        noise: "gaussian" or "laplace".
        dimensions: n, size of the cut layer (Table 1 of that paper).
        scale: σ of the Gaussian noise, b of the Laplace noise.
        half: the number in parentheses; the table prints it as "(half)*2".
        delta: 1e-5, or 0 for Laplace noise.
    """

    name: str
    noise: Noise
    dimensions: int
    scale: float
    half: float
    delta: float

    @property
    def epsilon(self) -> float:
        """ε as printed, with its factor 2.

        >>> TABLE_11[0].epsilon
        520.0
        """
        return 2.0 * self.half


def _row(name: str, noise: Noise, dimensions: int, *halves: float) -> tuple[PrintedBound, ...]:
    """One line of Table 11: three noise scales."""
    delta = 1e-5 if noise == "gaussian" else 0.0
    return tuple(
        PrintedBound(name=name, noise=noise, dimensions=dimensions, scale=scale, half=half, delta=delta)
        for scale, half in zip((0.3, 0.5, 0.7), halves, strict=True)
    )


TABLE_11: tuple[PrintedBound, ...] = (
    *_row("CNN on MNIST", "gaussian", 256, 260, 150, 110),
    *_row("ResNet on CIFAR-10", "gaussian", 256, 264, 152, 112),
    *_row("MLP on IMDB", "gaussian", 16, 168, 96, 72),
    *_row("LSTM on Names", "gaussian", 256, 9.2, 5.3, 3.9),
    *_row("CNN on MNIST", "laplace", 256, 53.3, 32, 22.8),
    *_row("ResNet on CIFAR-10", "laplace", 256, 53.3, 32, 22.8),
    *_row("MLP on IMDB", "laplace", 16, 13.3, 8, 5.7),
    *_row("LSTM on Names", "laplace", 256, 53.3, 32, 22.8),
)
"""Own rows of Table 11; its two rows of earlier work print no bound of a split-learning mechanism."""

NAMES_BATCH = 800
"""Batch size of the Names model (Table 2 of that paper): its printed ε is the MNIST row's over √800."""

DP_BASELINE_EPSILON = 6.68
"""ε that the patch shuffling paper prints for Gaussian noise of standard deviation 1; no δ, sensitivity or rounds."""
