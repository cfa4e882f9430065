"""Composition on a coarse grid: never below the truth, and close to it where other fast bounds are not."""

from itertools import pairwise
from math import inf, log

import numpy as np
import pytest

from privkit.accountants import compile as compiled
from privkit.accountants.bounds import bound, gaussian, laplace, subsampling
from privkit.accountants.bounds import coarse_composition as coarse_module
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.bound import Bound
from privkit.accountants.bounds.closed_forms import gaussian_bound
from privkit.accountants.bounds.coarse_composition import coarse_composition
from privkit.accountants.bounds.laplace import LaplaceRelease
from privkit.accountants.bounds.mixture import PublicMixture
from privkit.accountants.bounds.numerical_composition import composed_bound
from privkit.accountants.bounds.randomized_response import RandomizedAnswer
from privkit.accountants.bounds.renyi import HIGH_ORDERS, SAMPLED_ORDERS, canonne
from privkit.accountants.bounds.renyi_composition import renyi_bound, renyi_curves
from privkit.accountants.bounds.sampled import GaussianRelease, Sampling
from privkit.accountants.bounds.step import Steps
from privkit.accountants.bounds.truncated_losses import OVERFLOW_SHIFT, discretized, moved
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio
from privkit.accountants.spec.parts import Mixup, Noise, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp
from privkit.accountants.spec.shift import ShiftLaw

KINDS: tuple[Sampling, Sampling] = ("poisson", "without_replacement")


def draw(seed: int, most_rounds: float = 4.0) -> tuple[Steps, float]:
    """A run of one or two sampled Gaussians, and a δ."""
    random = np.random.default_rng(seed)

    def step() -> tuple[GaussianRelease, int]:
        kind = KINDS[int(random.integers(2))]
        mu, rate = float(10 ** random.uniform(-2.5, 0.6)), float(10 ** random.uniform(-4, -0.02))
        return GaussianRelease(mu=mu, rate=rate, sampling=kind), int(10 ** random.uniform(0, most_rounds))

    return [step() for _ in range(1 + (seed % 5 == 0))], float(10 ** random.uniform(-10, -2))


def coarse(run: Steps) -> Bound:
    """The bound, which must hold for these."""
    found = coarse_composition(run)
    assert found is not None
    return found


def test_both_directions_hold_all_of_their_mass() -> None:
    """What is not among the finite losses is infinite: in one direction a high output, in the other a low one."""
    losses = discretized(*(np.array([value]) for value in (1.3, 0.4, 1, True, 0.2)))
    assert abs(losses.infinite - losses.infinite_back) > 1e-3
    for side in (losses, losses.reverse()):
        held = (side.mass * np.exp(side.loss)).sum() + side.infinite
        np.testing.assert_allclose(held, 1, atol=1e-9)


def test_large_shifts_keep_their_digits() -> None:
    """Rounding made mass at low outputs, of which a moment subtracts the whole: ε of the first run was 941."""
    shifts = np.linspace(3, OVERFLOW_SHIFT, 50)
    one = np.ones(shifts.size)
    losses = discretized(shifts, 0.01 * one, one, one > 0, 1e-3 * one)
    np.testing.assert_allclose(losses.mass.sum(1), 1, atol=1e-12)
    for mu, rate, rounds, delta in ((8.9, 1.7e-4, 152_000, 0.0226), (9.68, 5e-3, 18, 0.0112)):
        run = [(GaussianRelease(mu=mu, rate=rate, sampling="poisson"), rounds)]
        composed = composed_bound(run)
        assert composed is not None
        least = composed.epsilon(delta).lower
        assert least is not None
        assert least <= coarse(run).epsilon(delta).value < 1.1 * least


@pytest.mark.slow
def test_never_below_what_numerical_composition_proves_from_below() -> None:
    ratios, before = [], []
    for seed in range(25):
        run, delta = draw(seed)
        claimed, tight = coarse(run).epsilon(delta).value, composed_bound(run)
        assert tight is not None
        true = tight.epsilon(delta)
        assert true.lower is not None
        assert claimed >= true.lower
        if true.value > 1e-3:
            ratios.append(claimed / true.value)
            unsampled = gaussian_bound(run)
            assert unsampled is not None
            before.append(min(renyi_bound(run).epsilon(delta).value, unsampled.epsilon(delta).value) / true.value)
    assert np.median(ratios) < 1.1
    assert np.median(ratios) < np.median(before)


def mixed(seed: int) -> tuple[Steps, float]:
    """A run with a density of shifts, from k of n clients or from all, beside a sampled Gaussian now and then."""
    random = np.random.default_rng([seed, 1])
    shifts = np.sort(random.uniform(0, 10 ** random.uniform(-1.5, 0.5), int(random.integers(2, 400))))
    chances = random.dirichlet(np.full(shifts.size, 0.5)) + 1e-12
    law = ShiftLaw(mu=shifts, log_weight=np.log(chances / chances.sum()))
    rate = (1.0, float(10 ** random.uniform(-3, -0.3)))[seed % 2]
    run: Steps = [(PublicMixture(law=law, rate=rate), int(10 ** random.uniform(0.5, 3.5)))]
    return [*run, *draw(seed)[0]] if seed % 3 == 0 else run, float(10 ** random.uniform(-9, -3))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 3 else seed for seed in range(30)]
)
def test_random_shifts_are_never_below_their_composed_profile_and_close_to_it(seed: int) -> None:
    run, delta = mixed(seed)
    composed = composed_bound(run)
    assert composed is not None
    low, high = pld.composed_bounds(composed.pairs, delta)
    claimed = coarse(run).epsilon(delta).value
    assert claimed >= low
    if 0.05 < high < 100:
        assert claimed < 1.2 * high


def vectors(seed: int) -> tuple[Steps, float]:
    """A run of sampled Laplace vectors, beside a sampled Gaussian or unsampled Laplace noise now and then."""
    random = np.random.default_rng([seed, 2])

    def vector() -> tuple[tuple[float, int], ...]:
        many = int(10 ** random.uniform(0, 3))
        parts = [(float(10 ** random.uniform(-1.5, 1) / many**0.5), many)]
        if random.random() < 0.3:
            parts.append((parts[0][0] * float(random.uniform(0.1, 2)), int(random.integers(1, 20))))
        return tuple(parts)

    rounds = int(10 ** random.uniform(0, 3))
    run: Steps = [(LaplaceRelease(parts=vector(), rate=float(10 ** random.uniform(-3, -0.1))), rounds)]
    if seed % 4 == 1:
        run = [*run, (LaplaceRelease(parts=((float(random.uniform(0.01, 0.5)), 3),)), 2)]
    return [*run, *draw(seed)[0]] if seed % 4 == 2 else run, float(10 ** random.uniform(-9, -3))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 7 else seed for seed in range(200)]
)
def test_laplace_vectors_are_never_below_their_composed_profile_and_close_to_it(seed: int) -> None:
    run, delta = vectors(seed)
    composed = composed_bound(run)
    assert composed is not None
    low, high = pld.composed_bounds(composed.pairs, delta)
    claimed = coarse(run).epsilon(delta).value
    assert claimed >= low * (1 - 1e-9)
    if high > 0.05 and run[0][1] > 1:
        assert min(claimed, *(one.epsilon(delta).value for one in compiled.bounds(run, tight=False))) < 1.3 * high


@pytest.mark.parametrize("parts", [((0.3, 7), (1.1, 2)), ((5.0, 1),), ((0.02, 900),)])
@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_moved_losses_keep_all_mass_and_dominate_the_profile(parts: tuple[tuple[float, int], ...], rate: float) -> None:
    base, profile = laplace.vector_losses(parts), laplace.vector_profile(parts)
    assert base is not None
    assert profile is not None
    for spent in (1e-12, 1e-4, 0.3):
        loss, mass, infinite = moved(base, rate, spent)
        assert infinite <= spent
        held = mass * np.exp(loss)
        assert held.sum() + infinite == pytest.approx(1, abs=1e-9)
        for epsilon in np.linspace(0, loss.max(), 40):
            claimed = infinite + float(held @ np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 0))))
            least = float(subsampling.without_replacement_delta(epsilon, rate, profile))
            assert claimed >= least * (1 - 1e-9)


def test_rare_large_losses_do_not_inflate_it() -> None:
    """DP-MixSL with 5 of 789 clients and Dirichlet ratios: Rényi curves prove eight times as much."""
    run = compiled.steps(
        SplitMechanism(
            smashed=Clamp(low=0, high=1, dimensions=64),
            noise=Noise(smashed=7),
            lower_model="frozen",
            mixing=Mixup(ratio=DirichletRatio(concentration=3, clients=5)),
            participation=WithoutReplacement(chosen=5, clients=789),
            rounds=232,
        )
    )
    composed = composed_bound(run)
    assert composed is not None
    tight = composed.epsilon(1e-5).value
    assert renyi_bound(run).epsilon(1e-5).value > 7 * tight
    assert tight < coarse(run).epsilon(1e-5).value < 1.1 * tight


@pytest.mark.parametrize("rate", [7e-4, 0.01])
@pytest.mark.parametrize("delta", [2.5e-5, 1e-7])
def test_few_rounds_of_rare_large_shifts_begin_their_grid_below_the_answer(rate: float, delta: float) -> None:
    """The best λ lies where the rare shift is certain; ε of three rounds was 45, and 27 of six."""
    law = ShiftLaw(mu=np.array([2.7, 4.1, 6.5]), log_weight=np.log([1 / 3] * 3))
    before = 0.0
    for rounds in (1, 3, 6, 24):
        run = [(PublicMixture(law=law, rate=rate), rounds)]
        composed = composed_bound(run)
        assert composed is not None
        tight, claimed = composed.epsilon(delta).value, coarse(run).epsilon(delta).value
        assert before <= tight <= claimed < 1.1 * tight
        before = claimed / 1.1


def test_the_search_for_the_best_order_does_not_swing_to_and_fro() -> None:
    """Of two to four rounds Newton's steps jumped between two λ; ε of four rounds was above that of five."""
    vector, before = LaplaceRelease(parts=((1 / 6, 18),), rate=1 / 35), 0.0
    for rounds in range(1, 9):
        composed = composed_bound([(vector, rounds)])
        assert composed is not None
        tight, claimed = composed.epsilon(1e-9).value, coarse([(vector, rounds)]).epsilon(1e-9).value
        assert max(before, tight) <= claimed < 1.02 * tight
        before = claimed


def test_what_lies_beyond_the_grid_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that ends below the sums is not a proof; one that begins above them proves its beginning at best."""
    run = [(GaussianRelease(mu=0.7, rate=0.05, sampling="without_replacement"), 300)]
    whole = coarse(run).epsilon(1e-6).value
    low = composed_bound(run)
    assert low is not None
    true = pld.composed_bounds(low.pairs, 1e-6)[0]
    for name, value in (("_ABOVE", -3.0), ("_ABOVE", 0.1), ("_BELOW", -1.0), ("_BELOW", 0.0), ("_INTERVAL", 8.0)):
        with monkeypatch.context() as patch:
            patch.setattr(coarse_module, name, value)
            claimed = coarse(run).epsilon(1e-6).value
        assert claimed >= true
        assert claimed > whole * 0.98


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_one_release_from_k_of_n_is_above_its_exact_profile(delta: float) -> None:
    for mu in (1e-4, 0.05, 0.7, 2.0, OVERFLOW_SHIFT):
        for rate in (1e-5, 0.01, 0.3, 0.999):
            run = [(GaussianRelease(mu=mu, rate=rate, sampling="without_replacement"), 1)]
            exact = 0.0 if delta >= rate else subsampling.amplify(gaussian.epsilon(delta / rate, mu), rate)
            assert coarse(run).epsilon(delta).value >= exact * (1 - 1e-12)


def test_one_poisson_sampled_release_is_above_both_exact_profiles() -> None:
    for mu in (0.05, 0.7, 2.0):
        for rate in (1e-3, 0.2, 0.95):
            run = [(GaussianRelease(mu=mu, rate=rate, sampling="poisson"), 1)]
            for delta in (1e-2, 1e-5):
                claimed = np.array(coarse(run).epsilon(delta).value)
                base = lambda e, mu=mu: np.exp(gaussian.log_delta(e, mu))  # noqa: E731
                assert subsampling.without_replacement_delta(claimed, rate, base) <= delta
                assert subsampling.poisson_added_delta(claimed, rate, base) <= delta


def test_small_epsilon_is_close() -> None:
    """Where the Rényi curve at whole orders is ten times the truth."""
    run = [(GaussianRelease(mu=0.365, rate=1e-4, sampling="without_replacement"), 1274)]
    composed = composed_bound(run)
    assert composed is not None
    tight = composed.epsilon(1.8e-5).value
    assert renyi_bound(run).epsilon(1.8e-5).value > 10 * tight
    assert coarse(run).epsilon(1.8e-5).value < 1.3 * tight


def test_answers_do_not_depend_on_the_batch_and_fall_with_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, deltas = zip(*[draw(seed) for seed in range(40)], strict=True)
    bounds = [coarse(run) for run in runs]
    alone = [one.epsilon(delta).value for one, delta in zip(bounds, deltas, strict=True)]
    for shifts in (coarse_module._SHIFTS, 7, 1):
        monkeypatch.setattr(coarse_module, "_SHIFTS", shifts)
        together = bound.batched_epsilons(bounds, np.array(deltas))
        assert [one.value for one in together] == pytest.approx(alone, rel=1e-9)
    for one in bounds[:10]:
        values = [one.epsilon(delta).value for delta in (1e-12, 1e-8, 1e-4, 0.3)]
        assert all(left >= right for left, right in pairwise(values))
        assert one.log_delta(one.epsilon(1e-5).value + 1e-9).value <= log(1e-5) + 1e-5


@pytest.mark.parametrize("block", [1, 4, 512])
def test_answers_do_not_depend_on_the_blocks_in_which_nodes_are_summed(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Blocks of one node are a plain sum over all nodes, and the smallest grid is one block of 512."""
    runs, deltas = zip(*[draw(seed) for seed in range(60)], strict=True)
    bounds = [coarse(run) for run in runs]
    usual = [one.value for one in bound.batched_epsilons(bounds, np.array(deltas))]
    monkeypatch.setattr(coarse_module, "_BLOCK", block)
    assert [one.value for one in bound.batched_epsilons(bounds, np.array(deltas))] == pytest.approx(usual, rel=1e-9)


def test_what_is_no_number_proves_nothing() -> None:
    """Rates near the smallest float gave NaN."""
    for rate in (1e-308, 1e-310):
        for kind in KINDS:
            for mu in (0.1, 1.0, 3.0):
                claimed = coarse([(GaussianRelease(mu=mu, rate=rate, sampling=kind), 3)]).epsilon(1e-5).value
                assert claimed >= 0
    assert GaussianRelease(mu=1.0, rate=0.0, sampling="poisson").exact(1) is None


def test_what_it_does_not_hold_for() -> None:
    sampled = GaussianRelease(mu=1.0, rate=0.1, sampling="poisson")
    assert coarse_composition([(GaussianRelease(mu=1.0), 3)]) is None
    assert coarse_composition([(sampled, 3), (RandomizedAnswer(noise=0.5, classes=3), 1)]) is None
    assert coarse_composition([(LaplaceRelease(parts=((1.0, 1),)), 3)]) is None
    assert coarse_composition([(LaplaceRelease(parts=((30.0, 100),), rate=0.1), 3)]) is None  # losses above e^700
    assert coarse_composition([(GaussianRelease(mu=11.0, rate=0.1, sampling="poisson"), 3)]) is None
    assert coarse([(sampled, 3), (GaussianRelease(mu=1.0), 2)]).epsilon(1e-5).value < inf


def test_few_orders_find_the_smallest_of_all() -> None:
    runs, deltas = zip(*[draw(seed, 5.0) for seed in range(300)], strict=True)
    found = bound.batched_epsilons([renyi_bound(run) for run in runs], np.array(deltas))
    every = canonne(SAMPLED_ORDERS, renyi_curves(runs, SAMPLED_ORDERS), np.array(deltas)[:, None]).min(1)
    orders = np.concatenate(HIGH_ORDERS)
    high = canonne(orders, renyi_curves(runs, orders), np.array(deltas)[:, None]).min(1)
    at_end = np.array([(one.order or 0) >= 64 for one in found])
    expected = np.maximum(np.where(at_end, np.minimum(every, high), every), 0)
    assert [one.value for one in found] == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-300)
