"""Figures: originals above reconstructions, and the curves of training and attack."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from privkit.reports import escape
from privkit.reports.schema import Row

Pixels = NDArray[np.uint8]

COLORS = ("#3b4cc0", "#d1495b", "#2a9d8f", "#e9a03b", "#7b5ea7", "#5c6770", "#8c564b", "#17becf")
STYLES = ("-", "--", ":", "-.")
BESIDE = 6
"""Curves above which a legend lies beside its panel, and not in it."""
MUTED = "#667085"
PICTURE = 0.94
"""A picture's longer side, as a share of its place in a strip."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """The first attacked images of a cell: originals and guesses, uint8 [k, H, W, C]."""

    truth: Pixels
    guess: Pixels


def reconstructions(strips: Mapping[str, Pictures]) -> Figure:
    """Originals on top, then one strip of guesses a label; strips of other originals get their own block.

    Args:
        strips: label -> pictures, in the order of the rows.
    """
    blocks: list[tuple[str, Pixels]] = []
    last: Pixels | None = None
    for label, pictures in strips.items():
        if last is None or not np.array_equal(last, pictures.truth):
            blocks.append(("original", pictures.truth))
            last = pictures.truth
        blocks.append((label, pictures.guess))
    columns = max(len(images) for _, images in blocks)
    width = 1.9 + 0.85 * columns
    figure = Figure(figsize=(width, 0.92 * len(blocks)), dpi=160)
    figure.suppressComposite = True  # each picture keeps its own pixels in a vector file
    FigureCanvasAgg(figure)
    # One panel for all pictures: a panel each takes most of a report's time.
    axis = figure.add_axes((1.8 / width, 0, 0.85 * columns / width, 1))
    for line, (label, images) in enumerate(blocks):
        for column, image in enumerate(images):
            tall, wide = (side / max(image.shape[:2]) * PICTURE / 2 for side in image.shape[:2])
            extent = (column + 0.5 - wide, column + 0.5 + wide, line + 0.5 + tall, line + 0.5 - tall)
            axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest", extent=extent)
        color = MUTED if label == "original" else "black"
        axis.text(-0.12, line + 0.5, label, ha="right", va="center", fontsize=8, color=color, wrap=False)
    axis.set(xlim=(0, columns), ylim=(len(blocks), 0))
    axis.axis("off")
    return figure


def curves(rows: Sequence[Row]) -> Figure:
    """Task loss by epoch at the left, the attack's held-out error by epoch at the right."""
    figure = Figure(figsize=(9, 3.1), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    task, attack = figure.subplots(1, 2)
    several = len({row.seed for row in rows}) > 1
    done_rows = [row for row in rows if row.status == "done"]
    defenses = list(dict.fromkeys((row.defense, row.seed) for row in done_rows))
    attacks = list(dict.fromkeys(row.attack for row in done_rows if row.attack_curve))
    drawn = set()
    for row in done_rows:
        place, seed = defenses.index((row.defense, row.seed)), f", seed {row.seed}" if several else ""
        if row.training_curve and (row.defense, row.seed) not in drawn:
            drawn.add((row.defense, row.seed))
            _line(task, row.training_curve, row.defense + seed, place)
        if row.attack_curve and len(attacks) > 1:  # a color an attack, dashed by defense
            dash = STYLES[place % len(STYLES)]
            _line(attack, row.attack_curve, f"{row.attack} on {row.defense}{seed}", attacks.index(row.attack), dash)
        elif row.attack_curve:
            _line(attack, row.attack_curve, f"{row.attack} on {row.defense}{seed}", place)
    done = next((row for row in rows if "mean_image" in row.floors), None)
    if done is not None:
        floor = done.floors["mean_image"]["unaligned"]["mse"].value
        attack.axhline(floor, color=MUTED, lw=0.8, ls="--", label="mean image (on the victims)")
    task.set(title="task: training loss", xlabel="epoch", ylabel="cross-entropy")
    title = "attack: error on held-out auxiliary images" if len(attacks) < 2 else "attacks: what each minimizes"
    attack.set(title=title, xlabel="epoch", ylabel="MSE or objective", yscale="log")
    for axis in (task, attack):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        labels = len(axis.get_legend_handles_labels()[0])
        if labels > BESIDE:
            axis.legend(frameon=False, fontsize=6.5, loc="center left", bbox_to_anchor=(1.01, 0.5))
        elif labels:
            axis.legend(frameon=False, fontsize=7.5)
    return figure


def _line(axis: Any, values: Sequence[float], label: str, number: int, dash: str = "-") -> None:
    """One curve, epochs counted from 1."""
    color = COLORS[number % len(COLORS)]
    shown = escape.figure(label)
    axis.plot(range(1, len(values) + 1), values, dash, color=color, lw=1.6, marker=".", ms=4, label=shown)


def save(figure: Figure, kind: str) -> bytes:
    """A figure as "png" or "svg", without a date, so that equal figures are equal files."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "privkit"}):  # else the ids inside are drawn anew each time
        figure.savefig(buffer, format=kind, metadata=metadata, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()
