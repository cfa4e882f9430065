"""Empirical lower bounds on ε from the scores of members and non-members: what an attack's success rules out.

A score is high where the attack believes "member". What is proven holds with the stated confidence over the draw of the
scores, for every mechanism; a small bound proves nothing in favor of the mechanism.
"""

from __future__ import annotations

from typing import Literal

from privkit.accountants import validate

Correction = Literal["proven", "as_published"]

FRONTIER = (
    "the error probability is divided by the number of corners of the ROC curve's convex hull, which the scores "
    "themselves determine, so that no union bound covers the choice of the threshold"
)
"""Why the correction of the reference library is not claimed."""


def levels(confidence: float, delta: float) -> tuple[float, float]:
    """Error probability and δ."""
    error = 1 - validate.real("confidence", confidence, above=0, below=1)
    return error, validate.real("delta", delta, least=0, below=1)
