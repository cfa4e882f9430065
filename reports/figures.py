"""Figures by matplotlib: colors, reproducible files, and proven and published ε against one parameter."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from privkit.reports import escape

COLORS = ("#3b4cc0", "#d1495b", "#2a9d8f", "#e9a03b", "#7b5ea7", "#5c6770", "#8c564b", "#17becf")
MUTED = "#667085"
_JUDGED: dict[bool, dict[str, Any]] = {
    True: {"marker": "o", "mfc": "white", "ms": 4.5},
    False: {"marker": "x", "ms": 5},
}
"""Whether a published value is a bound -> its mark."""
_WIDE = 20.0  # ratio of the largest to the smallest ε above which the axis is logarithmic


def save(figure: Figure, kind: str) -> bytes:
    """Save a figure as "png" or "svg" without a date, so that equal figures give equal files."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "privkit"}):  # otherwise the ids in the file are random
        figure.savefig(buffer, format=kind, metadata=metadata, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class BudgetCurve:
    """ε of one mechanism at P ≥ 1 values of one parameter. Raises ValueError for an array of another shape than [P].

    Attributes:
        label: name of the mechanism.
        values: float [P], values of the parameter, increasing.
        epsilon: float [P], the proven ε; a value that is not finite leaves a gap in the line.
        published: float [P], ε by the paper's formula; None if there is none.
        sound: bool [P], whether the published ε is an upper bound; None if unknown.
    """

    label: str
    values: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    published: NDArray[np.float64] | None = None
    sound: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "published", "sound"):
            array = getattr(self, name)
            if array is not None and (np.ndim(array) != 1 or np.shape(array) != np.shape(self.values)):
                raise ValueError(f"{name} must have shape {list(np.shape(self.values))}, got {list(np.shape(array))}")
        if not len(self.values):
            raise ValueError(f"the curve of {self.label} has no points")


def curves(
    drawn: Sequence[BudgetCurve], *, title: str, subtitle: str, xlabel: str, log_x: bool = False, whole: bool = False
) -> Figure:
    """Draw ε against one parameter, one color for each mechanism: solid for proven values, dashed for published values.
    The subtitle should contain δ and the fixed parameters, and `xlabel` the parameter with its unit. If the parameter
    takes only whole numbers (`whole`), every point is marked. Raises ValueError without a curve."""
    if not drawn:
        raise ValueError("curves must hold at least one curve, got none")
    figure = Figure(figsize=(7.6, 4.6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    ends: list[tuple[float, float, str, str]] = []
    heights = []
    for number, curve in enumerate(drawn):
        color = COLORS[number % len(COLORS)]
        every = [("", curve.epsilon)] + ([] if curve.published is None else [(" as published", curve.published)])
        for suffix, line in every:
            shown = np.where(np.isfinite(line), line, np.nan)
            heights.append(shown)
            style: dict[str, Any] = {"ls": (0, (4, 2)), "lw": 1.4} if suffix else {"ls": "-", "lw": 2.0, "alpha": 0.85}
            axis.plot(curve.values, shown, color=color, zorder=3 if suffix else 2, **style)
            if suffix and curve.sound is not None:
                for ok, mark in _JUDGED.items():
                    chosen = np.where(curve.sound == ok, shown, np.nan)
                    axis.plot(curve.values, chosen, ls="", color=color, zorder=4, **mark)
            elif not suffix and (whole or np.isfinite(shown).sum() == 1):
                axis.plot(curve.values, shown, "o", ms=3.5, color=color, zorder=2)
            if (finite := np.flatnonzero(np.isfinite(shown))).size:
                ends.append((curve.values[finite[-1]], shown[finite[-1]], escape.figure(curve.label) + suffix, color))
    _scales(axis, np.concatenate(heights), log_x, whole, drawn)
    _labels(axis, ends)
    axis.set_xlabel(xlabel, fontsize=9)
    axis.set_ylabel("ε (nats)", fontsize=9)
    axis.set_title(subtitle, fontsize=7.5, color=MUTED, loc="left")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#e4e7ec", lw=0.6)
    axis.set_axisbelow(True)
    figure.legend(handles=_key(drawn), loc="outside lower left", ncols=4, frameon=False, fontsize=7.5)
    return figure


def _scales(axis: Any, heights: NDArray[np.float64], log_x: bool, whole: bool, drawn: Sequence[BudgetCurve]) -> None:
    finite = heights[np.isfinite(heights)]
    positive = finite[finite > 0]
    if positive.size and positive.max() > _WIDE * positive.min():
        if (finite == 0).any():
            axis.set_yscale("symlog", linthresh=positive.min())
            axis.set_ylim(bottom=0)
        else:
            axis.set_yscale("log")
            if positive.max() < 1000 * positive.min():
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(bottom=0)
    if log_x:
        axis.set_xscale("log")
    values = np.unique(np.concatenate([curve.values for curve in drawn]))
    if whole and values.size <= 20:
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.xaxis.set_minor_locator(NullLocator())


def _labels(axis: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    to_axes = axis.transScale + axis.transLimits
    placed = sorted((float(to_axes.transform((x, y))[1]), x, y, label, color) for x, y, label, color in ends)
    gap = 0.052
    at = [height for height, *_ in placed]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + gap)
    if at and at[-1] > 1.02:
        at[-1] = 1.02
        for i in range(len(at) - 2, -1, -1):
            at[i] = min(at[i], at[i + 1] - gap)
    for height, (_, x, y, label, color) in zip(at, placed, strict=True):
        axis.annotate(
            label,
            xy=(x, y),
            xytext=(1.035, height),
            textcoords="axes fraction",
            color=color,
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.5, "alpha": 0.6, "shrinkA": 1, "shrinkB": 2},
        )


def _key(drawn: Sequence[BudgetCurve]) -> list[Line2D]:
    kinds = [Line2D([], [], color=MUTED, lw=2.0, label="sound (proven upper bound)")]
    if any(curve.published is not None for curve in drawn):
        kinds.append(Line2D([], [], color=MUTED, lw=1.4, ls=(0, (4, 2)), label="as published"))
    judged = [curve.sound for curve in drawn if curve.sound is not None]
    if any(sound.any() for sound in judged):
        kinds.append(Line2D([], [], color=MUTED, ls="", **_JUDGED[True], label="published, a bound"))
    if any(not sound.all() for sound in judged):
        kinds.append(Line2D([], [], color=MUTED, ls="", **_JUDGED[False], label="published, no bound"))
    return kinds
