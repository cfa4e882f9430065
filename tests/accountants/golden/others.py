"""Reference values that no certificate rests on: orders and searches of libraries, their traps, hidden mixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, log1p
from typing import Any

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from privkit.accountants.bounds import gaussian, renyi, sampled_renyi
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.golden import read_cases
from privkit.accountants.spec.mixing import DirichletRatio, beta_nodes
from tests.accountants.golden import hidden_mixtures, published_gdp, theorem_27
from tests.accountants.golden.gaussian import ORDERS

_OPACUS_ORDERS: tuple[float, ...] = (*(1 + i / 10 for i in range(1, 100)), *(float(i) for i in range(12, 64)))
_INTEGERS = np.arange(2.0, 65.0)


def composed(profile: str, arguments: Sequence[Any], rounds: int) -> float:
    """ε at 1e-5 of one numerical composition of a profile of `hidden_mixtures`."""
    return pld.composed_epsilon(getattr(hidden_mixtures, profile)(*arguments), rounds, 1e-5, 1e-4)


def opacus_epsilon(rate: float, sigma: float, rounds: int, delta: float = 1e-5) -> float:
    """ε of DP-SGD on opacus' orders, fractional ones exactly."""
    rdp = rounds * sampled_renyi.poisson_gaussian_curve(_OPACUS_ORDERS, rate, 1 / sigma)
    return renyi.best_epsilon(_OPACUS_ORDERS, rdp, delta).value


def dp_accounting_epsilon(rate: float, sigma: float, rounds: int, delta: float = 1e-5) -> float:
    """ε of DP-SGD on dp-accounting's orders, with its own series at fractional ones."""
    rdp = [
        sampled_renyi.poisson_gaussian_rdp(order, rate, 1 / sigma) if order % 1 == 0 else unsigned(order, rate, sigma)
        for order in ORDERS["dp_accounting"]
    ]
    return renyi.best_epsilon(ORDERS["dp_accounting"], rounds * np.array(rdp, float), delta).value


def unsigned(order: float, rate: float, sigma: float) -> float:
    """The series of Mironov, Talwar and Zhang 2019, §3.3 with |C(α, i)|: dp-accounting drops the sign, which is sound.

    The exact divergence is `sampled_renyi.poisson_gaussian_curve`, up to some 1e-6 below.
    """
    i = np.arange(order + 1000)
    j = order - i
    middle = sigma**2 * log(1 / rate - 1) + 0.5
    choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(j + 1)  # gammaln is the logarithm of |Γ|
    below = i * log(rate) + j * log1p(-rate) + (i * i - i) / (2 * sigma**2) + log_ndtr((middle - i) / sigma)
    above = j * log(rate) + i * log1p(-rate) + (j * j - j) / (2 * sigma**2) + log_ndtr((j - middle) / sigma)
    return float(logsumexp([choose + below, choose + above])) / (order - 1)


def without_replacement_epsilon(rate: float, sigma: float, rounds: int, delta: float = 1e-5) -> float:
    """ε of k of n clients by Rényi orders 2..64."""
    rdp = rounds * theorem_27.without_replacement_gaussian_rdp(_INTEGERS, rate, 1 / sigma)
    return renyi.best_epsilon(_INTEGERS, rdp, delta).value


def _bisected_sigma(epsilon: Callable[[float], float], target: float, within: float) -> float:
    """σ by doubling and halving until ε is within a tolerance below the target: the search that opacus runs."""
    low, high = 0.0, 20.0
    while epsilon(high) > target:
        high *= 2
    while target - epsilon(high) > within:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(middle) < target else (middle, high)
    return high


def composed_pair(rate: float, sigmas: Sequence[float], rounds: int) -> float:
    """ε at 1e-5 of a Poisson sample whose chosen records go through several Gaussians at once."""
    together = float(np.sum(1 / np.array(sigmas, float) ** 2)) ** -0.5
    return dp_accounting_epsilon(rate, together, rounds)


def randomized_response(rounds: int, noise: float, buckets: int, delta: float, interval: float) -> float:
    """ε of T randomized responses, each of which keeps the truth with probability 1 − p + p/k."""
    truth, lie = 1 - noise + noise / buckets, noise / buckets
    largest = log(truth / lie)
    return pld.composed_epsilon(
        lambda epsilon: np.where(epsilon < largest, truth - np.exp(np.minimum(epsilon, largest)) * lie, 0.0),
        rounds,
        delta,
        interval,
    )


def published_ratio(mu: float, concentration: float, clients: int, rounds: int, interval: float) -> float:
    """ε at 1e-5 of T rounds of Mixup with λ ~ Beta(α_M, (k−1)α_M) told to the server."""
    nodes, log_weights = beta_nodes(concentration, (clients - 1) * concentration, np.array([]))
    kept = log_weights > -60
    weights = np.exp(log_weights[kept])
    profile = hidden_mixtures.released_mixture((mu * nodes[kept]).tolist(), (weights / weights.sum()).tolist())
    return pld.composed_epsilon(profile, rounds, 1e-5, interval)


def without_replacement_rdp(order: float, clients: int, chosen: int, sigma: float) -> float:
    """One order of the curve of k of n; σ in replace-one distances."""
    return float(theorem_27.without_replacement_gaussian_rdp(order, chosen / clients, 1 / sigma))


def mixture_rdp(order: float, mu: Sequence[float], weights: Sequence[float]) -> float:
    """Rényi divergence of a hidden shift."""
    return float(hidden_mixtures.mixture_gaussian_rdp(order, mu, weights))


def opacus_sigma(epsilon: float, rate: float, rounds: int, within: float) -> float:
    """σ by opacus' orders and search."""
    return _bisected_sigma(lambda sigma: opacus_epsilon(rate, sigma, rounds), epsilon, within)


def dp_accounting_sigma(epsilon: float, rate: float, rounds: int, within: float) -> float:
    """σ by dp-accounting's orders."""
    return _bisected_sigma(lambda sigma: dp_accounting_epsilon(rate, sigma, rounds), epsilon, within)


def composed_sigma(epsilon: float, rate: float, rounds: int, within: float) -> float:
    """σ by numerical composition."""
    return _bisected_sigma(
        lambda sigma: pld.composed_epsilon(gaussian.poisson_profiles(rate, 1 / sigma), rounds, 1e-5, 1e-3),
        epsilon,
        within,
    )


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


def published_mu(rate: float, sigma: float, rounds: int) -> float:
    """μ of DP-SGD as gdpnum computes it."""
    return published_gdp.published_mu(rate, sigma, rounds).mu


def limit_theorem(rate: float, sigma: float, rounds: int, delta: float) -> float:
    """ε of the central limit theorem."""
    return published_gdp.limit_theorem(rate, sigma, rounds, delta).epsilon


CASES = read_cases(__package__, "others.jsonl", globals())
