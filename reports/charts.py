"""Charts as plain shapes, which templates write as SVG: scales, marks, and the charts of epochs and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, log10

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privkit.shared.interval import Interval
from privkit.shared.limits import Limits

LEFT, RIGHT, TOP, BOTTOM = 58, 16, 14, 46  # margins of a chart's panel, for ticks and labels, in SVG units
_COLORS = 6  # number of line colors, which the style sheet defines
_BINS = 30
_SHOWN = (0.5, 99.5)  # percentiles of the scores that limit a histogram, since one outlier would flatten it
_CORNERS = 120  # largest number of corners of a drawn ROC curve


@dataclass(frozen=True, kw_only=True)
class AxisScale:
    """An axis of a panel. It maps values between `low` and `high` to positions between `start` and `end`, in SVG
    units."""

    low: float  # value at the start of the axis
    high: float  # value at the end of the axis
    start: float  # position of `low`
    end: float  # position of `high`
    logarithmic: bool = False
    whole: bool = False  # whether only whole numbers are ticks

    def __call__(self, values: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """The positions of values in SVG units, in an array of the same shape; a value outside the axis gets the
        position of the nearer end."""
        low, high, found = self.low, self.high, np.asarray(values, dtype=float)
        if self.logarithmic:
            low, high, found = log10(low), log10(high), np.log10(np.maximum(found, self.low))
        share = ((found - low) / (high - low)).clip(0, 1)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The ticks of the axis: a few round values, as pairs (position in SVG units, text)."""
        if self.logarithmic:
            powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            factors = (1, 2, 5) if len(powers) < 4 else (1,)
            values = [factor * 10.0**power for power in powers for factor in factors]
        else:
            rough = (self.high - self.low) / 6
            unit = 10.0 ** floor(log10(rough))
            step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
            step = max(step, 1.0) if self.whole else step
            values = [
                number * step for number in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)
            ]
        inside = [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
        return [(float(self([value])[0]), f"{value:.6g}") for value in inside]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A line or a filled area of a chart."""

    kind: str  # class of the style sheet
    points: str  # positions "x,y x,y …" in SVG units
    name: str = ""  # shown when the shape is pointed at


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point of a chart, with the limits of its confidence intervals."""

    x: float  # position in SVG units
    y: float
    x_limits: tuple[float, float]  # positions of the ends of the confidence interval
    y_limits: tuple[float, float]
    kind: str  # class of the style sheet
    strength: float | None  # opacity of the mark's color in [0, 1]; None for a hollow mark
    name: str  # shown when the mark is pointed at
    label: str = ""  # text beside the mark; empty if there is no room
    label_at: tuple[float, float, str] = (0, 0, "start")  # position of the label (x, y), and its SVG text anchor


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel of a figure: axes, lines, areas, marks and texts."""

    title: str  # description for readers who cannot see the chart
    x: AxisScale
    y: AxisScale
    x_label: str
    y_label: str
    shapes: tuple[Shape, ...] = ()  # from back to front
    marks: tuple[Mark, ...] = ()  # above the shapes
    words: tuple[tuple[float, float, str], ...] = ()  # texts inside the panel, as (right end, base line, text)

    @property
    def width(self) -> float:
        """The width of the chart with its margins, in SVG units."""
        return self.x.end + RIGHT

    @property
    def height(self) -> float:
        """The height of the chart with its margins, in SVG units."""
        return self.y.start + BOTTOM

    @property
    def keys(self) -> list[Shape]:
        """The entries of the legend: the chart's named lines and bars. If there is only one, the legend is empty."""
        named = [shape for shape in self.shapes if shape.kind.startswith(("line", "bars"))]
        return named if len(named) > 1 else []


def panel(
    width: int, height: int, x: tuple[float, float], y: tuple[float, float], *, logarithmic: bool = False
) -> tuple[AxisScale, AxisScale]:
    """The two scales of a panel of this size in SVG units, with room for ticks. `x` and `y` are (smallest, largest
    value); x runs to the right, y upwards, and only y may be logarithmic."""
    across = AxisScale(low=x[0], high=x[1], start=LEFT, end=width - RIGHT)
    return across, AxisScale(low=y[0], high=y[1], start=height - BOTTOM, end=TOP, logarithmic=logarithmic)


def padded_range(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and largest value, each moved outwards by 6 % of their distance, but at least by 0.001."""
    low, high = min(values), max(values)
    room = max(0.06 * (high - low), 1e-3)
    return low - room, high + room


def points(x: ArrayLike, y: ArrayLike) -> str:
    """Positions in SVG units as text "x,y x,y …", with one decimal."""
    return " ".join(f"{one:.1f},{other:.1f}" for one, other in zip(np.asarray(x), np.asarray(y), strict=True))


def epoch_chart(values: Sequence[float], title: str, *, logarithmic: bool = False) -> Chart | None:
    """A small chart of one value per training epoch; None if fewer than two values are finite. With `logarithmic`, the
    scale is logarithmic if all values are positive and differ by more than a factor of 5."""
    found = [(epoch, value) for epoch, value in enumerate(values, 1) if isfinite(value)]
    if len(found) < 2:
        return None
    epochs, heights = zip(*found, strict=True)
    logarithmic = logarithmic and 0 < 5 * min(heights) < max(heights)
    limits = (min(heights), max(heights)) if logarithmic else padded_range(heights)
    x, y = panel(300, 170, (1, len(values)), limits, logarithmic=logarithmic)
    x = replace(x, whole=True)
    line = Shape(kind="line c0", points=points(x(epochs), y(heights)), name=title)
    return Chart(title=title, x=x, y=y, x_label="epoch", y_label="", shapes=(line,))


def area_chart(by_epoch: Mapping[str, Sequence[Interval]]) -> Chart:
    """A chart of an attack's AUC with its limits by training epoch, one line per label. At 1/2 the attack learns
    nothing.

    Source: the panel of DP-CutMixSL's Fig. 10c.
    """
    longest = max(map(len, by_epoch.values()))
    x, y = panel(640, 300, (1, max(2, longest)), (0, 1))
    x = replace(x, whole=True)
    shapes = [Shape(kind="floor", points=points(x([1, longest]), y([0.5, 0.5])), name="chance")]
    for number, (label, areas) in enumerate(by_epoch.items()):
        epochs, color = np.arange(1, len(areas) + 1), f"c{number % _COLORS}"
        around = np.concatenate([y([area.low for area in areas]), y([area.high for area in reversed(areas)])])
        shapes.append(Shape(kind=f"band {color}", points=points(x(np.concatenate([epochs, epochs[::-1]])), around)))
        line = points(x(epochs), y([area.value for area in areas]))
        shapes.append(Shape(kind=f"line {color}", points=line, name=label))
    return Chart(title="AUC by epoch", x=x, y=y, x_label="epoch", y_label="AUC", shapes=tuple(shapes))


@dataclass(frozen=True, kw_only=True)
class Told:
    """The scores that one attack gave to two kinds of examples, with its ROC curve, AUC and proven limits."""

    positive: NDArray[np.float64]  # [P] scores of the positive examples, such as members
    negative: NDArray[np.float64]  # [Q] scores of the negative examples
    false: NDArray[np.float64]  # [K] false positive rates along the ROC curve
    true: NDArray[np.float64]  # [K] true positive rates along the ROC curve
    auc: float  # area under the ROC curve
    limits: Limits | None = None  # proven limits of any attack's rates; None without a proof


def score_charts(told: Told) -> tuple[Chart, Chart]:
    """Two charts of an attack's scores: the ROC curve, with the proven impossible region in gray, and the histograms.

    Source: the panels of DP-CutMixSL's Figs. 8-10.
    """
    return _roc(told), _histogram(told)


def _roc(told: Told) -> Chart:
    x, y = panel(320, 290, (0, 1), (0, 1))
    chosen = np.unique(np.linspace(0, len(told.false) - 1, min(_CORNERS, len(told.false))).round().astype(int))
    shapes = [
        *(_ruled_out(told.limits, x, y) if told.limits else ()),
        Shape(kind="floor", points=points(x([0, 1]), y([0, 1])), name="chance"),
        Shape(kind="line c0", points=points(x(told.false[chosen]), y(told.true[chosen])), name=f"AUC {told.auc:.3f}"),
    ]
    title, labels = f"ROC curve, AUC {told.auc:.3f}", ("false positive rate", "true positive rate")
    words = ((x([0.97])[0], y([0.06])[0], "gray: proven impossible"),) if told.limits else ()
    return Chart(title=title, x=x, y=y, x_label=labels[0], y_label=labels[1], shapes=tuple(shapes), words=words)


def _ruled_out(limits: Limits, x: AxisScale, y: AxisScale) -> list[Shape]:
    """The area of rates that a proof excludes: above the proven ROC curve and below its mirror image. Between two known
    rates the larger true positive rate counts, since a chord of the curve would exclude too much."""
    false, true = np.repeat(limits.false_positives, 2)[:-1], np.repeat(limits.true_positives, 2)[1:]
    corners = np.concatenate([[0.0], false, [1.0]]), np.concatenate([[1.0], true, [1.0]])
    above, below = points(x(corners[0]), y(corners[1])), points(x(1 - corners[0]), y(1 - corners[1]))
    return [
        Shape(kind="ruled-out", points=above, name="proven impossible"),
        Shape(kind="ruled-out", points=below, name="proven impossible"),
        Shape(kind="limit", points=points(x(false), y(true)), name="largest proven true positive rate"),
    ]


def _histogram(told: Told) -> Chart:
    low, high = np.percentile(np.concatenate([told.positive, told.negative]), _SHOWN)
    edges = np.linspace(low, high, _BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])
    kinds = {"no": told.negative, "yes": told.positive}
    counts = {name: np.histogram(one.clip(edges[0], edges[-1]), edges)[0] / len(one) for name, one in kinds.items()}
    x, y = panel(420, 290, (edges[0], edges[-1]), (0, 1.05 * max(share.max() for share in counts.values())))
    corners = x(np.repeat(edges, 2))
    heights = {name: y(np.concatenate([[0], np.repeat(share, 2), [0]])) for name, share in counts.items()}
    shapes = tuple(Shape(kind=f"bars {name}", points=points(corners, up), name=name) for name, up in heights.items())
    return Chart(title="scores", x=x, y=y, x_label="score", y_label="share", shapes=shapes)
