"""Secret ratios: who was mixed with whom, and how, is found from several passes of the same records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.attacks.base import NotApplicable, View

_SAME = 0.9
"""Cosine from which two candidates are one client."""


def with_ratios(same: Sequence[View], clients: int) -> list[View]:
    """The passes of one round with the weights and clients that explain them; clients are numbered in any order.

    Each message is a sum of k of n unknown vectors. All messages of all passes then span n dimensions. A client's
    weights in them are a vector of that span that is zero in all messages of others: the sparsest ones are found by
    linear programs, and scaled so that the weights of a message sum to 1. No record and no coin needs to be known.

    Args:
        same: passes of one round, whose rows hold k records each, with one weight for a whole record.
        clients: n.

    Raises:
        NotApplicable: if there are too few messages, or not every client is found.

    Source: clustering encodings that share a record, Carlini et al. 2021, "Is private learning possible with instance
    encoding?", §4; sparsest vectors of a subspace by linear programs: Spielman, Wang and Wright 2012.
    """
    members, messages = same[0].mixed, same[0].messages
    rows = torch.cat([view.smashed.unflatten(0, (messages, -1)).flatten(1) for view in same]).double()
    if len(rows) < 2 * clients:
        raise NotApplicable(
            f"secret ratios of {clients} clients need at least {2 * clients} messages, got {len(rows)}: "
            f"record at least {-(-2 * clients // messages)} passes"
        )
    span = torch.linalg.eigh((rows @ rows.T).cpu())[1][:, -clients:].numpy()
    chosen = _apart([_sparsest(span, row) for row in range(len(span))], clients, len(same))
    scale = np.linalg.lstsq(chosen, np.ones(len(chosen)), rcond=None)[0]
    weights = torch.from_numpy((chosen * scale).clip(min=0)).to(rows)
    largest = weights.topk(members, 1)
    ratios = (largest.values / largest.values.sum(1, keepdim=True).clamp_min(1e-12)).split(messages)
    seats = largest.indices.split(messages)
    batch = len(same[0].smashed) // messages
    return [
        replace(
            view,
            weights=ratio.repeat_interleave(batch, 0).unsqueeze(2).to(view.smashed.dtype),
            clients=seat.repeat_interleave(batch, 0),
        )
        for view, ratio, seat in zip(same, ratios, seats, strict=True)
    ]


def _sparsest(span: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    """The vector of least absolute sum among those of a span [E, n] that are 1 in one row."""
    from scipy.optimize import linprog

    count, dimensions = span.shape
    one = np.eye(count)
    found = linprog(
        np.r_[np.zeros(dimensions), np.ones(count)],
        A_ub=np.block([[span, -one], [-span, -one]]),
        b_ub=np.zeros(2 * count),
        A_eq=np.r_[span[row], np.zeros(count)][None],
        b_eq=[1.0],
        bounds=[(None, None)] * dimensions + [(0, None)] * count,
        method="highs",
    )
    vector: NDArray[np.float64] = span @ found.x[:dimensions] if found.status == 0 else np.ones(count)
    return vector


def _apart(vectors: list[NDArray[np.float64]], count: int, passes: int) -> NDArray[np.float64]:
    """The sparsest vectors that are no two alike, [E, n], of some passes.

    Raises:
        NotApplicable: if there are fewer.
    """
    units = [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in vectors]
    chosen: list[NDArray[np.float64]] = []
    for unit in sorted(units, key=lambda unit: float(np.abs(unit).sum())):
        if all(abs(float(unit @ other)) < _SAME for other in chosen):
            chosen.append(unit)
        if len(chosen) == count:
            return np.stack(chosen, 1)
    raise NotApplicable(
        f"only {len(chosen)} of {count} clients' ratios were found from {passes} passes: record more passes, for "
        f"example with unmix:passes={2 * passes}"
    )
