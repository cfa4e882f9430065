"""Accurate split learning as published: Theorems 3.5 and 3.7, its Laplace noise, and the cases in which they fail."""

from __future__ import annotations

from math import isfinite, log, sqrt
from typing import Literal, get_args

from scipy.special import ndtri

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.papers import paper
from privkit.papers.contract import ONE_RELEASE_ASSUMPTION, claimed
from privkit.shared.certificate import Certificate

_Noise = Literal["independent", "backpropagated"]


def theorem_3_5_epsilon(sensitivity: float, sigma: float, delta: float) -> float:
    """ε of the Gaussian mechanism by the classical formula √(2·ln(1.25/δ))·Δ/σ, proven for ε < 1 only.

    Δ > 0 is the L2 sensitivity, σ > 0 the noise's standard deviation, and δ lies in (0, 1).

    Source: the accurate split learning paper, Theorem 3.5 (Dwork and Roth 2014, Theorem 3.22).
    """
    shift = validate.real("sensitivity", sensitivity, above=0) / validate.real("sigma", sigma, above=0)
    return _finite("sigma", sigma, _constant(delta) * shift)


def theorem_3_5_limit(delta: float) -> tuple[float, float]:
    """The largest ε for which Theorem 3.5's formula is a valid bound at δ, and the ratio μ = Δ/σ at which it is
    reached.

    Δ/σ is the sensitivity divided by the noise's standard deviation. The formula claims ε = c·μ with c =
    √(2·ln(1.25/δ)). The exact δ at this ε grows with μ from 0 to 1, since its derivative φ(μ/2 − c) − c·e^{cμ}Φ(−μ/2 −
    c) is positive by Mills' ratio. So the exact δ equals the claimed δ at one μ only.

    Source: derived from Balle and Wang 2018, Theorem 8.
    """
    from scipy.optimize import brentq

    c = _constant(delta)

    def excess(mu: float) -> float:
        return min(gaussian.delta(c * mu, mu) / delta, 2.0) - 1  # capped: δ may be as small as 1e-320

    high = 1.0
    while excess(high) < 0:
        high *= 2
    mu = brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14)
    return c * mu, mu


def theorem_3_5(*, sensitivity: float, sigma: float, delta: float) -> Certificate:
    """The claim of Theorem 3.5 for one release, as a certificate; arguments as in `theorem_3_5_epsilon`.

    Its `lower` is the exact ε. The claim is `sound` if the claimed ε is at least the exact ε, i.e. up to
    `theorem_3_5_limit`.

    Source: the accurate split learning paper, Theorem 3.5; compared with Balle and Wang 2018, Theorem 8.
    """
    claim = theorem_3_5_epsilon(sensitivity, sigma, delta)
    mu = float(sensitivity) / float(sigma)
    _finite("sigma", sigma, mu * mu)
    exact = gaussian.epsilon(delta, mu)
    objection, limit = "", theorem_3_5_limit(delta)[0]
    if exact > claim:
        objection = f"the exact ε is {exact:.6g}"
        if claim > limit:
            objection += f": the formula is proven for ε < 1; at this δ it is no bound above {limit:.5g}"
    return claimed(
        f"Theorem 3.5 as published: ε = {claim:.6g} at δ = {delta:g} for one release",
        claim,
        delta,
        objection=objection,
        lower=exact,
        method="classical Gaussian mechanism as published",
        quantities={"exact_epsilon": exact, "limit": limit, "mu": mu},
        assumptions=(
            f"one record's replacement moves the released values by at most {float(sensitivity):.6g} in L2",
            *(("above ε = 1 the theorem proves nothing: compared with the exact profile",) if claim >= 1 else ()),
            ONE_RELEASE_ASSUMPTION,
        ),
        source=f"{paper('accurate_sl').citation}, Theorem 3.5",
    )


def theorem_3_7_mu(epsilon: float, delta: float) -> float:
    """The largest ratio of sensitivity to σ that Theorem 3.7 allows for Gaussian noise: z + √(z² + 2ε) with z = Φ⁻¹(δ).

    At this ratio the privacy loss exceeds ε > 0 with probability δ in (0, 1). The theorem itself only says that "some α
    > 0" is small enough. Its condition is stronger than (ε, δ)-DP, for which a larger ratio suffices
    (`gaussian.mu_for`).

    Source: derived from the accurate split learning paper, Theorem 3.7.
    """
    e, z = validate.real("epsilon", epsilon, above=0), float(ndtri(validate.delta(delta)))
    root = sqrt(z * z + 2 * e)
    return z + root if z > 0 else 2 * e / (root - z)  # the second form avoids cancellation


def theorem_3_7(*, epsilon: float, delta: float, noise: _Noise) -> Certificate:
    """The claim of Theorem 3.7, as a certificate: (ε, δ)-DP if the sensitivity is small enough. `noise` is
    "independent" of the data (then the claim is sound), or "backpropagated" for the noise that reaches a gradient in
    the paper's training."""
    if noise not in get_args(_Noise):
        raise ValueError(f"noise must be one of {', '.join(get_args(_Noise))}, got {noise!r}")
    mu = theorem_3_7_mu(epsilon, delta)
    objection = (
        "the proof assumes that the noise has the same density for two neighboring data sets, but backpropagated noise "
        "depends on the data and, with masks, has no density"
    )
    return claimed(
        f"Theorem 3.7: ε = {epsilon:.6g} at δ = {delta:g} if the sensitivity is at most {mu:.6g} σ",
        epsilon,
        delta,
        objection="" if noise == "independent" else objection,
        method="privacy loss above ε with probability δ",
        quantities={"mu": mu},
        assumptions=("Gaussian noise that is independent of the data", f"an L2 sensitivity of at most {mu:.6g} σ"),
        source=f"{paper('accurate_sl').citation}, Theorem 3.7",
    )


def laplace_epsilon(dimensions: int, scale: float, *, norm: Literal["l1", "l2"]) -> float:
    """ε of Laplace noise with scale b > 0 on data in [−1, 1]^n, for n = `dimensions`.

    With norm="l1" it is 2n/b, from the L1 diameter 2n (correct). With norm="l2" it is 2√n/b, from the L2 diameter (as
    published).

    Source: Dwork et al. 2006 (L1); the accurate split learning paper, Table 11 (L2).
    """
    if norm not in ("l1", "l2"):
        raise ValueError(f"norm must be l1 or l2, got {norm!r}")
    n, b = validate.whole("dimensions", dimensions), validate.real("scale", scale, above=0)
    return _finite("scale", scale, 2 * (n if norm == "l1" else sqrt(n)) / b)


def _constant(delta: float) -> float:
    return sqrt(2 * (log(1.25) - log(validate.delta(delta))))


def _finite(name: str, value: float, result: float) -> float:
    if not isfinite(result):
        raise ValueError(f"{name}={value!r} is too small: the result exceeds the largest floating-point number")
    return result
