"""Answers where numbers are tiny or huge: laws far out in their tails, small δ, many rounds, many patches."""

import subprocess
import sys
from fractions import Fraction
from math import comb, inf, log, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import betaln, expit, log_expit, logsumexp

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian, laplace
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio, RealizedRatios
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp, Known, OneHot, PatchBall
from privkit.accountants.table import mechanism_of

Array = NDArray[np.float64]

MANY = 9 * 10**15


def release(mu: float, **changes: Any) -> SplitMechanism:
    """A release whose unmixed shift is μ under replace-one."""
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=mu, dimensions=1),
        "noise": Noise(smashed=1.0),
        "lower_model": "frozen",
    }
    return SplitMechanism(**(given | changes))


def log_mean_exp(exponents: Array, log_weight: Array) -> float:
    """ln E e^y for y ≥ 0 with all digits, in logarithms throughout."""
    with np.errstate(divide="ignore"):
        gains = np.where(exponents > 30, exponents, np.log(np.expm1(np.minimum(exponents, 30))))
    return float(np.logaddexp(0, logsumexp(gains + log_weight)))


def kept(ratio: Array, clients: int, site: str) -> Array:
    """What noise at this place leaves of a squared distance that is scaled by λ."""
    if site == "mixer":
        return ratio**2
    return ratio**2 / (ratio**2 + (1 - ratio) ** 2 / (clients - 1))


# random ratios


@pytest.mark.parametrize("clients", [2, 5])
@pytest.mark.parametrize("a", [1e-306, 1e-6, 0.3, 2.0, 1e6, 1e12, 7.4989e16, 1e300, 1e308])
def test_the_law_of_counts_has_all_digits(a: float, clients: int) -> None:
    """Differences of logarithms of Beta functions lose them from α_M = 1e11 on: from 1e16 on, ε was far too small."""

    def rising(start: Fraction, times: int) -> Fraction:
        return prod((start + i for i in range(times)), start=Fraction(1))

    n, own, all_ = 16, Fraction(a), clients * Fraction(a)
    exact = [comb(n, j) * rising(own, j) * rising(all_ - own, n - j) / rising(all_, n) for j in range(n + 1)]
    law = DirichletCounts(concentration=a, clients=clients).law(n)
    assert np.exp(law.log_weight) == pytest.approx([float(one) for one in exact], rel=1e-11)


@pytest.mark.parametrize(("clients", "a"), [(2, 2.0), (3, 50.0), (10, 0.05), (200, 1e3), (1000, 100.0), (10**5, 10.0)])
def test_the_law_of_ratios_has_its_moments(clients: int, a: float) -> None:
    """With hundreds of clients, a ratio is near 1/k, below where the quadrature began."""
    law = DirichletRatio(concentration=a, clients=clients).law(None)
    weights = np.exp(law.log_weight)
    assert weights @ law.ratio == pytest.approx(1 / clients, rel=1e-12)
    assert weights @ law.ratio**2 == pytest.approx((a + 1) / (clients * (clients * a + 1)), rel=1e-12)


def test_a_delta_below_the_normal_floats_has_an_epsilon() -> None:
    mixing = Mixup(ratio=DirichletRatio(concentration=2, clients=2))
    found = [answer.epsilon(release(1.0, mixing=mixing), delta).epsilon for delta in (1e-304, 1e-305, 1e-306)]
    assert 0 < found[1] - found[0] == pytest.approx(found[2] - found[1], rel=0.05)


def test_ratios_too_even_to_integrate_are_refused() -> None:
    with pytest.raises(ValueError, match="too even to integrate: lower the concentration"):
        DirichletRatio(concentration=1e308, clients=2).law(None)


@settings(max_examples=25, deadline=None)
@given(
    a=st.floats(-1.5, 3).map(lambda x: 10.0**x),
    clients=st.integers(2, 7),
    mu=st.floats(-10, 4).map(lambda x: 10.0**x),
    order=st.floats(-3, 4).map(lambda x: 1 + 10.0**x),
    site=st.sampled_from(["mixer", "client"]),
)
@example(a=300.0, clients=4, mu=50.0, order=8.0, site="mixer")  # weights below e^−745 hold all of the integral
def test_renyi_of_dirichlet_ratios_by_the_trapezoidal_rule(
    a: float, clients: int, mu: float, order: float, site: Any
) -> None:
    """In logit λ the trapezoidal rule converges geometrically; the peak may lie far beyond the law's own."""
    b, height = (clients - 1) * a, (order - 1) * order * mu**2 / 2
    x = np.linspace(-60 / a - 5, max(50 / b, log(2 * height / b + 1)) + 40, 200_001)
    log_weight = a * log_expit(x) + b * log_expit(-x) - betaln(a, b) + log(x[1] - x[0])
    if x[1] - x[0] > 0.15 / sqrt(2 * (a + b)):
        return  # too coarse to be a reference
    expected = log_mean_exp(height * kept(expit(x), clients, site), log_weight) / (order - 1)
    mixing = Mixup(ratio=DirichletRatio(concentration=a, clients=clients))
    found = answer.rdp(release(mu, mixing=mixing, noise=Noise(smashed=1.0, site=site)), [order]).values[0]
    assert found == pytest.approx(expected, rel=1e-8)


@settings(max_examples=25, deadline=None)
@given(
    a=st.floats(-1.5, 3).map(lambda x: 10.0**x),
    clients=st.integers(2, 7),
    patches=st.integers(1, 300),
    mu=st.floats(-10, 4).map(lambda x: 10.0**x),
    order=st.floats(-3, 4).map(lambda x: 1 + 10.0**x),
    site=st.sampled_from(["mixer", "client"]),
    labels=st.booleans(),
)
def test_renyi_of_dirichlet_counts_by_enumeration(
    a: float, clients: int, patches: int, mu: float, order: float, site: Any, labels: bool
) -> None:
    b, j = (clients - 1) * a, np.arange(patches + 1.0)
    odds = np.log((patches - j[:-1]) * (j[:-1] + a)) - np.log((j[:-1] + 1) * (patches - j[:-1] - 1 + b))
    log_weight = np.append(0.0, np.cumsum(odds))
    log_weight -= logsumexp(log_weight)
    squared = mu**2 * (j / patches + labels * kept(j / patches, clients, site))
    expected = log_mean_exp((order - 1) * order / 2 * squared, log_weight) / (order - 1)
    mechanism = release(
        mu,
        smashed=PatchBall(radius=mu / 2 / sqrt(patches), patches=patches),
        labels=OneHot() if labels else None,
        noise=Noise(smashed=1.0, labels=sqrt(2) / mu if labels else None, site=site),
        mixing=CutMix(ratio=DirichletCounts(concentration=a, clients=clients), patches=patches),
    )
    assert answer.rdp(mechanism, [order]).values[0] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("order", [1.5, 20.0, 3000.0])
def test_more_patches_than_are_rounded_exactly_are_rounded_up(order: float) -> None:
    """A million patches cost a little more than none, and never less; nothing is then said to be attained."""
    ratio = DirichletRatio(concentration=2, clients=3)
    smashed = PatchBall(radius=0.5e-3, patches=10**6)
    rounded = release(1.0, smashed=smashed, mixing=CutMix(ratio=ratio, patches=10**6))
    node, log_weight = np.linspace(0, 1, 200_001), np.empty(0)
    middle = (node[1:] + node[:-1]) / 2
    log_weight = log(node[1]) + np.log(middle) + 3 * np.log1p(-middle) - betaln(2, 4)
    smooth = log_mean_exp((order - 1) * order / 2 * middle, log_weight) / (order - 1)
    assert smooth < answer.rdp(rounded, [order]).values[0] < smooth * 1.001
    assert answer.epsilon(rounded, 1e-5).lower is None


def test_a_ratio_just_above_a_fraction_fills_one_more_patch() -> None:
    above = 0.5 + 2e-10
    for ratios, patches, filled in (
        ((above, 1 - above), 64, 33),
        ((0.5, 0.5), 64, 32),
        ((0.1 + 0.2, 0.7), 10, 7),
        ((1 / 3, 1 / 3, 1 / 3), 3, 1),
    ):
        mixing = CutMix(ratio=FixedRatio(ratios=ratios), patches=patches)
        smashed = PatchBall(radius=1.0, patches=patches)
        shift = release(1.0, smashed=smashed, mixing=mixing).shift().constant
        assert shift == pytest.approx(2 * sqrt(filled))
        realized = CutMix(ratio=RealizedRatios(ratios=(ratios,)), patches=patches)
        assert release(1.0, smashed=smashed, mixing=realized).shift().constant == pytest.approx(shift)
    for clients in range(1, 200):
        assert FixedRatio.equal(clients).law(clients).share == 1 / clients


# many rounds of little


def test_tiny_shifts_add_up() -> None:
    """T·μ² = .9: by the central limit theorem every sum of losses is that of one Gaussian release."""
    shift = sqrt(MANY) * 1e-8
    half = 0.3  # E λ² of Dirichlet(2) ratios of two clients
    counts = half + (0.5 - half) / 64  # of their counts: E (N_i/N)
    cases = [
        (release(1e-8, rounds=MANY), shift),
        (release(1e-8, rounds=MANY, noise=Noise(law="laplace", smashed=1.0)), shift),
        (release(1e-8, rounds=MANY, mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=2))), shift * half**0.5),
        (release(1e-8, rounds=MANY, participation=WithoutReplacement(chosen=1, clients=10)), shift / 10),
    ]
    assert counts > half
    for mechanism, total in cases:
        for tight in (False, True):
            found = answer.epsilon(mechanism, 1e-5, tight=tight)
            truth = gaussian.epsilon(1e-5, total)
            assert found.epsilon >= truth * (1 - 1e-9)
            assert found.lower is None or found.lower <= truth * (1 + 1e-9)
        proven = answer.delta(mechanism, 1.0).delta
        assert proven is not None
        assert proven >= gaussian.delta(1.0, total) * (1 - 1e-9)


def test_laplace_curves_of_tiny_shifts_keep_their_digits() -> None:
    for order in (1.001, 2.0, 64.0):
        for shift in (1e-12, 1e-8, 1e-4):
            assert float(laplace.rdp(order, shift)) == pytest.approx(order * shift**2 / 2, rel=1e-2)


# tiny δ


@pytest.mark.slow(but=20)
@pytest.mark.parametrize("exponent", [30, 100, 200, 250, 255, 260, 270, 290, 300, 305])
@pytest.mark.parametrize(("mu", "rounds"), [(1.0, 1), (0.1, 100), (0.001, 10**6), (5.0, 1), (0.5, 50)])
def test_tiny_deltas_are_bracketed(exponent: int, mu: float, rounds: int) -> None:
    truth = gaussian.epsilon(10.0**-exponent, mu * sqrt(rounds))
    low, high = pld.composed_bounds([(gaussian.profile(mu), rounds)], 10.0**-exponent)
    assert low <= truth <= high
    if exponent <= 255:
        assert high <= truth * 1.0001


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [300, 100, 260, 280])
def test_certificates_at_tiny_deltas(exponent: int) -> None:
    delta = 10.0**-exponent
    sampled = release(1.0, rounds=100, participation=WithoutReplacement(chosen=1, clients=10))
    mixed = release(1.0, rounds=3, mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=2)))
    for mechanism in (sampled, mixed):
        found = answer.epsilon(mechanism, delta)
        assert found.epsilon is not None
        assert found.lower is None or found.lower <= found.epsilon
        assert found.epsilon <= answer.epsilon(mechanism, delta, tight=False).epsilon


# small ε


@pytest.mark.parametrize(
    ("rate", "mu", "rounds"), [(0.00549, 0.103, 865), (0.00354, 0.297, 1782), (0.002, 0.05, 10**6)]
)
def test_fast_answers_try_the_high_orders_that_small_epsilons_ask_for(rate: float, mu: float, rounds: int) -> None:
    """They were up to 2.5 times the composed ε."""
    one = Known(value=mu, relation="add_or_remove_one", norm="l2")
    sampled = release(mu, smashed=one, relation="add_or_remove_one", participation=Poisson(rate=rate), rounds=rounds)
    fast, tight = answer.epsilon(sampled, 1e-6, tight=False), answer.epsilon(sampled, 1e-6)
    assert tight.epsilon is not None
    assert fast.epsilon is not None
    assert tight.epsilon * (1 - 1e-9) <= fast.epsilon < 1.2 * tight.epsilon
    assert not fast.at_grid_edge
    back = answer.delta(sampled, fast.epsilon, tight=False).delta
    assert back is not None
    assert 0.9e-6 < back <= 1e-6 * (1 + 1e-6)  # its grid may be a finer one


def test_losses_in_the_millions_are_composed_or_left_to_the_curves() -> None:
    for shift in (80.0, 2e3, 1e4):
        mixing = CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=5)
        smashed = Clamp(low=0, high=shift, dimensions=5)
        found = answer.epsilon(release(1.0, smashed=smashed, mixing=mixing, rounds=1000), 1e-100)
        assert found.epsilon is not None
        assert found.epsilon >= gaussian.epsilon(1e-100, shift * sqrt(1000))  # at the mean of the ratios it is more


# memory

ROWS = """
from pathlib import Path
from privkit.accountants import answer, calibration, table
cells = {{"mechanism": "dp_cutmixsl", "sensitivity": 3, "ratio": "{law}", "concentration": 2, "group": 2,
         "patches": 1_000_000, "labels": "one_hot"}}
rows = [table.mechanism_of(cells | {{"sigma": sigma, "rounds": rounds}}) for sigma, rounds in ((2.0, 1), (3.0, 4))]
for tight in (False, True):
    assert all(one.epsilon > 0 for one in answer.epsilons(rows, [1e-5] * 2, tight=tight))
assert all(answer.delta(row, 1.0).delta > 0 for row in rows)
{more}
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""
SEARCH = "calibration.calibrate(rows[0], 'sigma', epsilon=2.0, delta=1e-5, tight=False)"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux' /proc")
@pytest.mark.parametrize(
    ("law", "more"),
    [
        ("dirichlet", ""),
        pytest.param("dirichlet", SEARCH, marks=pytest.mark.slow),
        pytest.param("dirichlet_counts", "", marks=pytest.mark.slow),
    ],
)
def test_a_million_patches_take_little_memory(law: str, more: str) -> None:
    """Megabytes of a process that answers every question about two such rows; they were 24,000."""
    program = ROWS.format(law=law, more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500


# huge ε


@pytest.mark.parametrize(
    ("mu", "delta"), [(1.77828e8, 1e-150), (2.37137e8, 5e-35), (5.62341e8, 5e-35), (7.49894e8, 1e-150), (1e6, 0.5)]
)
def test_epsilons_beyond_a_float_s_whole_numbers_belong_to_their_delta(mu: float, delta: float) -> None:
    assert gaussian.delta(gaussian.epsilon(delta, mu), mu) == pytest.approx(delta, rel=0.1)


def test_losses_too_large_for_an_exponential_are_answered() -> None:
    huge = release(20_000.0, rounds=6, participation=WithoutReplacement(chosen=1, clients=2))
    found = answer.epsilon(huge, 0.9)
    assert 0 < found.epsilon <= answer.epsilon(huge, 0.9, tight=False).epsilon


def test_losses_beyond_every_grid_are_answered() -> None:
    updates = PrivateUpdates(noise_multiplier=1, steps=10, chosen=3, records=199)
    one = Known(value=1, relation="replace_one", norm="l2")
    huge = SplitMechanism(smashed=one, noise=Noise(smashed=2e-6), lower_model=updates)
    found = answer.epsilon(huge, 1e-5)
    assert gaussian.epsilon(1e-5, 500_000.0) <= found.epsilon < inf


@pytest.mark.parametrize("exponent", [30, 300])
def test_told_coins_with_tiny_shifts_cost_what_the_exact_profile_says(exponent: int) -> None:
    """Both terms of the profile agree in all but a few digits, and an absolute tolerance was as large as ε."""
    cells = {"mechanism": "dp_sl", "sigma": 1e6, "clip_norm": 5e-7, "unit": "client", "lower_model": "trained"}
    drawn = mechanism_of({**cells, "sampling": "without_replacement", "group": 840, "clients": 1000})
    found, exact = answer.epsilon(drawn, 10.0**-exponent), gaussian.epsilon(10.0**-exponent / 0.84, 1e-12)
    assert found.epsilon == pytest.approx(exact, rel=1e-4)
    assert answer.delta(drawn, found.epsilon).delta == pytest.approx(10.0**-exponent, rel=1e-2)


def test_a_large_order_of_laplace_noise_has_the_largest_loss() -> None:
    assert answer.rdp(mechanism_of({"mechanism": "laplace", "sigma": 1, "sensitivity": 1}), [1.7e308]).values == (1.0,)


def test_answers_that_are_nearly_always_true_are_refused() -> None:
    with pytest.raises(ValueError, match="noise_parameter must be a finite number >= 1e-300"):
        mechanism_of({"mechanism": "randomized_response", "noise_parameter": 1e-310, "classes": 4})


def test_more_rounds_than_can_be_composed_have_a_curve() -> None:
    """2^60 numbers of Laplace noise: the tight answer is the curve's, and μ of a tiny ε keeps its digits."""
    cells = {"mechanism": "laplace", "sigma": 1e20, "clip_high": 1, "dimensions": 2**30, "rounds": 2**30}
    found = answer.epsilon(mechanism_of(cells), 1e-5)
    assert found.epsilon == answer.epsilon(mechanism_of(cells), 1e-5, tight=False).epsilon > 0
    assert found.quantities["gdp_mu"] == pytest.approx(sqrt(np.pi / 2) * 2**30 * 1e-20, rel=1e-9)
