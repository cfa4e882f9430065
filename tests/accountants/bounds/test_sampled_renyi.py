"""Rényi divergences of sampled Gaussians at any order, against thirty digits and the library's series."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.bounds import sampled_renyi
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson, WithoutReplacement
from privkit.accountants.spec.sensitivity import Known
from tests.accountants.golden import others as golden
from tests.accountants.golden import theorem_27


def quadrature(order: float, rate: float, mu: float, *, symmetric: bool) -> float:
    """D_α from its definition, or from the tight profile of k of n."""
    a, q, m = mp.mpf(order), mp.mpf(rate), mp.mpf(mu)

    def excess(x: Any) -> Any:
        ratio = 1 - q + q * mp.exp(m * x - m * m / 2)
        value = ratio**a - 1 - a * (ratio - 1)
        if symmetric:
            value += ratio ** (1 - a) - 1 + (a - 1) * (ratio - 1)
        return mp.npdf(x) * value

    low = m / 2 if symmetric else -15 - m
    with mp.workdps(30):
        moment = mp.quad(excess, mp.linspace(low, max(a, 2) * m + 15, 12))
        return float(min(mp.log1p(moment) / (a - 1), a * m * m / 2))


@pytest.mark.slow(but=5)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("order", "rate", "mu"),
    [(1.0003, 0.2, 0.5), (1.5, 0.01, 1.0), (2.7, 1e-6, 0.05), (6.4, 0.2, 1.5), (17.3, 0.9, 0.3), (3.3, 1e-4, 4.0)],
)
def test_equals_the_definition_from_above(order: float, rate: float, mu: float, symmetric: bool) -> None:
    true = quadrature(order, rate, mu, symmetric=symmetric)
    curve = sampled_renyi.without_replacement_gaussian_curve if symmetric else sampled_renyi.poisson_gaussian_curve
    found = float(curve(order, rate, mu))
    assert true <= found <= true * (1 + 1e-10)


@settings(max_examples=50, deadline=None)
@given(order=st.integers(2, 60), rate=st.floats(1e-6, 0.99), mu=st.floats(0.01, 3))
def test_whole_orders_equal_the_finite_sum(order: int, rate: float, mu: float) -> None:
    found = float(sampled_renyi.poisson_gaussian_curve(order, rate, mu))
    assert found == pytest.approx(float(sampled_renyi.poisson_gaussian_rdp(order, rate, mu)), rel=1e-9)


@settings(max_examples=50, deadline=None)
@example(order=2.0, rate=0.03125, mu=5e-324)
@given(order=st.floats(1.05, 60), rate=st.floats(1e-6, 1), mu=st.floats(0, 5))
def test_k_of_n_lies_between_the_poisson_curve_and_the_theorem(order: float, rate: float, mu: float) -> None:
    """Its profile is the Poisson pair's larger one, in both directions."""
    found = float(sampled_renyi.without_replacement_gaussian_curve(order, rate, mu))
    poisson = float(sampled_renyi.poisson_gaussian_curve(order, rate, mu))
    theorem = float(theorem_27.without_replacement_gaussian_rdp(order, rate, mu))
    assert poisson * (1 - 1e-11) <= found <= theorem * (1 + 1e-11)


@given(rate=st.floats(1e-6, 1.0), mu=st.floats(1e-5, 5.0))
@settings(max_examples=40, deadline=None)
def test_whole_orders_of_many_rows_lie_between_the_integral_and_theorem_27(rate: float, mu: float) -> None:
    orders = np.array([2.0, 3, 5, 9, 20, 40, 64])
    found = sampled_renyi.fixed_size_gaussian_rdp(orders, rate, mu)
    assert np.all(found <= theorem_27.without_replacement_gaussian_rdp(orders, rate, mu) * (1 + 1e-9))
    assert np.all(found >= sampled_renyi.without_replacement_gaussian_curve(orders, rate, mu) * (1 - 1e-9))


def test_ends_and_large_shifts() -> None:
    for curve in (sampled_renyi.poisson_gaussian_curve, sampled_renyi.without_replacement_gaussian_curve):
        assert curve([1.5, 8], 1.0, 2.0).tolist() == [3.0, 16.0]
        assert curve([1.5, 8], 0.0, 2.0).tolist() == [0.0, 0.0]
        assert curve(1024.5, 0.5, 1e6) == pytest.approx(1024.5e12 / 2, rel=1e-3)
        with pytest.raises(ValueError, match="order"):
            curve(1.0, 0.5, 1.0)
        with pytest.raises(ValueError, match="mu"):
            curve(2.0, 0.5, float("nan"))


def test_a_mechanism_is_asked_at_fractional_orders() -> None:
    one = Known(value=1, relation="add_or_remove_one", norm="l2")
    poisson = SplitMechanism(
        smashed=one, noise=Noise(smashed=1.0), lower_model="frozen", relation="add_or_remove_one",
        participation=Poisson(rate=0.01), rounds=10,
    )  # fmt: skip
    assert answer.rdp(poisson, [2.7]).values[0] == pytest.approx(0.0023623813586973994, rel=1e-8)
    other = SplitMechanism(
        smashed=Known(value=1, relation="replace_one", norm="l2"), noise=Noise(smashed=1.0), lower_model="frozen",
        participation=WithoutReplacement(chosen=2, clients=10), rounds=3,
    )  # fmt: skip
    assert answer.rdp(other, [2.7]).values[0] == pytest.approx(3 * quadrature(2.7, 0.2, 1.0, symmetric=True), rel=1e-10)


def test_the_series_without_signs_is_the_library_and_above_the_divergence() -> None:
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    orders = [1.3, 2.7, 8.9]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.04, dp_event.GaussianDpEvent(1.5)))
    series = [golden.unsigned(order, 0.04, 1.5) for order in orders]
    assert series == pytest.approx(list(accountant.rdp), rel=1e-7)  # which stops at 1e-13 of its moment
    assert np.all(sampled_renyi.poisson_gaussian_curve(orders, 0.04, 1 / 1.5) < series)
