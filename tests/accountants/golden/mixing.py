"""Random mixing ratios: Rényi divergences, exact profiles, and rounding to whole patches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privkit.accountants.bounds import mixture
from privkit.accountants.golden import read_cases
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


def _assumed_shift(concentration: float, clients: int, patches: int | None) -> ShiftLaw:
    """CutMix in the setting of Table 1 if the published share of the coordinates were kept: λ, or ⌈λN⌉/N."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(patches)
    smashed, labels = _CLIP**2 * _DIMENSIONS / _SIGMA**2, 2 / _SIGMA**2
    return ShiftLaw(mu=np.sqrt(law.share * smashed + law.ratio**2 * labels), log_weight=law.log_weight)


def assumed_rdp(concentration: float, clients: int, patches: int | None) -> float:
    """Its Rényi divergence of order 2."""
    return float(mixture.rdp(2, _assumed_shift(concentration, clients, patches)))


def assumed_epsilon(concentration: float, clients: int, patches: int | None, delta: float) -> float:
    """Its exact ε."""
    return mixture.invert(mixture.profile(_assumed_shift(concentration, clients, patches)), delta)


def share_rdp(concentration: float, clients: int, c: float, order: float) -> float:
    """CutMix without labels if a share of exactly λ were kept; c = μ²/2 of the unmixed release."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(None)
    return float(mixture.rdp(order, ShiftLaw(mu=np.sqrt(law.ratio * 2 * c), log_weight=law.log_weight)))


def _equally_likely(mu: Sequence[float]) -> ShiftLaw:
    """Equally likely shifts, told."""
    return ShiftLaw(mu=np.array(mu, float), log_weight=np.full(len(mu), -np.log(len(mu))))


def law_rdp(mu: Sequence[float], order: float) -> float:
    """Rényi divergence with the shift told."""
    return float(mixture.rdp(order, _equally_likely(mu)))


def law_epsilon(mu: Sequence[float], delta: float) -> float:
    """Exact ε with the shift told."""
    return mixture.invert(mixture.profile(_equally_likely(mu)), delta)


CASES = read_cases(__package__, "mixing.jsonl", globals())
