"""Random mixing ratios: Rényi divergences, exact profiles, rounding to whole patches and hidden ratios."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, logsumexp

from privkit.accountants.bounds import mixture
from privkit.accountants.golden import gaussian, hidden_mixtures
from privkit.accountants.golden.case import read
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio, RealizedRatios
from privkit.accountants.spec.shift import ShiftLaw

_CLIP, _DIMENSIONS, _SIGMA = 0.15, 10, 16 / 255
"""Width of the clamp, coordinates and noise of DP-CutMixSL's Table 1."""


def kept_share(clients: int, patches: int) -> float:
    """Share of the patches that one of n clients keeps, times n: 1 without rounding."""
    return float(clients * FixedRatio.equal(clients).law(patches).share[0])


def kept_patches(ratios: Sequence[float], patches: int) -> float:
    """Patches that all clients keep together."""
    return float(patches * RealizedRatios(ratios=(tuple(ratios),)).per_round(patches).share.sum())


def _assumed(concentration: float, clients: int, patches: int | None) -> ShiftLaw:
    """CutMix in the setting of Table 1 if the published share of the coordinates were kept: λ, or ⌈λN⌉/N."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(patches)
    smashed, labels = _CLIP**2 * _DIMENSIONS / _SIGMA**2, 2 / _SIGMA**2
    return ShiftLaw(mu=np.sqrt(law.share * smashed + law.ratio**2 * labels), log_weight=law.log_weight)


def assumed_rdp(concentration: float, clients: int, patches: int | None) -> float:
    """Its Rényi divergence of order 2."""
    return float(mixture.rdp(2, _assumed(concentration, clients, patches)))


def assumed_epsilon(concentration: float, clients: int, patches: int | None, delta: float) -> float:
    """Its exact ε."""
    return mixture.invert(mixture.profile(_assumed(concentration, clients, patches)), delta)


def share_rdp(concentration: float, clients: int, c: float, order: float) -> float:
    """CutMix without labels if a share of exactly λ were kept; c = μ²/2 of the unmixed release."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(None)
    return float(mixture.rdp(order, ShiftLaw(mu=np.sqrt(law.ratio * 2 * c), log_weight=law.log_weight)))


def hidden_ratio_rdp(concentration: float, clients: int, mu: float, order: float) -> float:
    """Hidden ratios and nothing else in the mixture, larger direction."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(None)
    weights = np.exp(law.log_weight).tolist()
    return float(hidden_mixtures.mixture_gaussian_rdp([order], (mu * law.ratio).tolist(), weights)[0])


def hidden_mask_rdp(patches: int, kept: int, c: float) -> float:
    """ln E e^{cJ} over the overlap J of two independent masks of `kept` patches."""
    j = np.arange(kept + 1.0)
    log_choose = gammaln(kept + 1) - gammaln(j + 1) - gammaln(kept + 1 - j)
    apart = gammaln(patches - kept + 1) - gammaln(kept - j + 1) - gammaln(patches - 2 * kept + j + 1)
    return float(logsumexp(log_choose + apart + c * j) - logsumexp(log_choose + apart))


def _law(mu: Sequence[float]) -> ShiftLaw:
    """Equally likely shifts, told."""
    return ShiftLaw(mu=np.array(mu, float), log_weight=np.full(len(mu), -np.log(len(mu))))


def law_rdp(mu: Sequence[float], order: float) -> float:
    """Rényi divergence with the shift told."""
    return float(mixture.rdp(order, _law(mu)))


def law_epsilon(mu: Sequence[float], delta: float) -> float:
    """Exact ε with the shift told."""
    return mixture.invert(mixture.profile(_law(mu)), delta)


# Evaluators that lie elsewhere, by the names that the cases have for them.
delta = gaussian.delta
epsilon = gaussian.epsilon
rdp = gaussian.rdp

CASES = read(__package__, "mixing.jsonl", globals())
