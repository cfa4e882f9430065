"""The privacy of a run in two other definitions: ρ of zero-concentrated and μ of Gaussian differential privacy.

ρ must hold for every Rényi order, and μ for every δ, so even the rarest losses count in full. Under Gaussian noise,
secret sampling therefore lowers neither of them.
"""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
from scipy.special import ndtri_exp

from privkit.accountants import validate
from privkit.accountants.bounds.step import Steps


def zcdp(steps: Steps) -> float:
    """The smallest known ρ ≥ 0 of a run: its Rényi divergence of order α is at most ρα for every α > 1. `inf` if none
    is known.

    Source: Bun and Steinke 2016. Lemma 1.7: ρ of a composition is the sum of the steps' ρ. Proposition 1.6: a Gaussian
    of shift μ has ρ = μ²/2. Proposition 1.4: a release with losses of at most ε has ρ = ε²/2.
    """

    def of_losses(losses: list[tuple[float, int]]) -> float:  # ρ = ε holds, too: a divergence ≤ ε is ≤ εα
        return sum(count * min(e * e / 2, e) for e, count in losses) if losses else inf

    return sum(min(step.shift(count) ** 2 / 2, of_losses(step.most(count))) for step, count in steps)


def gdp(steps: Steps) -> float:
    """The smallest known μ ≥ 0 of a run: its neighboring data sets are at least as hard to distinguish as N(0, 1) and
    N(μ, 1). `inf` if none is known.

    Source: Dong, Roth and Su 2022, Corollary 3.3: μ² of a composition is the sum of the steps' μ².
    """

    def of_losses(losses: list[tuple[float, int]]) -> float:
        return sqrt(sum(count * pure_gdp(e) ** 2 for e, count in losses)) if losses else inf

    return sqrt(sum(min(step.shift(count), of_losses(step.most(count))) ** 2 for step, count in steps))


def pure_gdp(epsilon: float) -> float:
    """The μ for which every ε-DP mechanism is μ-Gaussian-DP: −2Φ⁻¹(1/(1 + e^ε)).

    The trade-off curve of ε-DP (least false negative rate at each false positive rate) has two straight pieces: from
    (0, 1) to the corner (a, a) with a = 1/(1 + e^ε), and its mirror image to (1, 0). The Gaussian's curve with this μ
    is convex, symmetric, and passes through (0, 1) and (a, a). So it lies below the curve of ε-DP, as required.

    Source: derived.
    """
    e = validate.real("epsilon", epsilon, least=0)
    return float(-2 * ndtri_exp(-np.logaddexp(0, e)))
