"""Draws Figs. 2, 6 and 7: errors under masking and scaling of noisy smashed data, simulated and in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer, mask_mse, scale_mse
from privkit.papers.accurate_sl.denoising_simulation import FIGURES as SIMULATED
from privkit.papers.accurate_sl.denoising_simulation import Curves, Settings, simulate
from privkit.reports.figures import COLORS, MUTED
from privkit.shared.array import Array

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


def draw_figure(name: str, settings: Settings) -> Figure:
    """Simulate and draw the figure "figure_2", "figure_6" or "figure_7" of the paper with these settings."""
    return panels(simulate(settings, SIMULATED[name][1]), settings)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    name: partial(draw_figure, name, settings) for name, (settings, _) in SIMULATED.items()
}
"""File name -> the function that draws the figure."""


def panels(drawn: Sequence[Curves], settings: Settings) -> Figure:
    """Draw curves in panels, two in a row; the panels of a row share the vertical axis."""
    columns = min(2, len(drawn))
    rows = len(drawn) // columns
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows + 0.7), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row")
    for letter, axis, curves in zip("abcdef", grid.flat, drawn, strict=False):
        _draw(axis, curves, settings, letter)
    for line, curves in zip(grid, drawn[::columns], strict=True):
        line[0].set_ylabel(_UNITS[curves.quantity], fontsize=8.5)
        line[0].set_ylim(bottom=0)  # after the whole row is drawn, since this ends automatic limits
    exact = any(curves.quantity == "linear" for curves in drawn)
    key = figure.legend(handles=_key(exact), loc="outside lower center", ncols=5, frameon=False, fontsize=7.5)
    key.set_title(settings.describe(), prop=FontProperties(size=7))
    return figure


def _closed_form(curves: Curves, settings: Settings) -> Array:
    average = LinearLayer.average(rows=settings.rows, columns=settings.columns)
    error = scale_mse if curves.operator == "scaling" else mask_mse
    noises = [CutNoise(law=settings.law, scale=scale) for scale in settings.scales]
    return np.array([[error(average, value, noise) for value in curves.factor] for noise in noises])


def _draw(axis: Any, curves: Curves, settings: Settings, letter: str) -> None:
    factor, symbol = curves.factor, "σ" if settings.law == "gaussian" else "b"
    exact = _closed_form(curves, settings) if curves.quantity == "linear" else None
    for number, scale in enumerate(settings.scales):
        color, curve, error = COLORS[number % len(COLORS)], curves.mse[number], curves.error[number]
        axis.fill_between(factor, curve - 2 * error, curve + 2 * error, color=color, alpha=0.15, lw=0)
        axis.plot(factor, curve, color=color, lw=1.7)
        axis.axhline(curve[-1], color=color, lw=0.8, ls="--", alpha=0.7)
        if exact is not None:
            axis.plot(factor, exact[number], color="black", lw=1.0, ls=":", zorder=3)
        low = int(np.argmin(curve))
        axis.plot(factor[low], curve[low], "o", ms=5, color=color, mec="white", mew=0.8, zorder=4, clip_on=False)
        axis.annotate(
            f"{symbol} = {scale:g}",
            (factor[-1], curve[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            color=color,
            fontsize=8,
            va="center",
        )
    axis.set_title(f"({letter}) {_FORMULAS[curves.quantity]}, {curves.operator}", fontsize=9.5)
    axis.set_xlabel(_FACTORS[curves.operator], fontsize=8.5)
    axis.set_xlim(factor[0], factor[-1])
    axis.margins(y=0.06)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8, labelleft=True)


def _key(exact: bool) -> list[Any]:
    kinds: list[Any] = [
        Line2D([], [], color=MUTED, lw=1.7, label="Monte Carlo mean"),
        Patch(facecolor=MUTED, alpha=0.25, label="± 2 standard errors"),
        Line2D([], [], color=MUTED, lw=0.8, ls="--", label="no denoising"),
        Line2D([], [], color=MUTED, marker="o", ls="", ms=5, label="lowest on the grid"),
    ]
    return [*kinds, Line2D([], [], color="black", lw=1.0, ls=":", label="closed form")] if exact else kinds
