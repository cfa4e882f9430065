"""Numerical composition against exact compositions, brute force, quadrature and dp-accounting; and its laws."""

from math import comb, exp, inf, log, log1p, pi, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants.bounds import gaussian, laplace
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.loss_distribution import GridTooLarge, LossDistribution, from_profile
from tests.accountants.golden import hidden_mixtures

DELTAS = st.floats(-14, -1).map(lambda exponent: 10.0**exponent)


def delta_of(distribution: LossDistribution, epsilon: float) -> float:
    """δ of a discretised pair by its definition."""
    gains = np.maximum(0, -np.expm1(epsilon - distribution.losses))
    return float(distribution.infinity + np.sum(distribution.masses * gains))


@given(mu=st.floats(0.05, 4.0), rate=st.floats(0.01, 1.0), interval=st.floats(0.002, 0.2))
def test_the_grid_is_a_pair_that_is_worse_than_the_profile(mu: float, rate: float, interval: float) -> None:
    pair = gaussian.poisson_profiles(rate, mu)
    for distribution, profile in zip(from_profile(pair, interval), pair, strict=True):
        masses, losses = distribution.masses, distribution.losses
        assert np.all(masses >= 0)
        assert masses.sum() + distribution.infinity == pytest.approx(1, abs=1e-11)
        assert np.sum(masses * np.exp(-losses)) <= 1 + 1e-10  # the other distribution of the pair
        between = interval * np.array([0.0, 0.3, 1.0, 2.5, 7.7])
        at_nodes = np.arange(12.0) * interval
        for e, exact in zip(between, profile(between), strict=True):
            assert delta_of(distribution, e) >= exact - 1e-12
        for e, exact in zip(at_nodes, profile(at_nodes), strict=True):
            assert delta_of(distribution, e) == pytest.approx(exact, rel=1e-7, abs=1e-12)


def test_symmetric_profiles_have_one_distribution_that_mirrors_itself() -> None:
    (found,) = from_profile(gaussian.without_replacement_profile(0.3, 1.0), 0.01)
    mass = dict(zip((np.round(found.losses / 0.01)).astype(int).tolist(), found.masses.tolist(), strict=True))
    for node in range(1, 200):
        assert mass[-node] == pytest.approx(exp(-0.01 * node) * mass[node], rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    mu=st.floats(0.3, 6.0),
    rounds=st.sampled_from([1, 2, 7, 100, 5000, 10**5]),
    delta=DELTAS,
    relative=st.floats(0.001, 0.02),
)
def test_gaussians_compose_to_a_gaussian(mu: float, rounds: int, delta: float, relative: float) -> None:
    """`mu` is of all rounds together."""
    exact = gaussian.epsilon(delta, mu)
    once = mu / rounds**0.5
    low, high = pld.composed_bounds([(gaussian.profile(once), rounds)], delta, relative * once)
    assert low <= exact <= high * (1 + 1e-12)
    assert high <= exact * (1 + relative**2) + 1e-9 + relative * once * (rounds == 1)


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12, 1e-30, 1e-100])
@pytest.mark.parametrize("rounds", [1, 1000, 10**6])
def test_a_million_rounds_and_tiny_deltas_keep_their_digits(rounds: int, delta: float) -> None:
    exact = gaussian.epsilon(delta, 1.0)
    low, high = pld.composed_bounds([(gaussian.profile(rounds**-0.5), rounds)], delta)
    assert low <= exact <= high
    assert high == pytest.approx(exact, rel=3e-5)


def test_epsilon_in_the_thousands() -> None:
    for mu, rounds in ((60.0, 1), (60.0, 10), (2.0, 10_000)):
        exact = gaussian.epsilon(1e-5, mu * rounds**0.5)
        assert exact > 1000
        low, high = pld.composed_bounds([(gaussian.profile(mu), rounds)], 1e-5)
        assert low <= exact <= high * (1 + 1e-12)
        assert high == pytest.approx(exact, rel=1e-5)


@given(
    truth=st.floats(0.55, 0.95),
    rounds=st.integers(1, 60),
    delta=st.floats(1e-10, 0.3),
    cells=st.sampled_from([40, 200]),
)
@settings(deadline=None)
def test_randomized_response_by_enumeration(truth: float, rounds: int, delta: float, cells: int) -> None:
    largest = log(truth / (1 - truth))

    def once(epsilon: Any) -> Any:
        return np.where(epsilon < largest, truth - np.exp(np.minimum(epsilon, largest)) * (1 - truth), 0.0)

    def exact(epsilon: float) -> float:
        return sum(
            comb(rounds, k)
            * truth**k
            * (1 - truth) ** (rounds - k)
            * max(0.0, -np.expm1(epsilon - (2 * k - rounds) * largest))
            for k in range(rounds + 1)
        )

    low, high = pld.composed_bounds(
        [(once, rounds)], delta, largest / cells
    )  # the losses are nodes: nothing is rounded
    assert exact(high) <= delta * (1 + 1e-9)
    if high > 1e-6:
        assert exact(high * (1 - 1e-6) - 1e-6) >= delta * (1 - 1e-6)
    if low > 0:
        assert exact(low) >= delta
    # nodes that miss the losses
    low, high = pld.composed_bounds([(once, rounds)], delta, largest / (cells + 0.37))
    assert exact(high) <= delta * (1 + 1e-9)
    if low > 0:
        assert exact(low) >= delta


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(0.05, 3.0), rounds=st.integers(1, 3), epsilon=st.floats(0.0, 3.0))
def test_small_compositions_by_brute_force(shift: float, rounds: int, epsilon: float) -> None:
    (once,) = from_profile(laplace.profile(shift), 0.01)
    masses, lowest = once.masses, once.lowest
    for _ in range(rounds - 1):
        masses, lowest = np.convolve(masses, once.masses), lowest + once.lowest
    losses = (lowest + np.arange(masses.size)) * 0.01
    exact = float(np.sum(masses * np.maximum(0, -np.expm1(epsilon - losses)))) - np.expm1(
        rounds * log1p(-once.infinity)
    )
    assert pld.history_delta([(laplace.profile(shift), rounds)], epsilon, 0.01) == pytest.approx(
        exact, rel=1e-8, abs=3e-14
    )


def test_one_laplace_release_is_its_profile() -> None:
    for delta in (1e-5, 0.01, 0.3):
        low, high = pld.composed_bounds([(laplace.profile(1.0), 1)], delta, 1e-4)
        assert high == pytest.approx(1 + 2 * log1p(-delta), rel=1e-4)
        assert low <= 1 + 2 * log1p(-delta) <= high


@pytest.mark.parametrize(("rate", "sigma", "rounds"), [(0.01, 1.0, 1000), (0.2, 2.0, 100), (0.04, 1.5, 2250)])
def test_agrees_with_dp_accounting(rate: float, sigma: float, rounds: int) -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    theirs = library.from_gaussian_mechanism(sigma, value_discretization_interval=1e-3, sampling_prob=rate)
    theirs = theirs.self_compose(rounds)
    for delta in (1e-3, 1e-5, 1e-7):
        ours = pld.composed_epsilon(gaussian.poisson_profiles(rate, 1 / sigma), rounds, delta, 1e-3)
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-6)
    for epsilon in (0.0, 0.5, 3.0):
        ours = pld.history_delta([(gaussian.poisson_profiles(rate, 1 / sigma), rounds)], epsilon, 1e-3)
        assert ours == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-6, abs=1e-13)


def test_mixtures_agree_with_dp_accounting() -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    shifts, weights = [0.0, 0.4, 1.1], [0.2, 0.5, 0.3]
    theirs = library.from_mixture_gaussian_mechanism(1.0, shifts, weights, value_discretization_interval=5e-3)
    theirs = theirs.self_compose(30)
    ours = pld.composed_epsilon(hidden_mixtures.hidden_mixture(shifts, weights), 30, 1e-6, 5e-3)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-6)


def density(x: Any) -> Any:
    """Of a standard Gaussian."""
    return np.exp(-(x**2) / 2) / sqrt(2 * pi)


def hockey_stick(p: Any, q: Any, epsilon: float) -> float:
    """∫ max(0, p − e^ε q) by the midpoint rule on a fine grid."""
    x = np.linspace(-16, 16, 400_001)
    x = (x[1:] + x[:-1]) / 2
    return float(np.sum(np.maximum(0, p(x) - exp(epsilon) * q(x))) * 8e-5)


@settings(max_examples=15, deadline=None)
@given(rate=st.floats(0.01, 1.0), mu=st.floats(0.1, 3.0), epsilon=st.floats(0.0, 4.0))
def test_threshold_profiles_are_hockey_stick_divergences(rate: float, mu: float, epsilon: float) -> None:
    at = np.array([epsilon])
    up = lambda x: (1 - rate) * density(x) + rate * density(x - mu)  # noqa: E731
    down = lambda x: (1 - rate) * density(x) + rate * density(x + mu)  # noqa: E731
    replaced = hidden_mixtures.poisson_gaussian_replace_one(rate, mu)
    assert float(replaced(at)[0]) == pytest.approx(hockey_stick(up, down, epsilon), rel=1e-6, abs=1e-8)
    mixed = lambda x: rate * density(x - mu) + (1 - rate) * density(x - mu / 3)  # noqa: E731
    forward, backward = hidden_mixtures.hidden_mixture([mu, mu / 3], [rate, 1 - rate])
    assert float(forward(at)[0]) == pytest.approx(hockey_stick(mixed, density, epsilon), rel=1e-6, abs=1e-8)
    assert float(backward(at)[0]) == pytest.approx(hockey_stick(density, mixed, epsilon), rel=1e-6, abs=1e-8)


def test_ways_to_say_the_same_mechanism() -> None:
    expected = pld.composed_epsilon(gaussian.poisson_profiles(0.05, 1.0), 200, 1e-6, 1e-3)
    mixture = pld.composed_epsilon(hidden_mixtures.hidden_mixture([0, 1], [0.95, 0.05]), 200, 1e-6, 1e-3)
    assert mixture == pytest.approx(expected, rel=1e-9)
    whole = pld.composed_epsilon(hidden_mixtures.poisson_gaussian_replace_one(1.0, 0.5), 20, 1e-6, 1e-3)
    assert whole == pytest.approx(pld.composed_epsilon(gaussian.profile(1.0), 20, 1e-6, 1e-3), rel=1e-9)
    for profile in (gaussian.without_replacement_profile(1.0, 0.5), gaussian.poisson_profiles(1.0, 0.5)):
        found = pld.composed_epsilon(profile, 20, 1e-6, 1e-3)
        assert found == pytest.approx(pld.composed_epsilon(gaussian.profile(0.5), 20, 1e-6, 1e-3), rel=1e-9)
    split = pld.composed_bounds(
        [(gaussian.poisson_profiles(0.05, 1.0), 50), (gaussian.poisson_profiles(0.05, 1.0), 150)],
        1e-6,
        1e-3,
    )
    assert split[1] == pytest.approx(expected, rel=1e-9)


def test_telling_the_ratio_costs_privacy() -> None:
    for rounds in (1, 10, 100):
        hidden = pld.composed_epsilon(hidden_mixtures.hidden_mixture([0.3, 0.7], [0.5, 0.5]), rounds, 1e-5, 1e-3)
        told = pld.composed_bounds([(hidden_mixtures.released_mixture([0.3, 0.7], [0.5, 0.5]), rounds)], 1e-5, 1e-3)[0]
        assert hidden < told


@settings(max_examples=10, deadline=None)
@given(rate=st.floats(0.005, 0.9), mu=st.floats(0.2, 2.0), rounds=st.integers(1, 300), delta=DELTAS)
def test_epsilon_grows_with_rounds_rate_and_shift_and_falls_with_delta(
    rate: float, mu: float, rounds: int, delta: float
) -> None:
    def epsilon(rate: float, mu: float, rounds: int, delta: float) -> float:
        return pld.composed_epsilon(gaussian.without_replacement_profile(rate, mu), rounds, delta, 2e-3)

    base = epsilon(rate, mu, rounds, delta)
    slack = 1e-4 * base + 2e-3  # of the grid
    assert 0 <= base <= epsilon(rate, mu, 2 * rounds, delta) + slack
    assert base <= epsilon(min(1.0, 1.2 * rate), mu, rounds, delta) + slack
    assert base <= epsilon(rate, 1.2 * mu, rounds, delta) + slack
    assert base >= epsilon(rate, mu, rounds, min(0.5, 3 * delta)) - slack


@settings(max_examples=25, deadline=None)
@given(rate=st.floats(0.01, 0.9), mu=st.floats(0.2, 2.0), rounds=st.integers(1, 300), delta=DELTAS)
def test_delta_and_epsilon_are_inverse_and_a_finer_grid_lies_between(
    rate: float, mu: float, rounds: int, delta: float
) -> None:
    pair = gaussian.poisson_profiles(rate, mu)
    low, high = pld.composed_bounds([(pair, rounds)], delta, 5e-3)
    finer_low, finer_high = pld.composed_bounds([(pair, rounds)], delta, 1e-3)
    assert low <= finer_high
    assert finer_low <= finer_high <= high + 1e-9
    if high > 0:
        assert pld.history_delta([(pair, rounds)], high, 5e-3) == pytest.approx(delta, rel=1e-6)


def test_the_lower_bound_is_close() -> None:
    for profile, rounds in (
        (gaussian.without_replacement_profile(0.2, 1.0), 100),
        (gaussian.poisson_profiles(0.01, 1.0), 1000),
    ):
        low, high = pld.composed_bounds([(profile, rounds)], 1e-5, 1e-4)
        assert high * 0.98 < low < high


def test_nothing_leaks_where_nothing_depends_on_the_record() -> None:
    for profile in (
        gaussian.profile(0.0),
        gaussian.poisson_profiles(0.0, 1.0),
        laplace.profile(0.0),
    ):
        assert pld.composed_bounds([(profile, 10)], 1e-5, 1e-3) == (0.0, 0.0)
    assert pld.composed_epsilon(gaussian.profile(1.0), 1, 0.5, 1e-3) == 0.0  # above the total variation


def test_an_infinite_loss_is_never_hidden() -> None:
    leaky = lambda e: np.maximum(gaussian.delta(e, 1.0), 1e-4)  # noqa: E731
    assert pld.composed_epsilon(leaky, 1, 1e-5, 1e-3) == inf
    assert pld.composed_epsilon(leaky, 100, 1e-3, 1e-3) == inf
    assert pld.history_delta([(leaky, 10)], 50.0, 1e-3) == pytest.approx(1 - (1 - 1e-4) ** 10, rel=1e-6)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    rate=st.floats(-8, 0).map(lambda exponent: 10.0**exponent),
    mu=st.floats(-4, 2.4).map(lambda exponent: 10.0**exponent),
    rounds=st.integers(1, 20_000),
    delta=st.floats(-60, -0.1).map(lambda exponent: 10.0**exponent),
)
def test_extreme_parameters_give_finite_bounds_in_order(rate: float, mu: float, rounds: int, delta: float) -> None:
    unsampled = gaussian.epsilon(delta, mu * rounds**0.5)
    low, high = pld.composed_bounds([(gaussian.poisson_profiles(rate, mu), rounds)], delta)
    assert 0 <= low <= high < inf
    assert low <= unsampled * (1 + 1e-9)
    assert high <= unsampled * 1.01 + 1e-6


@pytest.mark.parametrize("bad", [float("nan"), inf, -1.0, True, "one", None])
def test_refuses_what_is_no_number(bad: Any) -> None:
    profile = gaussian.profile(1.0)
    calls: list[Any] = [
        lambda: pld.composed_epsilon(profile, bad, 1e-5),
        lambda: pld.composed_epsilon(profile, 10, bad),
        lambda: pld.history_delta([(profile, 10)], bad),
        lambda: from_profile(profile, bad),
        lambda: gaussian.profile(bad),
        lambda: gaussian.poisson_profiles(bad, 1.0),
        lambda: hidden_mixtures.poisson_gaussian_replace_one(0.1, bad),
        lambda: gaussian.without_replacement_profile(0.1, bad),
        lambda: laplace.profile(bad),
        lambda: hidden_mixtures.released_mixture([bad], [1.0]),
        lambda: hidden_mixtures.hidden_mixture([1.0], [bad]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must"):
            call()


def test_refuses_what_is_no_profile_and_grids_that_are_too_large() -> None:
    for bad in (lambda e: e * float("nan"), lambda e: e + 2, lambda e: -1 - e):
        with pytest.raises(ValueError, match="profile"):
            from_profile(bad, 0.01)
    with pytest.raises(ValueError, match="increase"):
        from_profile(lambda e: np.where(e > 3, 0.0, np.minimum(0.5, 0.1 + e / 10)), 0.01)
    with pytest.raises(GridTooLarge, match="larger interval"):
        pld.composed_epsilon(gaussian.profile(60.0), 10, 1e-5, 1e-6)
    with pytest.raises(ValueError, match="at least one"):
        pld.composed_bounds([], 1e-5)
    with pytest.raises(ValueError, match="sum to 1"):
        hidden_mixtures.hidden_mixture([0.3, 0.7], [0.5, 0.6])
