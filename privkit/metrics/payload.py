"""The share of the smashed data that really travels: only kept patches do."""

from __future__ import annotations

from torch import Tensor

FLOAT = 4
"""Bytes of a number on the wire: float32."""


def kept_share(weights: Tensor | None, present: Tensor | None = None) -> float:
    """Share of the smashed data that a client sends, on average over messages and clients.

    Args:
        weights: `Release.weights`, float [M, k, T]; None where nothing is masked.
        present: bool [M, k], the seats that are taken; None for all.

    >>> import torch
    >>> kept_share(torch.tensor([[[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]])), kept_share(None)
    (0.5, 1.0)
    """
    if weights is None:
        return 1.0
    kept = (weights > 0).double().mean(-1)
    return (kept if present is None else kept[present]).mean().item()


def mixed_share(clients: int, group: int) -> float:
    """Share of its smashed data that a client sends on average where masks divide a message among k clients: ⌈n/k⌉/n.

    Clients of a last, smaller group divide theirs among themselves, as CutMixSL §4 has it.

    >>> [mixed_share(10, k) for k in (1, 2, 3, 4, 5)]
    [1.0, 0.5, 0.4, 0.3, 0.2]
    """
    if not 1 <= group <= clients:
        raise ValueError(f"group must lie in 1..{clients}, the number of clients, got {group}")
    return -(-clients // group) / clients
