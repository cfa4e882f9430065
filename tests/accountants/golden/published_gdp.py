"""Values of μ and ε that others report for DP-SGD, to compare with: neither is a bound."""

from __future__ import annotations

from math import expm1, sqrt

import numpy as np
from scipy.special import ndtr, ndtri

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.gdp import GaussianFit
from privkit.shared.array import Array
from privkit.shared.certificate import Certificate


def published_mu(rate: float, noise_multiplier: float, rounds: int, *, floor: float = 1e-10) -> GaussianFit:
    """μ of DP-SGD as the library gdpnum 0.1.2 computes it from dp_accounting's loss distributions: no bound.

    Args:
        rate: Poisson rate q in (0, 1).
        noise_multiplier: σ over the add-or-remove sensitivity, > 0.
        rounds: T ≥ 1.
        floor: error rates below it are left out, as there.

    Raises:
        ValueError: if an argument is out of range, or no error rate is above the floor.

    Rounding noise of the composed probabilities counts as false positives, so the trade-off curve is lost where they
    are rare, and μ misses the heavy tail: its δ(ε) falls below the composition's.

    Source: Gomez et al. 2025, reproduced; `mu` is the sound answer.
    """
    q = validate.real("rate", rate, above=0, below=1)
    sigma = validate.real("noise_multiplier", noise_multiplier, above=0)
    steps, least = validate.whole("rounds", rounds), validate.real("floor", floor, least=1e-12, most=0.1)
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    once = from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4, use_connect_dots=True)
    composed = once.self_compose(steps)
    alpha, beta = _errors(composed._pmf_add, composed._pmf_remove)
    valid = (np.minimum(alpha, beta) > least) & (alpha + beta <= 1 - least)
    if not valid.any():
        raise ValueError(f"no test errs at a rate above floor = {least:g} in both ways: choose a smaller floor")
    largest = max(0.0, float(np.max(ndtri(1 - beta[valid]) - ndtri(alpha[valid]))))
    return GaussianFit(mu=largest, delta_floor=float(ndtr(largest + ndtri(least))))


def limit_theorem(rate: float, noise_multiplier: float, rounds: int, delta: float) -> Certificate:
    """ε of the central limit theorem for DP-SGD, μ = q·√(T·(e^{1/σ²} − 1)): an approximation that is too small.

    Args:
        rate: Poisson rate q in (0, 1].
        noise_multiplier: σ over the add-or-remove sensitivity, ≥ 0.1.
        rounds: T ≥ 1.
        delta: in (0, 1).

    Returns:
        A certificate with `sound` False; μ is among its quantities.

    Raises:
        ValueError: if an argument is out of range, or σ < 0.1, where μ is beyond any use.

    Source: Bu, Dong, Long and Su 2020, Corollary 4 (Poisson sampling).

    >>> claim = limit_theorem(0.01, 1.0, 1000, 1e-5)
    >>> round(claim.epsilon, 4), claim.sound
    (1.6177, False)
    """
    q = validate.real("rate", rate, above=0, most=1)
    sigma = validate.real("noise_multiplier", noise_multiplier, above=0)
    steps, target = validate.whole("rounds", rounds), validate.delta(delta)
    if sigma < 0.1:
        raise ValueError(f"noise_multiplier must be at least 0.1 for the central limit theorem, got {sigma:g}")
    limit = q * sqrt(steps * expm1(sigma**-2))
    return Certificate(
        kind="differential_privacy",
        statement=f"an approximation that holds as the number of rounds grows: μ = {limit:.4g}; no guarantee",
        epsilon=gaussian.epsilon(target, limit),
        delta=target,
        method="central limit theorem for Gaussian differential privacy",
        relation="add_or_remove_one",
        unit="record",
        sound=False,
        objection="the limit leaves out the heavy tail of sampled losses, so its ε can be below what attacks reach",
        quantities={"mu": limit},
        assumptions=("each record takes part by an independent secret coin",),
        source="Bu, Dong, Long and Su 2020, Corollary 4",
    )


def _errors(added: object, removed: object) -> tuple[Array, Array]:
    """Error rates (Q[loss > x], P[loss ≤ x]) of the tests at x ≥ 0, clipped and scaled as gdpnum does."""
    first_q, q = _pmf(added)
    first_p, p = _pmf(removed)
    x = np.arange(0, max(first_p + p.size, 1 - first_q))
    # Q's losses are kept with the opposite sign: loss > x is −loss < −x.
    below_q, below_p = np.concatenate([[0.0], np.cumsum(q)]), np.concatenate([[0.0], np.cumsum(p)])
    alpha = below_q[np.clip(-x - first_q, 0, q.size)]
    beta = below_p[np.clip(x + 1 - first_p, 0, p.size)]
    return alpha, beta


def _pmf(one: object) -> tuple[int, Array]:
    """First node and masses, with rounding noise below zero cut off and what is left scaled to the rest's sum."""
    dense = one.to_dense_pmf()  # type: ignore[attr-defined]
    masses = np.maximum(np.asarray(dense._probs, float), 0)
    return int(dense._lower_loss), masses * (1 - dense._infinity_mass) / masses.sum()
