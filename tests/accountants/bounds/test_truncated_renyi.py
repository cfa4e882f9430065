"""Rényi composition of truncated losses: never below the truth, and close to it where other fast bounds are not."""

from itertools import pairwise
from math import inf, log

import numpy as np
import pytest

from privkit.accountants.bounds import bound, gaussian, subsampling
from privkit.accountants.bounds.bound import Bound
from privkit.accountants.bounds.closed_forms import gaussian_bound
from privkit.accountants.bounds.laplace import LaplaceRelease
from privkit.accountants.bounds.numerical_composition import composed_bound
from privkit.accountants.bounds.renyi import HIGH_ORDERS, SAMPLED_ORDERS, canonne
from privkit.accountants.bounds.renyi_composition import curves, renyi_bound
from privkit.accountants.bounds.sampled import GaussianRelease, Sampling
from privkit.accountants.bounds.step import Steps
from privkit.accountants.bounds.truncated_renyi import LARGEST_SHIFT, _discretized, truncated_renyi_bound

KINDS: tuple[Sampling, Sampling] = ("poisson", "without_replacement")


def draw(seed: int, most_rounds: float = 4.0) -> tuple[Steps, float]:
    """A run of one or two sampled Gaussians, and a δ."""
    random = np.random.default_rng(seed)

    def step() -> tuple[GaussianRelease, int]:
        kind = KINDS[int(random.integers(2))]
        mu, rate = float(10 ** random.uniform(-2.5, 0.6)), float(10 ** random.uniform(-4, -0.02))
        return GaussianRelease(mu=mu, rate=rate, sampling=kind), int(10 ** random.uniform(0, most_rounds))

    return [step() for _ in range(1 + (seed % 5 == 0))], float(10 ** random.uniform(-10, -2))


def truncated(run: Steps) -> Bound:
    """The bound, which must hold for these."""
    found = truncated_renyi_bound(run)
    assert found is not None
    return found


def test_both_directions_hold_all_of_their_mass() -> None:
    """What is not among the finite losses is infinite: in one direction a high output, in the other a low one."""
    losses = _discretized(*(np.array([value]) for value in (1.3, 0.4, 1, True, 0.2)))
    assert abs(losses.infinite - losses.infinite_back) > 1e-3
    for side in (losses, losses.reverse()):
        held = (side.mass * np.exp(side.loss)).sum() + side.infinite
        np.testing.assert_allclose(held, 1, atol=1e-9)


@pytest.mark.slow
def test_never_below_what_numerical_composition_proves_from_below() -> None:
    ratios, before = [], []
    for seed in range(25):
        run, delta = draw(seed)
        claimed, tight = truncated(run).epsilon(delta).value, composed_bound(run)
        assert tight is not None
        true = tight.epsilon(delta)
        assert true.lower is not None
        assert claimed >= true.lower
        if true.value > 1e-3:
            ratios.append(claimed / true.value)
            unsampled = gaussian_bound(run)
            assert unsampled is not None
            before.append(min(renyi_bound(run).epsilon(delta).value, unsampled.epsilon(delta).value) / true.value)
    assert np.median(ratios) < 1.2  # 1.13 of 2,500
    assert np.median(ratios) < np.median(before)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_one_release_from_k_of_n_is_above_its_exact_profile(delta: float) -> None:
    for mu in (1e-4, 0.05, 0.7, 2.0, LARGEST_SHIFT):
        for rate in (1e-5, 0.01, 0.3, 0.999):
            run = [(GaussianRelease(mu=mu, rate=rate, sampling="without_replacement"), 1)]
            exact = 0.0 if delta >= rate else subsampling.amplify(gaussian.epsilon(delta / rate, mu), rate)
            assert truncated(run).epsilon(delta).value >= exact * (1 - 1e-12)


def test_one_poisson_sampled_release_is_above_both_exact_profiles() -> None:
    for mu in (0.05, 0.7, 2.0):
        for rate in (1e-3, 0.2, 0.95):
            run = [(GaussianRelease(mu=mu, rate=rate, sampling="poisson"), 1)]
            for delta in (1e-2, 1e-5):
                claimed = np.array(truncated(run).epsilon(delta).value)
                base = lambda e, mu=mu: np.exp(gaussian.log_delta(e, mu))  # noqa: E731
                assert subsampling.poisson_removed_delta(claimed, rate, base) <= delta
                assert subsampling.poisson_added_delta(claimed, rate, base) <= delta


def test_small_epsilon_is_close() -> None:
    """Where the Rényi curve at whole orders is ten times the truth."""
    run = [(GaussianRelease(mu=0.365, rate=1e-4, sampling="without_replacement"), 1274)]
    composed = composed_bound(run)
    assert composed is not None
    tight = composed.epsilon(1.8e-5).value
    assert renyi_bound(run).epsilon(1.8e-5).value > 10 * tight
    assert truncated(run).epsilon(1.8e-5).value < 1.3 * tight


def test_answers_do_not_depend_on_the_batch_and_fall_with_delta() -> None:
    runs, deltas = zip(*[draw(seed) for seed in range(40)], strict=True)
    bounds = [truncated(run) for run in runs]
    together = bound.epsilons(bounds, np.array(deltas))
    alone = [one.epsilon(delta) for one, delta in zip(bounds, deltas, strict=True)]
    assert [one.value for one in together] == pytest.approx([one.value for one in alone], rel=1e-9)
    for one in bounds[:10]:
        values = [one.epsilon(delta).value for delta in (1e-12, 1e-8, 1e-4, 0.3)]
        assert all(left >= right for left, right in pairwise(values))
        assert one.log_delta(one.epsilon(1e-5).value + 1e-9).value <= log(1e-5) + 1e-5


def test_what_it_does_not_hold_for() -> None:
    sampled = GaussianRelease(mu=1.0, rate=0.1, sampling="poisson")
    assert truncated_renyi_bound([(GaussianRelease(mu=1.0), 3)]) is None
    assert truncated_renyi_bound([(sampled, 3), (LaplaceRelease(parts=((1.0, 1),)), 1)]) is None
    assert truncated_renyi_bound([(GaussianRelease(mu=11.0, rate=0.1, sampling="poisson"), 3)]) is None
    assert truncated([(sampled, 3), (GaussianRelease(mu=1.0), 2)]).epsilon(1e-5).value < inf


def test_few_orders_find_the_smallest_of_all() -> None:
    runs, deltas = zip(*[draw(seed, 5.0) for seed in range(300)], strict=True)
    found = bound.epsilons([renyi_bound(run) for run in runs], np.array(deltas))
    every = canonne(SAMPLED_ORDERS, curves(runs, SAMPLED_ORDERS), np.array(deltas)[:, None]).min(1)
    orders = np.concatenate(HIGH_ORDERS)
    high = canonne(orders, curves(runs, orders), np.array(deltas)[:, None]).min(1)
    at_end = np.array([(one.order or 0) >= 64 for one in found])
    expected = np.maximum(np.where(at_end, np.minimum(every, high), every), 0)
    assert [one.value for one in found] == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-300)
