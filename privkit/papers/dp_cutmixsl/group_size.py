"""The group size with the smallest ε′ of Corollary 1: the paper's k₂* and k₃*, and the true minimizers."""

from __future__ import annotations

from math import expm1, hypot, sqrt

import numpy as np

from privkit.accountants import validate
from privkit.papers.dp_cutmixsl.claims import conversion, corollary_1_epsilon, label_rdp, smashed_rdp
from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism, table_1, table_1_value
from privkit.shared.array import Array

_SIGMAS = tuple(table_1_value(f"σ·255, value {number}") / 255 for number in (1, 2, 3))  # σ_s = σ_y of Table 1
ORDER, DELTA = table_1_value("α"), table_1_value("δ")
"""Rényi order and δ of Table 1."""


def figure_7(mechanism: Mechanism) -> Array:
    """ε′ of Corollary 1 for groups of k = 1 to 10 clients and three noise levels σ, float [10, 3].

    Order and δ are those of Table 1. The values are not valid bounds for the paper's own experiments.

    Source: the DP-CutMixSL paper, Fig. 7b and 7d, recomputed from Eqs. 22-24, since no numbers are printed.
    """
    settings = [[table_1(mechanism, group=k, sigma=sigma) for sigma in _SIGMAS] for k in range(1, 11)]
    return np.array([[corollary_1_epsilon(setting, ORDER, DELTA) for setting in row] for row in settings])


def published_group_size(setting: GroupRelease, order: float, delta: float) -> float:
    """The best group size k by the paper's formula: k₂* = √((ε₁,s + ε₁,y)/ε_o) for Mixup, k₃* = √(ε₁,y/ε_o) for CutMix.

    ε₁,s and ε₁,y are the Rényi bounds for smashed data and labels without mixing, and ε_o is the conversion to (ε,
    δ)-DP. The formulas minimize k(ε(α) + ε_o), which approximates Corollary 1 only if ε(α) + ε_o is much smaller than
    1. With the paper's α and δ, this sum exceeds 1 at k₂* and k₃*, so these sizes do not minimize Corollary 1's ε′
    (`exact_group_size` does). Raises ValueError for the mechanism "dp_sl", since its ε′ grows with k.

    Source: the DP-CutMixSL paper, Corollary 1.
    """
    _, quadratic = _coefficients(setting, order)  # k(B/k + C/k² + ε_o) is least where C/k² = ε_o
    return sqrt(quadratic / conversion(order, delta))


def exact_group_size(setting: GroupRelease, order: float, delta: float) -> float:
    """The real group size k that minimizes Corollary 1's ε′ at λ = 1/k; it may lie outside [1, n] for n clients.

    The exponent in ε′ is B/k + C/k² + ε_o, where B = 0 and C = ε₁,s + ε₁,y for Mixup, and B = ε₁,s and C = ε₁,y for
    CutMix. The derivative vanishes at e^{B/k + C/k² + ε_o}(1 − B/k − 2C/k²) = 1. With p = B/k + 2C/k² and t = −ln(1 −
    p) this means t = ε_o + B/k + C/k². As 1/k grows, the right side grows more slowly than the left, so the root is
    unique; its t lies in [ε_o, ε_o + 1]. Raises ValueError for "dp_sl", as `published_group_size` does.

    Source: derived; minimizes Eqs. 23 and 24.
    """
    from scipy.optimize import brentq

    b, c = _coefficients(setting, order)
    start = conversion(order, delta)

    def inverse(rise: float) -> float:
        """The inverse group size 1/k at t = ε_o + rise: the root w of 2Cw² + Bw = p, without overflow."""
        p = -expm1(-(start + rise))
        return 2 * p / (b + hypot(b, sqrt(8 * p) * sqrt(c)))

    def gap(rise: float) -> float:
        w = inverse(rise)
        return b * w + c * w * w - rise

    return 1 / inverse(brentq(gap, 0.0, 1.0, xtol=1e-300, rtol=1e-15, maxiter=1000))


def _coefficients(setting: GroupRelease, order: float) -> tuple[float, float]:
    if setting.mechanism == "dp_sl":
        raise ValueError("mechanism must be dp_mixsl or dp_cutmixsl: without mixing, ε′ only grows with the group size")
    validate.real("order", order, above=1)
    smashed, labels = smashed_rdp(setting, order), label_rdp(setting, order)
    if smashed + labels < 1e-280:
        raise ValueError(f"sigma={setting.sigma!r} is too large: the Rényi bound is no positive floating-point number")
    return (0.0, smashed + labels) if setting.mechanism == "dp_mixsl" else (smashed, labels)
