"""ROC curves, histograms and areas by epoch of attacks that tell two kinds of examples apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from privkit.interval import Interval
from privkit.limits import Limits
from privkit.reports import escape
from privkit.reports.figures import COLORS, MUTED

_BINS = 40
_SHOWN = (0.5, 99.5)
"""Percentiles of the scores between which a histogram lies: one stray score would flatten it."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """One attack's scores of one run.

    Attributes:
        positive: float [P], scores of examples of which the answer is yes.
        negative: float [Q], of the others.
        false: [K], false positive rates along the ROC curve.
        true: [K], true positive rates.
        auc: the area under it.
        limits: what is proven of any attack's rates; None where nothing is.
    """

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]
    false: NDArray[np.float64]
    true: NDArray[np.float64]
    auc: float
    limits: Limits | None = None


def score_figure(told: Mapping[str, Told]) -> Figure:
    """A line of two panels for each label: the ROC curve, and the histograms of both kinds of examples.

    Args:
        told: label -> scores, at least one.

    Source: the panels of DP-CutMixSL's Figs. 8-10.
    """
    figure = Figure(figsize=(7.6, 2.3 * len(told)), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(told), 2, squeeze=False, gridspec_kw={"width_ratios": (1, 2)})
    for (curve, histogram), (label, outcome) in zip(axes, told.items(), strict=True):
        curve.plot([0, 1], [0, 1], color=MUTED, lw=0.8, ls="--")
        if outcome.limits is not None:
            _shade(curve, outcome.limits)
        curve.plot(outcome.false, outcome.true, color=COLORS[0], lw=1.6)
        curve.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal", xlabel="false positive rate")
        curve.set_ylabel("true positive rate", fontsize=8)
        curve.set_title(f"AUC {outcome.auc:.3f}", fontsize=9)
        low, high = np.percentile(np.concatenate([outcome.positive, outcome.negative]), _SHOWN)
        edges = np.linspace(low, high, _BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])
        for values, color, name in ((outcome.negative, COLORS[5], "no"), (outcome.positive, COLORS[1], "yes")):
            share = np.full(len(values), 1 / len(values))
            histogram.hist(values.clip(low, high), bins=edges, weights=share, color=color, alpha=0.55, label=name)
        histogram.set_title(label, fontsize=9)
        histogram.set_xlabel("score", fontsize=8)
        histogram.set_ylabel("share", fontsize=8)
        histogram.legend(frameon=False, fontsize=7.5)
        for axis in (curve, histogram):
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=7.5)
            axis.xaxis.label.set_size(8)
    return figure


def _shade(axis: Axes, limits: Limits) -> None:
    """The rates that the proof rules out: above the proven curve, and below its mirror image.

    Between two rates the larger one counts, since a chord of the curve would rule out too much.
    """
    false, true = np.array(limits.false_positives), np.array(limits.true_positives)
    axis.fill_between(false, true, 1.01, step="pre", color=MUTED, alpha=0.25, lw=0)
    axis.fill_between(1 - false, 0, 1 - true, step="pre", color=MUTED, alpha=0.25, lw=0)
    axis.plot(false, true, drawstyle="steps-pre", color=COLORS[2], lw=1.2)
    axis.text(0.97, 0.06, "gray: proven\nimpossible", ha="right", fontsize=6.5)


def auc_figure(by_epoch: Mapping[str, Sequence[Interval]]) -> Figure:
    """AUC by epoch of training with its limits, a line for each label; 1/2 tells nothing apart.

    Args:
        by_epoch: label -> one area an epoch, at least one label.

    Source: the panel of DP-CutMixSL's Fig. 10c.
    """
    figure = Figure(figsize=(7.6, 3.1), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axhline(0.5, color=MUTED, lw=0.8, ls="--")
    for number, (label, areas) in enumerate(by_epoch.items()):
        epochs, color = range(1, len(areas) + 1), COLORS[number % len(COLORS)]
        shown = escape.figure(label)
        axis.plot(epochs, [area.value for area in areas], color=color, lw=1.6, marker=".", ms=4, label=shown)
        low, high = [area.low for area in areas], [area.high for area in areas]
        axis.fill_between(epochs, low, high, color=color, alpha=0.15, lw=0)
    axis.set(xlabel="epoch", ylabel="AUC", ylim=(0, 1.01))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(frameon=False, fontsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    return figure
