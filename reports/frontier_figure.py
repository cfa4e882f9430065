"""The figure of a frontier: accuracy to the right, what is recovered upwards, ε as color."""

from __future__ import annotations

from math import isfinite, log10

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from privkit.reports import escape
from privkit.reports.figures import MUTED
from privkit.reports.frontier import Frontier, Point
from privkit.reports.tables import FLOOR_NAMES

_MARKERS = "osD^vP"
_COLORS = "viridis"
_PALE = 0.4


def frontier_figure(found: Frontier) -> Figure:
    """A point for each setting with its intervals; a line joins settings of one defense, in the order of the run.

    Pale points are dominated. A hollow point has no proven ε. The star is the undefended model, and dashed lines are
    guesses without the release.
    """
    figure = Figure(figsize=(6.4, 4), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    proven = [point.epsilon for point in found.points if _shown(point)]
    norm = LogNorm(*_limits([value for value in proven if value is not None])) if proven else None
    for number, (name, value) in enumerate(found.floors.items()):
        axis.axhline(value, color=MUTED, lw=0.8, ls=("--", ":")[number % 2], label=f"floor: {FLOOR_NAMES[name]}")
    families = list(dict.fromkeys(point.family for point in found.points if point.defended))
    for number, family in enumerate(families):
        own = [point for point in found.points if point.family == family]
        x, y = [point.accuracy.value for point in own], [point.recovered.value for point in own]
        axis.plot(x, y, color=MUTED, lw=0.8, zorder=1)
        for point in own:
            color = (
                colormaps[_COLORS](norm(point.epsilon))
                if norm and point.epsilon is not None and _shown(point)
                else "white"
            )
            _draw(axis, point, _MARKERS[number % len(_MARKERS)], color)
        axis.plot([], [], _MARKERS[number % len(_MARKERS)], color=MUTED, ls="", label=escape.figure(family))
    for point in (point for point in found.points if not point.defended):
        _draw(axis, point, "*", "black")
    if norm is not None:
        bar = figure.colorbar(ScalarMappable(norm, _COLORS), ax=axis)
        bar.set_label("proven ε", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    axis.set(xlabel="task accuracy", ylabel=f"{found.name} of the strongest attack")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.legend(frameon=False, fontsize=7)
    return figure


def _draw(axis, point: Point, marker: str, color) -> None:  # type: ignore[no-untyped-def]
    """One setting with its intervals and its name."""
    x, y = point.accuracy, point.recovered
    axis.errorbar(
        x.value,
        y.value,
        xerr=[[max(0.0, x.value - x.low)], [max(0.0, x.high - x.value)]],
        yerr=[[max(0.0, y.value - y.low)], [max(0.0, y.high - y.value)]],
        fmt=marker,
        ms=9 if marker == "*" else 6,
        mfc=color,
        mec="black",
        mew=0.7,
        ecolor=MUTED,
        elinewidth=0.7,
        alpha=_PALE if point.dominated else 1,
    )
    name = point.setting if point.defended else "undefended"
    axis.annotate(
        escape.figure(name), (x.value, y.value), xytext=(5, 4), textcoords="offset points", fontsize=7, color="black"
    )


def _shown(point: Point) -> bool:
    """Whether its ε has a color."""
    return point.epsilon is not None and isfinite(point.epsilon) and point.epsilon > 0


def _limits(values: list[float]) -> tuple[float, float]:
    """Ends of the color scale: whole powers of ten around all values."""
    low, high = min(log10(value) for value in values), max(log10(value) for value in values)
    return 10.0 ** (low // 1), 10.0 ** max(low // 1 + 1, -(-high // 1))
