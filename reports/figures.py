"""Colors of figures, and a function that saves figures reproducibly."""

from __future__ import annotations

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

COLORS = ("#3b4cc0", "#d1495b", "#2a9d8f", "#e9a03b", "#7b5ea7", "#5c6770", "#8c564b", "#17becf")
MUTED = "#667085"


def save(figure: Figure, kind: str) -> bytes:
    """Save a figure as "png" or "svg" without a date, so that equal figures give equal files."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "privkit"}):  # else the ids inside are drawn anew each time
        figure.savefig(buffer, format=kind, metadata=metadata, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()
