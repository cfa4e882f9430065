"""Figs. 2, 6 and 7 as pictures: the error of masked and scaled noise, simulated, with closed forms beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from privkit.papers.accurate_sl import denoising_simulation as simulation
from privkit.papers.accurate_sl.denoising import LinearLayer, Noise, mask_mse, scale_mse
from privkit.papers.accurate_sl.denoising_simulation import Curves, Settings
from privkit.papers.accurate_sl.panels import Panel, panels

_FORMULAS = {
    "linear": "$f_1$ (linear layer)",
    "loss": "$f_2$ (cross-entropy)",
    "gradient": "$f_2'$ (gradient at the cut)",
}
_UNITS = {
    "linear": "MSE of the logits, summed over classes",
    "loss": "MSE of the loss (nats²)",
    "gradient": "MSE of the gradient,\nsummed over features (nats²)",
}
_FACTORS = {
    "scaling": "scaling factor λ = 1/α  (1 = no scaling)",
    "masking": "masking ratio p, share kept  (1 = no masking)",
}


def figure_2(settings: Settings | None = None) -> Figure:
    """Fig. 2: Gaussian noise, forward."""
    settings = settings or Settings()
    return _drawn(simulation.figure_2(settings), settings)


def figure_6(settings: Settings | None = None) -> Figure:
    """Fig. 6: Gaussian noise, backward."""
    settings = settings or Settings()
    return _drawn(simulation.figure_6(settings), settings)


def figure_7(settings: Settings | None = None) -> Figure:
    """Fig. 7: Laplace noise, forward and backward."""
    settings = settings or Settings(law="laplace")
    return _drawn(simulation.figure_7(settings), settings)


FIGURES: Mapping[str, Callable[[], Figure]] = {"figure_2": figure_2, "figure_6": figure_6, "figure_7": figure_7}
"""File name -> the picture."""


def _drawn(drawn_curves: Sequence[Curves], settings: Settings) -> Figure:
    drawn = [panel(curves, settings, "abcdef"[number]) for number, curves in enumerate(drawn_curves)]
    return panels([drawn[row : row + 2] for row in range(0, len(drawn), 2)], note=settings.describe())


def panel(curves: Curves, settings: Settings, letter: str) -> Panel:
    """One panel; the mean error of the linear layer has a closed form, which is drawn, too."""
    exact, average = None, LinearLayer.average(rows=settings.rows, columns=settings.columns)
    if curves.quantity == "linear":
        error = scale_mse if curves.operator == "scaling" else mask_mse
        noises = [Noise(law=settings.law, scale=scale) for scale in settings.scales]
        exact = np.array([[error(average, value, noise) for value in curves.factor] for noise in noises])
    symbol = "σ" if settings.law == "gaussian" else "b"
    return Panel(
        title=f"({letter}) {_FORMULAS[curves.quantity]}, {curves.operator}",
        xlabel=_FACTORS[curves.operator],
        ylabel=_UNITS[curves.quantity],
        factor=curves.factor,
        levels=[f"{symbol} = {scale:g}" for scale in settings.scales],
        mse=curves.mse,
        error=curves.error,
        exact=exact,
    )
