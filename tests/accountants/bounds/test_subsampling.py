"""Subsampling against quadrature and 60-digit arithmetic that share no code with it, and its laws."""

from collections.abc import Callable
from itertools import pairwise
from math import exp, inf, log, log1p, pi, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq

from privkit.accountants.bounds import gaussian, sampled_renyi, subsampling
from tests.accountants.golden import hidden_mixtures, theorem_27
from tests.accountants.golden import subsampling as golden

RATE = st.floats(1e-4, 1.0)
MU = st.floats(0.01, 6.0)
EPSILON = st.floats(0.0, 12.0)


Density = Callable[[Any], Any]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def normal_density(x: Any, mean: float = 0.0) -> Any:
    """That of scipy, in a twentieth of the time for one number."""
    return np.exp(-((x - mean) ** 2) / 2) / sqrt(2 * pi)


def sampled_density(rate: float, mu: float) -> Density:
    """Density of a release that holds the record with probability `rate`."""
    return lambda x: (1 - rate) * normal_density(x) + rate * normal_density(x, mu)


def hockey_stick(p: Density, q: Density, epsilon: float, mu: float) -> float:
    """∫ max(0, p − e^ε q): Gauss–Legendre on short pieces, which end where the integrand changes its sign."""
    gap = lambda x: p(x) - exp(epsilon) * q(x)  # noqa: E731
    edges = np.linspace(-12, 12 + mu, 201)
    signs = np.sign(gap(edges))
    roots = [brentq(gap, edges[i], edges[i + 1], xtol=1e-14) for i in np.flatnonzero(signs[1:] * signs[:-1] < 0)]
    edges = np.sort(np.append(edges, roots))
    x = (edges[:-1] + edges[1:])[:, None] / 2 + np.diff(edges)[:, None] / 2 * NODES
    return float(np.sum(np.maximum(gap(x), 0) * WEIGHTS * np.diff(edges)[:, None] / 2))


def renyi(p: Density, q: Density, order: float, mu: float) -> float:
    """Rényi divergence by quadrature; in logarithms, since (p/q)^α alone can overflow."""
    value, _ = quad(
        lambda x: exp(order * log(max(p(x), 1e-320)) + (1 - order) * log(max(q(x), 1e-320))),
        -14 - order * mu,
        14 + order * mu,
        points=[0, mu, order * mu],
        limit=500,
        epsabs=0,
        epsrel=1e-11,
    )
    return log(value) / (order - 1)


@given(epsilon=st.floats(-20, 700), rate=st.floats(1e-6, 1.0))
def test_amplification_is_its_definition(epsilon: float, rate: float) -> None:
    import mpmath

    with mpmath.workdps(60):
        expected = float(mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon))))
    assert subsampling.amplify(epsilon, rate) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(epsilon=st.floats(0, 1e6), rate=RATE)
def test_deamplification_inverts_amplification(epsilon: float, rate: float) -> None:
    assert subsampling.amplify(subsampling.deamplify(epsilon, rate), rate) == pytest.approx(epsilon, rel=1e-9)
    assert subsampling.amplify(epsilon, rate) <= epsilon * (1 + 1e-15)


def test_amplification_at_the_ends_and_far_out() -> None:
    assert subsampling.amplify(5.0, 0.0) == 0.0
    assert subsampling.amplify(1e5, 0.0) == 0.0
    assert subsampling.amplify(1e5, 1.0) == 1e5
    assert subsampling.amplify(1e5, 0.2) == pytest.approx(1e5 + log(0.2), rel=1e-15)
    grid = subsampling.amplify(np.array([[1.0], [40.0]]), np.array([0.1, 0.5, 1.0]))
    assert grid.shape == (2, 3)
    assert np.all(np.diff(grid, axis=0) > 0)
    assert np.all(np.diff(grid, axis=1) > 0)


@settings(max_examples=60, deadline=None)
@given(epsilon=st.floats(0.0, 4.0), rate=st.floats(0.01, 1.0), mu=st.floats(0.1, 4.0))
def test_sampled_profiles_are_hockey_stick_divergences(epsilon: float, rate: float, mu: float) -> None:
    base: Any = lambda e: gaussian.delta(e, mu)  # noqa: E731
    mixed, plain = sampled_density(rate, mu), normal_density
    forward, backward = hockey_stick(mixed, plain, epsilon, mu), hockey_stick(plain, mixed, epsilon, mu)
    # k of n: the others' data are zero, and the replaced record was, too
    assert float(subsampling.without_replacement_delta(epsilon, rate, base)) == pytest.approx(
        forward, rel=1e-6, abs=1e-9
    )
    assert float(subsampling.without_replacement_delta(epsilon, rate, base)) == pytest.approx(
        forward, rel=1e-6, abs=1e-9
    )
    assert float(subsampling.poisson_added_delta(epsilon, rate, base)) == pytest.approx(backward, rel=1e-6, abs=1e-9)


@given(rate=RATE, mu=MU)
def test_without_replacement_profile_is_a_symmetric_profile(rate: float, mu: float) -> None:
    e = np.linspace(-8, 8, 401)
    delta = subsampling.without_replacement_delta(e, rate, lambda value: gaussian.delta(value, mu))
    assert np.all((delta >= 0) & (delta <= 1))
    assert np.all(np.diff(delta) <= 1e-13)
    slopes = np.diff(delta) / np.diff(np.exp(e))
    assert np.all(np.diff(slopes) >= -1e-9 * np.abs(slopes[:-1]) - 1e-12)  # convex in e^ε
    assert delta[::-1] == pytest.approx(1 - np.exp(e[::-1] * -1) ** -1 * (1 - delta), abs=1e-12)  # δ(−ε)


@given(rate=RATE, mu=MU, delta=st.floats(1e-12, 0.5))
def test_without_replacement_epsilon_inverts_the_profile(rate: float, mu: float, delta: float) -> None:
    found = golden.without_replacement_epsilon(delta, rate, lambda d: gaussian.epsilon(d, mu))
    back = float(subsampling.without_replacement_delta(found, rate, lambda e: gaussian.delta(e, mu)))
    if found > 0:
        assert back == pytest.approx(delta, rel=1e-6)
    else:
        assert back <= delta * (1 + 1e-9)
    if delta >= rate:
        assert found == 0


def theorem_27_in_many_digits(order: int, rate: float, mu: float, digits: int = 400) -> float:
    """Theorem 27 with Theorem 9 term by term, from the alternating sums, in arithmetic of many digits."""
    import mpmath

    with mpmath.workdps(digits):
        q, square = mpmath.mpf(rate), mpmath.mpf(mu) ** 2
        power = [mpmath.exp(i * (i - 1) * square / 2) for i in range(order + 2)]
        even, differences = [power[0]], power  # the n-th alternating sum is the n-th difference of the powers
        for _ in range(order + 1):
            differences = [after - before for before, after in pairwise(differences)]
            even.append(differences[0])
        total = mpmath.mpf(1)
        for j in range(2, order + 1):
            mean = mpmath.sqrt(even[j // 2 * 2] * even[(j + 1) // 2 * 2])
            total += q**j * mpmath.binomial(order, j) * min(4 * mean, 2 * power[j])
        return min(float(mpmath.log(total) / (order - 1)), order * mu**2 / 2)


@pytest.mark.slow(but=18)
@pytest.mark.parametrize("order", [2, 3, 7, 33, 64, 65, 80, 128, 200])
@pytest.mark.parametrize(("rate", "mu"), [(0.2, 1.0), (0.2, 0.05), (0.5, 0.2), (0.01, 0.01), (0.9, 0.4), (0.003, 2.0)])
def test_without_replacement_curve_in_exact_arithmetic(order: int, rate: float, mu: float) -> None:
    found = float(theorem_27.without_replacement_gaussian_rdp(order, rate, mu))
    assert found == pytest.approx(theorem_27_in_many_digits(order, rate, mu), rel=1e-10)


def test_without_replacement_curve_at_large_orders() -> None:
    found = float(theorem_27.without_replacement_gaussian_rdp(300, 0.1, 0.02))
    assert found == pytest.approx(theorem_27_in_many_digits(300, 0.1, 0.02, digits=900), rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(order=st.integers(2, 12), rate=st.floats(0.01, 0.9), mu=st.floats(0.2, 2.0))
def test_without_replacement_curves_bound_the_mechanism_from_above(order: int, rate: float, mu: float) -> None:
    true = max(
        renyi(sampled_density(rate, mu), normal_density, order, mu),
        renyi(normal_density, sampled_density(rate, mu), order, mu),
    )
    tight = float(theorem_27.without_replacement_gaussian_rdp(order, rate, mu))
    general = float(sampled_renyi.without_replacement_rdp(order, rate, lambda a: a * mu**2 / 2))
    assert true <= tight * (1 + 1e-9) + 1e-12
    assert tight <= general * (1 + 1e-9)
    assert general <= order * mu**2 / 2 * (1 + 1e-12)


@settings(max_examples=40)
@given(orders=st.lists(st.floats(1.001, 90), min_size=1, max_size=12), rate=st.floats(0, 1), mu=st.floats(0, 30))
def test_curves_never_exceed_no_sampling_and_agree_at_the_ends(orders: list[float], rate: float, mu: float) -> None:
    unsampled = np.array(orders) * mu**2 / 2
    for curve in (theorem_27.without_replacement_gaussian_rdp, sampled_renyi.poisson_gaussian_rdp):
        found = curve(orders, rate, mu)
        assert np.all((found >= 0) & (found <= unsampled * (1 + 1e-12)))
        assert curve(orders, 1.0, mu) == pytest.approx(unsampled)
        assert not np.any(curve(orders, 0.0, mu))
        assert not np.any(curve(orders, rate, 0.0))


@settings(max_examples=40)
@given(rate=st.floats(1e-4, 0.5), mu=st.floats(0.05, 3.0), more=st.floats(1.01, 2.0))
def test_curves_grow_with_rate_shift_and_order(rate: float, mu: float, more: float) -> None:
    orders = np.arange(2.0, 40.0)
    for curve in (theorem_27.without_replacement_gaussian_rdp, sampled_renyi.poisson_gaussian_rdp):
        base = curve(orders, rate, mu)
        assert np.all(curve(orders, rate * more, mu) >= base * (1 - 1e-12))
        assert np.all(curve(orders, rate, mu * more) >= base * (1 - 1e-12))
    assert np.all(np.diff(sampled_renyi.poisson_gaussian_rdp(orders, rate, mu)) >= -1e-12)


@settings(max_examples=40, deadline=None)
@given(order=st.floats(1.05, 20), rate=st.floats(1e-3, 0.9), mu=st.floats(0.1, 2.5))
def test_poisson_curve_is_the_renyi_divergence(order: float, rate: float, mu: float) -> None:
    true = float(hidden_mixtures.mixture_gaussian_rdp(order, [0, mu], [1 - rate, rate]))
    assert float(sampled_renyi.poisson_gaussian_rdp(order, rate, mu)) >= true * (1 - 1e-9)
    whole = float(round(order) + 1)
    at_whole = float(hidden_mixtures.mixture_gaussian_rdp(whole, [0, mu], [1 - rate, rate]))
    assert float(sampled_renyi.poisson_gaussian_rdp(whole, rate, mu)) == pytest.approx(at_whole, rel=1e-8, abs=1e-13)
    exact = float(sampled_renyi.poisson_gaussian_curve(order, rate, mu))
    assert exact == pytest.approx(true, rel=1e-9, abs=1e-13)


@settings(max_examples=25, deadline=None)
@given(order=st.floats(1.2, 9), rate=st.floats(0.05, 0.9), mu=st.floats(0.2, 2.0))
def test_mixture_curve_by_adaptive_quadrature(order: float, rate: float, mu: float) -> None:
    true = max(
        renyi(sampled_density(rate, mu), normal_density, order, mu),
        renyi(normal_density, sampled_density(rate, mu), order, mu),
    )
    found = float(hidden_mixtures.mixture_gaussian_rdp(order, [0, mu], [1 - rate, rate]))
    assert found == pytest.approx(true, rel=1e-7)


def test_small_rates_keep_their_digits() -> None:
    """ε(2) = ln(1 + q²(e^{μ²} − 1)) for Poisson; the naive sum loses it at q = 1e-9."""
    for rate in (1e-3, 1e-6, 1e-9):
        expected = log1p(rate**2 * (exp(1.0) - 1))
        assert float(sampled_renyi.poisson_gaussian_rdp(2, rate, 1.0)) == pytest.approx(expected, rel=1e-12)
        assert float(hidden_mixtures.mixture_gaussian_rdp(2, [0, 1], [1 - rate, rate])) == pytest.approx(
            expected, rel=1e-6
        )


def test_rows_and_orders_broadcast() -> None:
    rates, mus, orders = np.array([0.1, 0.5, 1.0]), np.array([0.3, 1.0, 2.0]), [2, 3.5, 64]
    for curve in (theorem_27.without_replacement_gaussian_rdp, sampled_renyi.poisson_gaussian_rdp):
        table = curve(orders, rates, mus)
        assert table.shape == (3, 3)
        for row in range(3):
            assert table[row] == pytest.approx(curve(orders, rates[row], mus[row]), rel=1e-14)
        assert curve(orders, 0.1, mus).shape == (3, 3)
        assert curve(2, 0.1, 1.0).shape == ()
    many = theorem_27.without_replacement_gaussian_rdp([2, 8], np.full(1000, 0.1), 1.0)
    assert np.ptp(many, axis=0) == pytest.approx([0, 0])


def test_orders_between_integers_are_below_the_interpolation() -> None:
    exact = sampled_renyi.poisson_gaussian_curve([1.5, 2.5, 300.5], 0.01, 1.0)
    cheap = sampled_renyi.poisson_gaussian_rdp([1.5, 2.5, 300.5], 0.01, 1.0)
    assert exact[0] < cheap[0]
    assert exact[1] < cheap[1]
    assert exact[2] < cheap[2]


BAD: list[Any] = [float("nan"), inf, -inf, -0.5, True, "one", None]


@pytest.mark.parametrize("bad", BAD)
def test_refuses_what_is_no_number(bad: Any) -> None:
    base: Any = lambda e: gaussian.delta(e, 1.0)  # noqa: E731
    curves = (theorem_27.without_replacement_gaussian_rdp, sampled_renyi.poisson_gaussian_rdp)
    for curve in curves:
        for arguments in ((bad, 0.1, 1.0), (2, bad, 1.0), (2, 0.1, bad)):
            with pytest.raises(ValueError, match="must"):
                curve(*arguments)
    with pytest.raises(ValueError, match="must"):
        sampled_renyi.poisson_gaussian_curve(2.5, 0.1, bad)
    with pytest.raises(ValueError, match="must"):
        subsampling.without_replacement_delta(1.0, bad, base)
    with pytest.raises(ValueError, match="must"):
        subsampling.poisson_added_delta(1.0, bad, base)
    with pytest.raises(ValueError, match="must"):
        golden.without_replacement_epsilon(bad, 0.1, lambda d: 1.0)
    with pytest.raises(ValueError, match="must"):
        subsampling.amplify(1.0, bad)


def test_refuses_bad_curves_profiles_and_orders() -> None:
    with pytest.raises(ValueError, match="curve"):
        sampled_renyi.without_replacement_rdp(4, 0.1, lambda a: a * float("nan"))
    with pytest.raises(ValueError, match="profile"):
        subsampling.without_replacement_delta(1.0, 0.1, lambda e: e + 2)
    with pytest.raises(ValueError, match="order"):
        sampled_renyi.poisson_gaussian_rdp([], 0.1, 1.0)
    with pytest.raises(ValueError, match="order"):
        sampled_renyi.poisson_gaussian_rdp([1.0], 0.1, 1.0)
    with pytest.raises(ValueError, match="order"):
        sampled_renyi.poisson_gaussian_rdp([1e9], 0.1, 1.0)
    with pytest.raises(ValueError, match="epsilon"):
        subsampling.deamplify(log(0.5) - 1e-9, 0.5)
    with pytest.raises(ValueError, match="rate"):
        subsampling.deamplify(1.0, 0.0)
    with pytest.raises(ValueError, match="mixture"):
        hidden_mixtures.mixture_gaussian_rdp(2, [0, 1], [0.5, 0.6])
