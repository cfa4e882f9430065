"""Sampling: Rényi curves and numerical composition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian, sampled_renyi
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.subsampling import amplify, rates
from privkit.accountants.golden import read_cases


def theorem_9(order: float, rate: float, sigma: float) -> float:
    """The general theorem for a Gaussian; σ in replace-one distances."""
    return float(sampled_renyi.without_replacement_rdp(order, rate, lambda j: j / (2 * sigma**2)))


def composed_poisson(steps: Sequence[tuple[float, float, int]]) -> float:
    """ε at 1e-5 of Poisson-sampled Gaussians with different (σ, q, rounds)."""
    curves = [(gaussian.poisson_profiles(rate, 1 / sigma), rounds) for sigma, rate, rounds in steps]
    return pld.composed_bounds(curves, 1e-5, 1e-4)[1]


def without_replacement_epsilon(delta: float, rate: float, base_epsilon: Callable[[float], float]) -> float:
    """Tight ε of one release from k of n clients: ln(1 + γ(e^{ε_base(δ/γ)} − 1)), and 0 where δ ≥ γ.

    Args:
        delta: δ in (0, 1).
        rate: γ = k/n in [0, 1].
        base_epsilon: ε(δ) of the mechanism on the chosen clients.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9. At δ ≥ γ, publishing a chosen client's data is allowed.

    >>> from privkit.accountants.bounds import gaussian
    >>> without_replacement_epsilon(0.5, 0.5, lambda delta: gaussian.epsilon(delta, 23.77))
    0.0
    """
    d, g = validate.delta(delta), float(rates(rate))
    return 0.0 if d >= g else float(amplify(validate.real("base epsilon", base_epsilon(d / g), least=0), g))


CASES = read_cases(__package__, "subsampling.jsonl", globals())
