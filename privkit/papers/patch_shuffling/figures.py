"""Draws how similar the learned position embeddings are in the models of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, isqrt
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from privkit.errors import UsageError
from privkit.files.paths import inside, root
from privkit.files.sealed import checked_bytes
from privkit.files.storage import read_record
from privkit.run.records import TRAINED, read_manifest

FIGURES: Mapping[str, Callable[[], Figure]] = {}  # empty, since all figures of this paper need a run
_WEIGHTS = "client.safetensors"


def of_run(run: Path) -> Mapping[str, Callable[[], Figure]]:
    """Find the figures of a run: a function that draws the paper's Fig. 5 for its models, under "position_similarity".
    Raises `UsageError` if `run` is no run folder, or if no model in it has learned position embeddings."""
    found = _embeddings(run)
    if not found:
        raise UsageError(
            f"no finished model of {run} learned position embeddings on a square grid; audit the defense none with a "
            "ViT, such as --model vit_tiny"
        )
    return {"position_similarity": partial(position_similarity, found)}


def position_similarity(embeddings: Mapping[str, NDArray[np.float32]]) -> Figure:
    """Draw how similar position embeddings are, in one panel for each model.

    `embeddings` maps the label of a model to its embeddings [T, D] of T tokens on a square grid. A panel shows a map
    for each token: its cosines to all tokens.

    Source: patch_shuffling Fig. 5, in the time domain.
    """
    columns = min(3, len(embeddings))
    rows = ceil(len(embeddings) / columns)
    figure = Figure(figsize=(3.6 * columns + 0.6, 3.6 * rows), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (label, embedding) in zip(axes.flat, embeddings.items(), strict=False):
        drawn = axis.imshow(_tiled(similarity(embedding)), vmin=-1, vmax=1, cmap="viridis")
        axis.set_title(label, fontsize=8)
    figure.colorbar(drawn, ax=axes, shrink=0.7, label="cosine")
    return figure


def similarity(embedding: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosines in [−1, 1] between the position embeddings [T, D] of all pairs of T tokens, [T, T]; 0 for a zero vector.

    >>> similarity(np.array([[1, 0], [0, 2], [3, 3]], np.float32)).round(3)[2].tolist()
    [0.707, 0.707, 1.0]
    """
    wide = embedding.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = np.divide(wide, norms, out=np.zeros_like(wide), where=norms > 0)
    return np.asarray(unit @ unit.T)


def _tiled(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Arrange the cosines [T, T] of T tokens as a picture: at each token's place, a map of its cosines to all tokens.

    Tokens form a square grid; gaps of NaN separate the maps.

    >>> _tiled(np.arange(16.0).reshape(4, 4))[0].tolist()
    [0.0, 1.0, nan, 4.0, 5.0, nan]
    """
    side = isqrt(len(cosines))
    maps = np.pad(cosines.reshape(side, side, side, side), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    return np.asarray(maps.transpose(0, 2, 1, 3).reshape(side * (side + 1), side * (side + 1)))


def _embeddings(run: Path) -> dict[str, NDArray[np.float32]]:
    """Label -> position embeddings [T, D] without class token, of the first client of each model that learned them."""
    from safetensors.numpy import load

    run = root(run)
    manifest = read_manifest(run)
    if manifest is None:
        raise UsageError(f"{run} is not a run folder; name the --out folder of an audit")
    found = {}
    for cell in {cell.model: cell for cell in manifest.cells}.values():
        home = inside(run, "models", cell.model)
        record = read_record(home / TRAINED, model=cell.model)
        if record is None:
            continue
        weights = load(checked_bytes(home / _WEIGHTS, record["files"].get(_WEIGHTS)))
        for name, stack in weights.items():
            if name.startswith("lowers.") and name.endswith("pos_embed"):
                rows = stack[0, 0]
                rows = rows[1:] if isqrt(len(rows)) ** 2 != len(rows) else rows
                if isqrt(len(rows)) ** 2 == len(rows) > 1:
                    found[f"{cell.defense}, seed {cell.seed}"] = rows
    return found
