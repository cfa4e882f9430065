"""Accurate split learning's theorems against exact profiles and the mechanisms they are about."""

from dataclasses import replace
from decimal import Decimal, localcontext
from math import comb, exp, inf, isfinite, log, sqrt

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from privkit.papers.accurate_sl import claims as accurate_sl
from privkit.papers.accurate_sl import composition
from privkit.papers.accurate_sl import table_11 as published_table_11
from tests.accountants.one_release import profile


def test_table_11_readings() -> None:
    rows = published_table_11.TABLE_11
    assert len(rows) == 24
    gaussian_mnist = [row for row in rows if row.noise == "gaussian" and "MNIST" in row.name]
    known = [row.certificate.quantities for row in gaussian_mnist]
    assert [round(one["formula"] / 2, 1) for one in known] == [258.4, 155.0, 110.7]
    assert [round(one["exact_epsilon"], 1) for one in known] == [6142.8, 2320.0, 1238.9]
    ratios = [one["exact_epsilon"] / row.epsilon for one, row in zip(known, gaussian_mnist, strict=True)]
    assert [round(ratio, 1) for ratio in ratios] == [11.8, 7.7, 5.6]
    for row in rows:
        n, scale, certificate = row.dimensions, row.scale, row.certificate
        exact = certificate.quantities["exact_epsilon"]
        if row.noise == "laplace":
            assert exact == pytest.approx(2 * n / scale)
            assert row.half == pytest.approx(sqrt(n) / scale, abs=0.06)
        else:
            assert profile(exact, 2 * sqrt(n) / scale) == pytest.approx(1e-5, rel=1e-6, abs=0)
        assert certificate.epsilon == 2 * row.half
        assert certificate.sound == (certificate.epsilon >= exact)
        assert certificate.lower == exact
    assert [(r.dimensions, r.scale) for r in rows if r.certificate.sound] == [(16, 0.7)]
    names = [r.certificate for r in rows if "Names" in r.name and r.noise == "gaussian"]
    assert all("√800" in certificate.objection for certificate in names)
    assert [round(one.quantities["exact_epsilon"] / one.epsilon) for one in names] == [334, 219, 159]


# Accurate split learning


@given(sensitivity=st.floats(0.01, 30.0), sigma=st.floats(0.1, 10.0), delta=st.floats(1e-10, 0.5))
def test_theorem_3_5_is_sound_exactly_up_to_the_exact_profile(sensitivity: float, sigma: float, delta: float) -> None:
    certificate = accurate_sl.theorem_3_5(sensitivity=sensitivity, sigma=sigma, delta=delta)
    claim, mu = certificate.epsilon, sensitivity / sigma
    assert claim == pytest.approx(sqrt(2 * log(1.25 / delta)) * mu, rel=1e-12)
    limit = accurate_sl.theorem_3_5_limit(delta)[0]
    assume(abs(claim / limit - 1) > 1e-6)
    assert certificate.sound == (profile(claim, mu) <= delta) == (claim < limit)
    assert certificate.sound or claim >= 1  # the theorem itself


@given(delta=st.floats(1e-300, 0.99))
def test_the_limit_of_theorem_3_5_is_where_the_profile_meets_delta(delta: float) -> None:
    epsilon, mu = accurate_sl.theorem_3_5_limit(delta)
    assert epsilon >= 1
    assert epsilon == pytest.approx(mu * sqrt(2 * log(1.25 / delta)), rel=1e-12)
    if delta > 1e-12:
        assert profile(epsilon, mu) == pytest.approx(delta, rel=1e-6, abs=0)


def test_the_limit_at_the_usual_delta() -> None:
    assert accurate_sl.theorem_3_5_limit(1e-5) == pytest.approx((8.4198, 1.7378967461343204), rel=1e-5)
    assert profile(20.0, 20.0 / sqrt(2 * log(1.25e5))) == pytest.approx(0.0015266946955248529, rel=1e-9, abs=0)


def composed_response(epsilon: float, rounds: int, at: float) -> float:
    """Exact δ of T randomized responses at ε′ = `at`, summed over the counts of the likelier answer."""
    p = exp(epsilon) / (1 + exp(epsilon))
    return sum(
        comb(rounds, i) * max(0.0, p**i * (1 - p) ** (rounds - i) - exp(at) * p ** (rounds - i) * (1 - p) ** i)
        for i in range(rounds + 1)
    )


@given(epsilon=st.floats(0.01, 1.5), rounds=st.integers(1, 60), slack=st.floats(1e-8, 0.5))
def test_composition_covers_the_worst_pure_mechanism(epsilon: float, rounds: int, slack: float) -> None:
    published = composition.theorem_a7_epsilon(epsilon, rounds, slack)
    tighter = composition.theorem_a7_epsilon(epsilon, rounds, slack, drift="kairouz_oh_viswanath")
    assert tighter < published
    assert composed_response(epsilon, rounds, tighter) <= slack * (1 + 1e-9)


@given(epsilon=st.floats(0.001, 40_000.0), rounds=st.integers(1, 10**6), slack=st.floats(1e-12, 0.99))
def test_composition_does_not_overflow(epsilon: float, rounds: int, slack: float) -> None:
    with localcontext() as context:
        context.prec = 40
        context.Emax, context.Emin = 10**6, -(10**6)
        e, t = Decimal(epsilon), Decimal(rounds)
        true = e * (2 * t * -Decimal(slack).ln()).sqrt() + t * e * (e.exp() - 1)
        logarithm = float(true.log10())
    assert composition.log10_theorem_a7_epsilon(epsilon, rounds, slack) == pytest.approx(
        logarithm, rel=1e-12, abs=1e-12
    )
    found = composition.theorem_a7_epsilon(epsilon, rounds, slack)
    assert found == (pytest.approx(float(true), rel=1e-12) if epsilon < 700 else inf)
    assert isfinite(composition.theorem_a7_epsilon(epsilon, rounds, slack, drift="kairouz_oh_viswanath"))


def test_composed_certificates() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=0.02, sigma=1.0, delta=1e-9)
    frozen = composition.theorem_a7(once, rounds=1000, slack=1e-5, lower_model="frozen")
    assert frozen.sound
    assert frozen.delta == pytest.approx(1.1e-5)
    for model in ("trained", "averaged"):
        hole = composition.theorem_a7(once, rounds=1000, slack=1e-5, lower_model=model)
        assert not hole.sound
        assert "later release" in hole.objection
    client = composition.theorem_a7(replace(once, unit="client"), rounds=9, slack=1e-5, lower_model="trained")
    assert client.sound
    assert composition.theorem_a7(once, rounds=9, slack=1e-5, lower_model="dp_trained").sound


def test_composition_that_proves_nothing_says_so() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=0.02, sigma=1.0, delta=1e-5)
    spent = composition.theorem_a7(once, rounds=10**6, slack=1e-5, lower_model="frozen")
    assert (spent.epsilon, spent.delta) == (inf, None)
    assert "nothing is proven" in spent.statement
    loud = replace(once, epsilon=6142.8, lower=None)
    beyond = composition.theorem_a7(loud, rounds=10, slack=1e-5, lower_model="frozen")
    assert (beyond.epsilon, beyond.delta) == (inf, None)
    assert "61428" in beyond.statement
    assert beyond.quantities["log10_published_epsilon"] == pytest.approx((6142.8 + log(61428)) / log(10))
    with pytest.raises(ValueError, match="nothing to compose"):
        composition.theorem_a7(spent, rounds=2, slack=1e-5, lower_model="frozen")


def test_unsound_rounds_stay_unsound() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=10.0, sigma=1.0, delta=1e-5)
    composed = composition.theorem_a7(once, rounds=2, slack=1e-5, lower_model="frozen")
    assert not once.sound
    assert composed.objection == once.objection


@given(epsilon=st.floats(1e-6, 5000.0), delta=st.floats(1e-12, 0.999))
def test_theorem_3_7_puts_delta_above_epsilon(epsilon: float, delta: float) -> None:
    mu = accurate_sl.theorem_3_7_mu(epsilon, delta)
    assert mu > 0
    assert norm.sf(epsilon / mu - mu / 2) == pytest.approx(delta, rel=1e-6, abs=0)  # loss ~ N(μ²/2, μ²)
    if epsilon < 500:
        assert profile(epsilon, mu) <= delta * (1 + 1e-9)  # its premise is the stronger one


def test_theorem_3_7_certificates() -> None:
    assert accurate_sl.theorem_3_7(epsilon=1, delta=1e-5, noise="independent").sound
    assert "density" in accurate_sl.theorem_3_7(epsilon=1, delta=1e-5, noise="backpropagated").objection


@given(n=st.integers(1, 5000), scale=st.floats(0.01, 10.0))
def test_laplace_diameters(n: int, scale: float) -> None:
    right, read = (accurate_sl.laplace_epsilon(n, scale, norm=x) for x in ("l1", "l2"))
    assert right == pytest.approx(read * sqrt(n), rel=1e-12)
    assert read <= right * (1 + 1e-12)
