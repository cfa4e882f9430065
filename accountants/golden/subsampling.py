"""Sampling and tight composition: Rényi curves, tight composition, calibration, and traps of libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log, log1p

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from privkit.accountants.bounds import pld, renyi, round_profiles, subsampled_rdp
from privkit.accountants.bounds.loss_distribution import Pair, Profile
from privkit.accountants.golden.case import Case
from privkit.accountants.spec.mixing import beta_nodes

_WBK = "Wang, Balle and Kasiviswanathan 2019"
_DP_ACCOUNTING = "dp-accounting 0.6.0"
_OPACUS = "opacus 1.6.0"
_DERIVED = "derived; connect-the-dots composition"

OPACUS_ORDERS: tuple[float, ...] = (*(1 + i / 10 for i in range(1, 100)), *(float(i) for i in range(12, 64)))
DP_ACCOUNTING_ORDERS: tuple[float, ...] = (
    *(1 + i / 10 for i in range(1, 100)),
    *(float(i) for i in range(11, 64)),
    *(128.0, 256.0, 512.0, 1024.0),
)
_INTEGERS = np.arange(2.0, 65.0)


def opacus_epsilon(rate: float, sigma: float, rounds: int, delta: float = 1e-5) -> float:
    """ε of DP-SGD on opacus' orders, fractional ones exactly."""
    rdp = rounds * subsampled_rdp.poisson_gaussian_rdp(OPACUS_ORDERS, rate, 1 / sigma, exact_fractional=True)
    return renyi.best_epsilon(OPACUS_ORDERS, rdp, delta).value


def dp_accounting_epsilon(rate: float, sigma: float, rounds: int, delta: float = 1e-5) -> float:
    """ε of DP-SGD on dp-accounting's orders, with its own series at fractional ones."""
    rdp = [
        subsampled_rdp.poisson_gaussian_rdp(order, rate, 1 / sigma) if order % 1 == 0 else unsigned(order, rate, sigma)
        for order in DP_ACCOUNTING_ORDERS
    ]
    return renyi.best_epsilon(DP_ACCOUNTING_ORDERS, rounds * np.array(rdp, float), delta).value


def unsigned(order: float, rate: float, sigma: float) -> float:
    """The series of Mironov, Talwar and Zhang 2019, §3.3 with |C(α, i)|: dp-accounting drops the sign, which is sound.

    The exact divergence is `sampled_renyi.poisson_gaussian`, up to some 1e-6 below.
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
    rdp = rounds * subsampled_rdp.without_replacement_gaussian_rdp(_INTEGERS, rate, 1 / sigma)
    return renyi.best_epsilon(_INTEGERS, rdp, delta).value


def bisected_sigma(epsilon: Callable[[float], float], target: float, within: float) -> float:
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
    profile = round_profiles.released_mixture((mu * nodes[kept]).tolist(), (weights / weights.sum()).tolist())
    return pld.composed_epsilon(profile, rounds, 1e-5, interval)


def _poisson_rdp(rate: float, sigma: float, order: float, expected: float) -> Case:
    """One order of the Poisson curve."""
    return Case(
        id=f"poisson_rdp_q{rate}_s{sigma}_a{order:g}",
        what=f"Rényi divergence of a Poisson-sampled Gaussian, q={rate}, σ={sigma}, order {order:g}",
        compute=lambda: float(subsampled_rdp.poisson_gaussian_rdp(order, rate, 1 / sigma, exact_fractional=True)),
        expected=expected,
        rel=1e-8,
        source=_OPACUS,
    )


def _without_rdp(clients: int, chosen: int, sigma: float, order: float, expected: float) -> Case:
    """One order of the without-replacement curve."""
    return Case(
        id=f"wor_rdp_n{clients}_k{chosen}_s{sigma}_a{order:g}",
        what=f"Rényi bound of a Gaussian on {chosen} of {clients}, σ={sigma} replace-one distances, order {order:g}",
        compute=lambda: float(subsampled_rdp.without_replacement_gaussian_rdp(order, chosen / clients, 1 / sigma)),
        expected=expected,
        rel=1e-9,
        source=f"{_DP_ACCOUNTING}; {_WBK}, Theorem 27",
    )


def _theorem_9(id: str, order: float, rate: float, sigma: float, expected: float, rel: float) -> Case:
    """One value of the general theorem."""
    return Case(
        id=id,
        what=f"Theorem 9 at order {order:g}, γ={rate}, Gaussian with σ={sigma} replace-one sensitivities",
        compute=lambda: float(subsampled_rdp.without_replacement_rdp(order, rate, lambda j: j / (2 * sigma**2))),
        expected=expected,
        rel=rel,
        source=f"{_WBK}, Theorem 9",
    )


def _tight(
    id: str,
    what: str,
    profile: Callable[[], Profile | Pair],
    rounds: int,
    expected: float,
    *,
    rel: float,
    interval: float = 1e-4,
    source: str = _DP_ACCOUNTING,
) -> Case:
    """One numerical composition at δ = 1e-5."""
    return Case(
        id=id,
        what=f"{what}, {rounds} rounds: ε at 1e-5 by numerical composition",
        compute=lambda: pld.composed_epsilon(profile(), rounds, 1e-5, interval),
        expected=expected,
        rel=rel,
        source=source,
    )


def _epsilon(id: str, what: str, compute: Callable[[], float], expected: float, rel: float, source: str) -> Case:
    """An ε at 1e-5 by any other way."""
    return Case(id=id, what=what, compute=compute, expected=expected, rel=rel, source=source)


_HIDDEN = partial(round_profiles.hidden_mixture, [0.3, 0.7], [0.5, 0.5])
_RELEASED = partial(round_profiles.released_mixture, [0.3, 0.7], [0.5, 0.5])
_OFTEN = partial(round_profiles.poisson_gaussian, 0.01, 1.0)

CASES: tuple[Case, ...] = (
    _theorem_9("E01", 8, 0.2, 1.0, 2.265016111794177, 1e-9),
    _theorem_9("E02", 2, 0.01, 1.0, 0.0005435086381094331, 1e-9),
    _theorem_9("E03", 8, 0.1, 2.0, 0.07017425661056077, 1e-8),
    _tight(
        "E04",
        "2 of 10 clients, σ=1",
        partial(round_profiles.without_replacement_gaussian, 0.2, 1.0),
        100,
        16.099062686132875,
        rel=1e-4,
        source=_DERIVED,
    ),
    _tight(
        "E05",
        "10 of 1000 clients, σ=1",
        partial(round_profiles.without_replacement_gaussian, 0.01, 1.0),
        100,
        0.7680079471938521,
        rel=1e-4,
        source=_DERIVED,
    ),
    _epsilon(
        "D15",
        "50 rounds of Mixup with a published Dirichlet ratio, μ=0.5: ε at 1e-5",
        lambda: published_ratio(0.5, 2.0, 2, 50, 1e-3),
        9.97346274249362,
        1e-4,
        _DERIVED,
    ),
    _poisson_rdp(0.01, 1.0, 8, 0.0008936439076060279),
    _poisson_rdp(0.01, 1.0, 1.5, 0.00012725374351154145),
    _poisson_rdp(0.01, 1.0, 2.7, 0.00023623813586973994),
    _poisson_rdp(0.2, 0.7, 6.4, 4.623207943388969),
    _poisson_rdp(0.04, 1.5, 16, 0.1670092793697134),
    _poisson_rdp(0.5, 3.0, 32, 1.096740110473827),
    _epsilon(
        "poisson_eps_daRDP_q0.01_s1.0_T1000",
        "DP-SGD on dp-accounting's orders: ε at 1e-5",
        lambda: dp_accounting_epsilon(0.01, 1.0, 1000),
        2.101366525420273,
        1e-9,
        _DP_ACCOUNTING,
    ),
    _epsilon(
        "poisson_eps_daRDP_q0.04_s1.5_T2250",
        "DP-SGD on dp-accounting's orders: ε at 1e-5",
        lambda: dp_accounting_epsilon(0.04, 1.5, 2250),
        7.329334702381698,
        1e-9,
        _DP_ACCOUNTING,
    ),
    _epsilon(
        "poisson_eps_opacusRDP_q0.01_s1.0_T100000",
        "DP-SGD on opacus' orders: ε at 1e-5",
        lambda: opacus_epsilon(0.01, 1.0, 100_000),
        27.231851322973117,
        1e-9,
        _OPACUS,
    ),
    _epsilon(
        "poisson_eps_opacusRDP_q0.04_s1.5_T2250",
        "DP-SGD on opacus' orders: ε at 1e-5",
        lambda: opacus_epsilon(0.04, 1.5, 2250),
        7.3291111714386545,
        1e-9,
        _OPACUS,
    ),
    _tight(
        "poisson_eps_PLD_q0.01_s1.0_T1000", "Poisson sampling, q=0.01, σ=1", _OFTEN, 1000, 1.8282436455855091, rel=1e-3
    ),
    _tight(
        "poisson_eps_PLD_q0.01_s1.0_T100000",
        "Poisson sampling, q=0.01, σ=1",
        _OFTEN,
        100_000,
        25.573272725293773,
        rel=1e-3,
    ),
    _epsilon(
        "poisson_hetero_PLD",
        "three Poisson-sampled Gaussians, 2000 rounds: ε at 1e-5 by numerical composition",
        lambda: pld.composed_bounds(
            [
                (round_profiles.poisson_gaussian(q, 1 / sigma), rounds)
                for sigma, q, rounds in ((1.0, 0.01, 500), (2.0, 0.02, 500), (1.5, 0.005, 1000))
            ],
            1e-5,
            1e-4,
        )[1],
        1.6813288911836686,
        1e-3,
        _DP_ACCOUNTING,
    ),
    _tight(
        "poisson_replace_one_PLD_q.01_s1_T1000",
        "Poisson sampling, replace-one, q=0.01, σ=1 norm bounds",
        partial(round_profiles.poisson_gaussian_replace_one, 0.01, 1.0),
        1000,
        2.8434458118173023,
        rel=1e-3,
    ),
    _without_rdp(10, 2, 1.0, 2, 0.19676881268969687),
    _without_rdp(10, 2, 1.0, 8, 2.265016111794177),
    _without_rdp(10, 2, 1.0, 32, 14.361004322021751),
    _without_rdp(10, 2, 2.0, 2, 0.04444173933542095),
    _without_rdp(10, 2, 2.0, 16, 0.4933263076599701),
    _without_rdp(50000, 128, 1.0, 2, 3.562842888196837e-05),
    _without_rdp(50000, 128, 1.0, 4, 7.216047903186006e-05),
    _without_rdp(50000, 128, 1.0, 16, 1.680739572325847),
    _without_rdp(50000, 128, 0.8, 2, 6.252899898408146e-05),
    _without_rdp(50000, 128, 0.8, 6, 0.00020840697103472104),
    _epsilon(
        "wor_eps_n10_k2_s2.0_T100",
        "2 of 10 clients, σ=2, 100 rounds: ε at 1e-5 by Rényi orders",
        lambda: without_replacement_epsilon(0.2, 2.0, 100),
        11.82374961792345,
        1e-8,
        _DP_ACCOUNTING,
    ),
    _epsilon(
        "wor_eps_n50000_k128_s1.0_T10000",
        "128 of 50000 records, σ=1, 10000 rounds: ε at 1e-5 by Rényi orders",
        lambda: without_replacement_epsilon(128 / 50000, 1.0, 10_000),
        2.6963750346419424,
        1e-8,
        _DP_ACCOUNTING,
    ),
    _tight("mog_hidden_lambda_T1", "hidden ratio 0.3 or 0.7", _HIDDEN, 1, 2.3070467672309016, rel=1e-4),
    _tight("mog_hidden_lambda_T10", "hidden ratio 0.3 or 0.7", _HIDDEN, 10, 7.971531135294737, rel=1e-4),
    _tight("mog_hidden_lambda_T100", "hidden ratio 0.3 or 0.7", _HIDDEN, 100, 33.93033016611035, rel=1e-4),
    _tight(
        "mog_as_poisson_q.01_s1_T1000",
        "hidden ratio 0 or 1",
        partial(round_profiles.hidden_mixture, [0.0, 1.0], [0.99, 0.01]),
        1000,
        1.8282436454513724,
        rel=1e-3,
    ),
    _epsilon(
        "mog_rdp_a8",
        "Rényi divergence of order 8, hidden ratio 0.3 or 0.7",
        lambda: float(subsampled_rdp.mixture_gaussian_rdp(8, [0.3, 0.7], [0.5, 0.5])),
        1.3304603490765754,
        1e-8,
        "mpmath quadrature",
    ),
    _tight("pldmix_known_lambda_T100", "released ratio 0.3 or 0.7", _RELEASED, 100, 37.82663661829113, rel=1e-4),
    _epsilon(
        "calib_opacus_rdp_eps8",
        "σ for ε=8 at 1e-5, q=0.04, T=2000, by opacus' orders and search to 0.01",
        lambda: bisected_sigma(lambda sigma: opacus_epsilon(0.04, sigma, 2000), 8.0, 0.01),
        1.356201171875,
        1e-6,
        _OPACUS,
    ),
    _epsilon(
        "calib_da_rdp_eps8",
        "σ for ε=8 at 1e-5, q=0.04, T=2000, by dp-accounting's orders",
        lambda: bisected_sigma(lambda sigma: dp_accounting_epsilon(0.04, sigma, 2000), 8.0, 1e-5),
        1.356239565762547,
        1e-5,
        _DP_ACCOUNTING,
    ),
    _epsilon(
        "calib_da_pld_eps8",
        "σ for ε=8 at 1e-5, q=0.04, T=2000, by numerical composition",
        lambda: bisected_sigma(
            lambda sigma: pld.composed_epsilon(round_profiles.poisson_gaussian(0.04, 1 / sigma), 2000, 1e-5, 1e-3),
            8.0,
            1e-3,
        ),
        1.290065139023199,
        1e-3,
        _DP_ACCOUNTING,
    ),
    _epsilon(
        "trap_int_sigma_composed_in_poisson",
        "two Gaussians of integer σ=1 inside a Poisson sample, 100 rounds",
        lambda: composed_pair(0.01, [1, 1], 100),
        3.0613908433019277,
        1e-8,
        _DP_ACCOUNTING,
    ),
    _epsilon(
        "trap_pld_randomized_response_count",
        "100 randomized responses: ε at 1e-5",
        lambda: randomized_response(100, 0.5, 2, 1e-5, log(3) / 1000),
        90.7897084686849,
        1e-3,
        _DP_ACCOUNTING,
    ),
)
