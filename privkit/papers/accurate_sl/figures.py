"""Figs. 2, 6 and 7: errors under masking and scaling of noisy smashed data, simulated and in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def figure(name: str, settings: Settings) -> Figure:
    """Draw one of the figures of the simulation."""
    drawn = [_panel(curves, settings, "abcdef"[at]) for at, curves in enumerate(simulate(settings, SIMULATED[name][1]))]
    return panels([drawn[row : row + 2] for row in range(0, len(drawn), 2)], note=settings.describe())


FIGURES: Mapping[str, Callable[[], Figure]] = {
    name: partial(figure, name, settings) for name, (settings, _) in SIMULATED.items()
}
"""File name -> the picture."""


def _panel(curves: Curves, settings: Settings, letter: str) -> Panel:
    """One panel of the figure; the exact curve is drawn as well if a closed form exists, as for the linear layer."""
    exact, average = None, LinearLayer.average(rows=settings.rows, columns=settings.columns)
    if curves.quantity == "linear":
        error = scale_mse if curves.operator == "scaling" else mask_mse
        noises = [CutNoise(law=settings.law, scale=scale) for scale in settings.scales]
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


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The data of one set of axes: curves, their errors, and labels."""

    title: str  # text above the axes
    xlabel: str  # meaning of `factor`
    ylabel: str  # meaning of `mse`, with its unit
    factor: Array  # [points], ascending; the last one stands for no denoising
    levels: Sequence[str]  # one label a curve, written beside it
    mse: Array  # [levels, points]
    error: Array  # standard error of `mse`, [levels, points]
    exact: Array | None = None  # the same curves in closed form, [levels, points], if there is one


def panels(rows: Sequence[Sequence[Panel]], *, note: str = "") -> Figure:
    """Draw a grid of panels as one figure: rows of equal length, whose panels share the vertical axis."""
    columns = len(rows[0])
    figure = Figure(figsize=(4.6 * columns, 3.1 * len(rows) + 0.7), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey="row")
    for line, row in zip(grid, rows, strict=True):
        for axis, panel in zip(line, row, strict=True):
            _draw(axis, panel)
        line[0].set_ylabel(row[0].ylabel, fontsize=8.5)
        line[0].set_ylim(bottom=0)  # not before the whole row is drawn: it ends the automatic limits
    exact = any(panel.exact is not None for row in rows for panel in row)
    key = figure.legend(handles=_key(exact), loc="outside lower center", ncols=5, frameon=False, fontsize=7.5)
    key.set_title(note, prop=FontProperties(size=7))
    return figure


def _draw(axis: Any, panel: Panel) -> None:
    for number, label in enumerate(panel.levels):
        color, curve, error = COLORS[number % len(COLORS)], panel.mse[number], panel.error[number]
        axis.fill_between(panel.factor, curve - 2 * error, curve + 2 * error, color=color, alpha=0.15, lw=0)
        axis.plot(panel.factor, curve, color=color, lw=1.7)
        axis.axhline(curve[-1], color=color, lw=0.8, ls="--", alpha=0.7)
        if panel.exact is not None:
            axis.plot(panel.factor, panel.exact[number], color="black", lw=1.0, ls=":", zorder=3)
        lowest = int(np.argmin(curve))
        axis.plot(
            panel.factor[lowest], curve[lowest], "o", ms=5, color=color, mec="white", mew=0.8, zorder=4, clip_on=False
        )
        axis.annotate(
            label,
            (panel.factor[-1], curve[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            color=color,
            fontsize=8,
            va="center",
        )
    axis.set_title(panel.title, fontsize=9.5)
    axis.set_xlabel(panel.xlabel, fontsize=8.5)
    axis.set_xlim(panel.factor[0], panel.factor[-1])
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
