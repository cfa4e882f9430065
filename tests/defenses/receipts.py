"""Receipts of one call."""

from typing import Any

import torch
from torch import Tensor

from privkit.defenses.base import Defense
from tests.small import generator

INF = float("inf")


def receipt(defense: Defense, tokens: int, dim: int, classes: int = 10, present: Tensor | None = None) -> Any:
    """The receipt of one call on zeros; mixing defenses get two groups."""
    outer = (2, defense.group, 1) if defense.group > 1 else (2, 1)
    labels = torch.eye(classes)[torch.zeros(outer, dtype=torch.int64)]
    return defense.apply(torch.zeros(*outer, tokens, dim), labels, generator(), present)[1]
