"""Sampling: Rényi curves and numerical composition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privkit.accountants.bounds import pld, round_profiles, subsampled_rdp
from privkit.accountants.golden import read



def theorem_9(order: float, rate: float, sigma: float) -> float:
    """The general theorem for a Gaussian; σ in replace-one distances."""
    return float(subsampled_rdp.without_replacement_rdp(order, rate, lambda j: j / (2 * sigma**2)))



def composed_poisson(steps: Sequence[tuple[float, float, int]]) -> float:
    """ε at 1e-5 of Poisson-sampled Gaussians with different (σ, q, rounds)."""
    curves = [(round_profiles.poisson_gaussian(rate, 1 / sigma), rounds) for sigma, rate, rounds in steps]
    return pld.composed_bounds(curves, 1e-5, 1e-4)[1]


CASES = read(__package__, "subsampling.jsonl", globals())
