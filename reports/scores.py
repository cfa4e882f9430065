"""Charts of attacks that separate two kinds of examples: the ROC curve with the proven limits, and the scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privkit.reports.charts import Chart, Scale, Shape, panel, points
from privkit.shared.limits import Limits

_BINS = 30
_SHOWN = (0.5, 99.5)  # percentiles of the scores between which a histogram lies: one stray score would flatten it
_CORNERS = 120  # most corners of a drawn ROC curve


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
    """Two charts of an attack's scores: the ROC curve, with the region that is proven impossible in gray, and the
    histograms.

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


def _ruled_out(limits: Limits, x: Scale, y: Scale) -> list[Shape]:
    """The area of rates that the proof rules out: above the proven ROC curve and below its mirror image. Between two
    known rates the larger true positive rate counts, since a chord of the curve would rule out too much."""
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
