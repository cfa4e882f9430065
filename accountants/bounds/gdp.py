"""The privacy of a run in two definitions beside (ε, δ)-DP: ρ of zero-concentrated DP, and μ of Gaussian DP.

The ρ of `zcdp` holds for every Rényi order, and the μ of `gdp` for every δ, so even the rarest losses count in full.
Under Gaussian noise, secret sampling therefore lowers neither ρ nor μ.

The far tail of a sampled composition is heavier than a Gaussian's, so a μ that covers every hypothesis test is
uselessly large. The function `mu` finds the smallest μ for the tests whose two error rates are at least a given floor,
such as 1e-10. Its result has a δ that covers the other tests.

Source: Dong, Roth and Su 2022 (GDP); Gomez et al. 2025 (numeric μ).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, log, sqrt

import numpy as np
from scipy.special import erfinv, ndtr, ndtri, ndtri_exp

from privkit.accountants import validate
from privkit.accountants.bounds.fft_composition import compose
from privkit.accountants.bounds.loss_distribution import Pair, Profile, both_directions, checked_steps, grid_interval
from privkit.accountants.bounds.step import Steps
from privkit.shared.array import Array

NODES = 256  # values of ε at which the composed profile is computed; doubling them quarters the excess of μ


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
    if e < 1:  # where 1/(1 + e^ε) loses the digits of a small ε
        return float(2 * sqrt(2) * erfinv(np.tanh(e / 2)))
    return float(-2 * ndtri_exp(-np.logaddexp(0, e)))


@dataclass(frozen=True, kw_only=True)
class GaussianFit:
    """A Gaussian mechanism that bounds a composition. Let δ_G(ε; μ) be the profile of a Gaussian release. Then the
    composition is (ε, max(δ_G(ε; μ), delta_floor))-DP for every ε ≥ 0.

    Every test whose false positive rate α is at least the `floor` given to `mu` has a false negative rate of at least
    Φ(Φ⁻¹(1 − α) − μ), as for a Gaussian release.
    """

    mu: float  # shift of the Gaussian in standard deviations, ≥ 0
    delta_floor: float  # Φ(μ + Φ⁻¹(f)), where f is the floor of the error rates


def mu(
    steps: Sequence[tuple[Profile | Pair, int]], *, floor: float = 1e-10, interval: float | None = None
) -> GaussianFit:
    """The smallest μ for which N(0, 1) and N(μ, 1) are at least as easy to distinguish as the neighbors of a
    composition, by every test whose two error rates are at least `floor`.

    The composed profile δ(ε) is bounded from above at nodes ε_j. As δ is convex in e^ε, it lies under the lower hull of
    these points. Each edge of the hull gives one point (α, β) of false positive and false negative rate on a trade-off
    curve below the composition's. μ is the largest Φ⁻¹(1 − α) − Φ⁻¹(β) over these points. Between them the claim
    follows, since the Gaussian's trade-off curve is convex.

    Args:
        steps: pairs (privacy profile of one round, number of such rounds).
        floor: the smallest error rate that μ covers, in [1e-12, 0.1]. Tests with a smaller error rate are covered by
            `delta_floor` alone. A smaller floor makes μ larger, without a useful limit.
        interval: distance of the nodes of the loss grid, in nats; None chooses it.

    Raises:
        ValueError: if no test has both error rates above the floor, or the grid would be too large. Report ε at δ
            instead.

    Source: derived from Dong, Roth and Su 2022, Proposition 2.12 (duality); range: Gomez et al. 2025.
    """
    least = validate.real("floor", floor, least=1e-12, most=0.1)
    profile, largest = _composed(steps, least, interval)
    if 1 - profile(0.0) < 2 * least:
        raise ValueError(
            f"no test between these data sets has both error rates above floor = {least:g}: report epsilon at delta, "
            f"or choose a smaller floor (>= 1e-12)"
        )
    epsilon = np.linspace(0.0, largest, NODES)
    delta = np.array([profile(e) for e in epsilon.tolist()])
    kept = _hull(epsilon, delta)
    corner, at = epsilon[kept], delta[kept]
    gap = (at[:-1] - at[1:]) / np.expm1(np.minimum(np.diff(corner), 700))  # e^ε·α of each edge: −slope in e^ε is α
    with np.errstate(divide="ignore"):
        log_alpha = np.log(gap) - corner[:-1]
    inside = int(np.searchsorted(-log_alpha, -log(least), "left"))  # edges above the floor; at it, the next line
    log_alpha = np.append(log_alpha[:inside], log(least))
    power = np.append(at[:inside] + gap[:inside], at[inside] + least * exp(min(corner[inside], 700)))  # 1 − β
    tightest = max(0.0, float(np.max(ndtri(np.minimum(power, 1)) - ndtri_exp(log_alpha))))
    return GaussianFit(mu=tightest, delta_floor=float(ndtr(tightest + ndtri(least))))


def _composed(
    steps: Sequence[tuple[Profile | Pair, int]], floor: float, interval: float | None
) -> tuple[Callable[[float], float], float]:
    """A function from ε to an upper bound on the composed δ in both directions, and an ε above which every test has an
    error rate below `floor`."""
    checked = checked_steps(steps)
    tail = max(floor * 1e-12 / sum(rounds for _, rounds in checked), 1e-290)
    d = grid_interval(checked, tail, interval)
    parts = both_directions(checked, d, tail)
    # A composition is accurate near the ε or δ to which it is tilted. For each ε, the best of five is used.
    sides = [[compose(one, epsilon=0.0)] for one in parts]

    def delta(epsilon: float) -> float:
        return max(min(side, key=lambda one: one.slack(epsilon)).delta(epsilon) for side in sides)

    last = floor / 100 * max(delta(0.0), 1e-10)  # for small shifts, error rates reach the floor at a far smaller δ
    for one, side in zip(parts, sides, strict=True):
        side.append(compose(one, delta=last))
    largest = max(side[-1].epsilon(last) for side in sides)
    if largest == inf:
        raise ValueError(f"δ does not fall below {last:g}: a loss is infinite with a larger probability")
    for one, side in zip(parts, sides, strict=True):
        side += [compose(one, epsilon=share * largest) for share in (1 / 8, 1 / 4, 1 / 2)]
    return delta, max(largest, d)


def _hull(epsilon: Array, delta: Array) -> list[int]:
    corners: list[int] = []

    def slope(left: int, right: int) -> float:
        # the slope of an edge, times −e^{ε_left} to avoid overflow
        return float(delta[left] - delta[right]) / expm1(min(epsilon[right] - epsilon[left], 700))

    for at in range(epsilon.size):
        while len(corners) > 1:
            first, last = corners[-2:]
            if slope(last, at) * exp(epsilon[first] - epsilon[last]) < slope(first, last):
                break
            corners.pop()
        corners.append(at)
    return corners
