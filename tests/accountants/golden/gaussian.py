"""The Gaussian mechanism exactly and by Rényi orders, conversions, Laplace noise, clip sets and counter-examples."""

from __future__ import annotations

from math import log, sqrt
from typing import Any, Literal

import numpy as np

from privkit.accountants.bounds import gaussian, renyi, subsampling
from privkit.accountants.golden import read_cases
from privkit.accountants.spec import shift as spec_shift
from privkit.accountants.spec.records import from_json
from tests.accountants.shuffles import release_laws

ORDERS: dict[str, np.ndarray] = {
    "dp_accounting": np.array([*(1 + i / 10 for i in range(1, 100)), *range(11, 64), 128, 256, 512, 1024], float),
    "fine": np.linspace(1.01, 50.0, 400_001),
}
"""Orders of a library, and orders so close that the smallest ε on them is that over all orders, to 1e-9."""

Specification = dict[str, Any]
"""A specification as `spec.records.to_json` gives it; fields that are left out have their default."""


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """σ of one release with sensitivity 1."""
    return 1 / gaussian.mu_for(epsilon, delta)


def diameter(clip: Specification) -> float:
    """Largest L2 distance of two values of a clip set."""
    distance: float = from_json(clip).sensitivity("replace_one", "l2")
    return distance


def clipped_rdp(clip: Specification, sigma: float, order: float) -> float:
    """Rényi divergence of a clip set's values under noise."""
    return float(gaussian.rdp(order, diameter(clip) / sigma))


def converted(
    formula: Literal["mironov", "canonne"],
    orders: float | str,
    delta: float,
    mu: float | None = None,
    rdp: float | None = None,
) -> float:
    """Smallest ε over the orders by one conversion, of a Gaussian or of one Rényi divergence."""
    alpha = ORDERS[orders] if isinstance(orders, str) else orders
    curve = np.asarray(rdp if mu is None else gaussian.rdp(alpha, mu), float)
    if formula == "mironov":  # Mironov 2017, Proposition 3, which `canonne` is below
        return float(np.min(curve - np.log(delta) / (np.asarray(alpha) - 1)))
    return float(np.min(renyi.canonne(alpha, curve, delta)))


def best_delta(epsilon: float, mu: float) -> float:
    """Smallest δ over a library's orders."""
    alpha = ORDERS["dp_accounting"]
    return float(np.exp(renyi.log_delta(alpha, gaussian.rdp(alpha, mu), epsilon).min()))


def laplace_shift(mechanism: Specification) -> float:
    """Pure ε of all coordinates."""
    return spec_shift.laplace_shift(from_json(mechanism))[0]


def delta_of_sampled_claim(rate: float, mu: float, delta: float) -> float:
    """True δ of an unsampled Gaussian at the ε that sampling would have: round-robin is no sampling."""
    claim = float(subsampling.amplify(gaussian.epsilon(delta / rate, mu), rate))
    return gaussian.delta(claim, mu)


def delta_of_one_release_claim(rounds: int, mu: float, delta: float) -> float:
    """True δ of several releases at the ε that is claimed for one: later releases carry the record."""
    return gaussian.delta(gaussian.epsilon(delta, mu), sqrt(rounds) * mu)


def delta_of_classical_claim(epsilon: float, delta: float) -> float:
    """True δ at the σ of the classical Gaussian mechanism, √(2·ln(1.25/δ))/ε."""
    return gaussian.delta(epsilon, epsilon / sqrt(2 * log(1.25 / delta)))


averaged_noise_std = release_laws.averaged_noise_std

CASES = read_cases(__package__, "gaussian.jsonl", globals())
