"""The privacy of a run in two other definitions: ρ of zero-concentrated and μ of Gaussian differential privacy.

ρ must hold for every order, and μ for every δ. So secret sampling earns no credit: its rare largest loss counts in
full.
"""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
from scipy.special import ndtri_exp

from privkit.accountants import validate
from privkit.accountants.bounds.step import Steps


def zcdp(steps: Steps) -> float:
    """Smallest known ρ of a run: its Rényi divergence is at most ρα at every order α > 1.

    Source: Bun and Steinke 2016 (Lemma 1.7: ρ of a composition is the sum; Proposition 1.6: μ²/2 of a Gaussian;
    Proposition 1.4: ε²/2 of a largest loss ε).

    >>> from privkit.accountants.bounds.sampled import GaussianRelease
    >>> zcdp([(GaussianRelease(mu=0.5), 4)])
    0.5
    """

    def of_losses(losses: list[tuple[float, int]]) -> float:  # α > 1, so that ρ = ε holds, too (Proposition 1.4)
        return sum(count * min(e * e / 2, e) for e, count in losses) if losses else inf

    return sum(min(step.shift(count) ** 2 / 2, of_losses(step.most(count))) for step, count in steps)


def gdp(steps: Steps) -> float:
    """Smallest known μ of a run: neighboring datasets are at least as hard to distinguish as N(0, 1) and N(μ, 1).

    Source: Dong, Roth and Su 2022, Corollary 3.3 (μ of a composition is the root of the sum of squares).

    >>> from privkit.accountants.bounds.laplace import LaplaceRelease
    >>> round(gdp([(LaplaceRelease(parts=((1.0, 1),)), 4)]), 4)
    2.4641
    """

    def of_losses(losses: list[tuple[float, int]]) -> float:
        return sqrt(sum(count * pure_gdp(e) ** 2 for e, count in losses)) if losses else inf

    return sqrt(sum(min(step.shift(count), of_losses(step.most(count))) ** 2 for step, count in steps))


def pure_gdp(epsilon: float) -> float:
    """μ of an ε-differentially private mechanism: −2Φ⁻¹(1/(1 + e^ε)).

    Its trade-off curve is a chord from (0, 1) to a = (1/(1 + e^ε), 1/(1 + e^ε)), and the mirror image. The Gaussian's
    curve is convex, symmetric, and passes through both ends of the chord, so it lies below the curve of the ε-private
    mechanism.

    Source: derived.

    >>> round(pure_gdp(1.0), 4)
    1.232
    """
    e = validate.real("epsilon", epsilon, least=0)
    return float(-2 * ndtri_exp(-np.logaddexp(0, e)))
