"""Areas, intervals and audits against scikit-learn, loops and repeated draws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score

from privkit.accountants.answer import no_protection
from privkit.attacks.scores.leak import Leak, advantage, per_batch_auc, pooled_auc, roc_points, threshold_at, tpr_at
from privkit.audit.claims import audit_one_run
from privkit.shared.certificate import Certificate

Array = NDArray[np.float64]


def drawn(seed: int, n: int = 300, shift: float = 0.7, digits: int = 1) -> tuple[NDArray[Any], ...]:
    """Scores with ties, labels, and batches of which some have one kind only."""
    generator = np.random.default_rng(seed)
    batches = generator.integers(0, 40, n)
    truth = (generator.random(n) < 0.3) & (batches % 5 > 0)
    return np.round(generator.normal(size=n) + shift * truth, digits), truth, batches


def test_pooled_and_per_batch_are_scikit_learns() -> None:
    scores, truth, batches = drawn(0)
    assert pooled_auc(scores, truth).auc.value == roc_auc_score(truth, scores)
    own = [
        roc_auc_score(truth[batches == b], scores[batches == b])
        for b in np.unique(batches)
        if 0 < truth[batches == b].sum() < (batches == b).sum()
    ]
    found = per_batch_auc(scores, truth, batches)
    assert found.auc.value == pytest.approx(np.mean(own), abs=1e-12)
    assert (found.batches, found.skipped) == (len(own), len(np.unique(batches)) - len(own))
    assert found.skipped >= 8
    assert found.auc.n < pooled_auc(scores, truth).auc.n == 300


def test_a_drift_between_batches_hides_a_leak_from_the_pooled_area_alone() -> None:
    generator = np.random.default_rng(0)
    batches = np.arange(50).repeat(20)
    truth = generator.random(1_000) < 0.5
    scores = 100.0 * batches + truth
    assert per_batch_auc(scores, truth, batches).auc.value == 1.0
    assert abs(pooled_auc(scores, truth).auc.value - 0.5) < 0.1


def test_delong_against_its_definition() -> None:
    scores, truth, _ = drawn(1)
    x, y = scores[truth], scores[~truth]
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    variance = wins.mean(1).var(ddof=1) / len(x) + wins.mean(0).var(ddof=1) / len(y)
    auc = wins.mean()
    half = norm.ppf(0.975) * variance**0.5 / (auc * (1 - auc))
    odds = np.log(auc / (1 - auc))
    found = pooled_auc(scores, truth).auc
    limits = [1 / (1 + np.exp(-(odds + s * half))) for s in (-1, 1)]
    assert found.low <= limits[0] + 1e-12
    assert found.high >= limits[1] - 1e-12
    assert (found.low, found.high) == pytest.approx(limits, abs=0.02)


@settings(max_examples=50)
@given(
    members=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    others=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    rate=st.floats(0, 0.99),
)
def test_true_positive_rate_by_trying_every_threshold(members: list[float], others: list[float], rate: float) -> None:
    found = tpr_at([*members, *others], [1] * len(members) + [0] * len(others), rate, confidence=0.9)
    cuts = [
        t for t in [*(np.nextafter(b, np.inf) for b in others)] if sum(b >= t for b in others) <= rate * len(others)
    ]
    hits = sum(a >= min(cuts) for a in members)
    exact = binomtest(hits, len(members)).proportion_ci(0.9, method="exact")
    assert found.value == hits / len(members)
    assert sum(b >= threshold_at(np.array(others), rate) for b in others) <= rate * len(others)
    assert found.low <= found.value <= found.high
    assert found.low <= exact.low + 1e-10
    assert found.high >= exact.high - 1e-10


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_false_positive_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="false_positive_rate must be a finite number >= 0 and < 1"):
        tpr_at([1.0, 0.0], [1, 0], rate)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_intervals_cover_as_often_as_they_say(shift: float) -> None:
    truth = np.arange(60) < 20
    expected = norm.cdf(shift / 2**0.5)
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        found = pooled_auc(generator.normal(size=60) + shift * truth, truth).auc
        hits += found.low <= expected <= found.high
    assert 0.92 < hits / 400 < 0.98


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(("members", "others"), [(3, 50), (5, 200), (20, 2_000)])
@pytest.mark.parametrize("shift", [0.0, 2.0, 3.5])
def test_intervals_of_few_members_cover_as_often_as_they_say(members: int, others: int, shift: float) -> None:
    """DeLong's alone covered 80 % with 5 members at an area of .92, and 77 % with 20 at .993."""
    truth, generator = np.arange(members + others) < members, np.random.default_rng(3)
    found = [pooled_auc(generator.normal(size=len(truth)) + shift * truth, truth).auc for _ in range(200)]
    assert np.mean([one.low <= norm.cdf(shift / 2**0.5) <= one.high for one in found]) > 0.915


def test_perfect_scores_have_an_interval_all_the_same() -> None:
    found = pooled_auc([0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]).auc
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 3))
    turned = pooled_auc([1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1])
    assert (turned.auc.value, turned.auc.low, turned.auc.high) == (0.0, 0.0, pytest.approx(1 - 0.025 ** (1 / 3)))
    assert turned.direction == "none"  # three pairs are too few: the limit is above 1/2
    tied = pooled_auc([1, 1, 1, 1], [0, 0, 1, 1]).auc
    assert (tied.value, tied.low, tied.high) == (0.5, 0.0, 1.0)


def test_an_area_below_one_half_leaks_as_much() -> None:
    scores, truth, _ = drawn(3, shift=1.0)
    found, turned = pooled_auc(scores, truth), pooled_auc(-scores, truth)
    assert found.advantage == pytest.approx(turned.advantage)
    assert (found.direction, turned.direction) == ("higher", "lower")
    scores, truth, _ = drawn(3, shift=0.0)
    assert pooled_auc(scores, truth).direction == "none"


def test_roc_points_enclose_the_area() -> None:
    scores, truth, _ = drawn(4)
    false, true, thresholds = roc_points(scores, truth)
    assert trapezoid(true, false) == pytest.approx(pooled_auc(scores, truth).auc.value)
    assert (np.diff(thresholds) < 0).all()


def test_true_positives_at_a_low_rate_of_false_ones() -> None:
    scores, truth, _ = drawn(5, n=3_000, shift=2.0, digits=6)
    found = tpr_at(scores, truth, 0.01)
    others = np.sort(scores[~truth])
    allowed = int(0.01 * others.size)
    assert found.value == (scores[truth] > others[-allowed - 1]).mean()
    assert (others >= threshold_at(others, 0.01)).mean() <= 0.01
    assert found.low < found.value < found.high


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shift"), [(50, 0.0), (50, 2.0), (1000, 2.0)])
def test_limits_hold_for_the_best_threshold_of_the_truth(count: int, shift: float) -> None:
    """The measured threshold accuses more or fewer than allowed; limits that forget it missed in up to half of runs."""
    true, generator = norm.sf(norm.isf(0.01) - shift), np.random.default_rng(0)
    truth = np.arange(2 * count) < count
    missed = 0
    for _ in range(300):
        found = tpr_at(generator.standard_normal(2 * count) + shift * truth, truth, 0.01)
        missed += not found.low <= true <= found.high
    assert missed <= 15  # 5 %


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        ([1.0, np.nan], [0, 1], "finite"),
        ([1.0, 2.0], [0, 1, 1], "one length"),
        ([1.0, 2.0], [0, 2], "true and false"),
        ([1.0, 2.0], [1, 1], "both kinds"),
        ([], [], "one length"),
    ],
)
def test_bad_scores_are_refused(scores: list[float], truth: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pooled_auc(scores, truth)


def test_bad_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="no batch holds both"):
        per_batch_auc([1, 2], [0, 1], [0, 1])
    with pytest.raises(ValueError, match="whole numbers"):
        per_batch_auc([1, 2], [0, 1], [0.0, 0.0])


def test_one_batch_has_no_interval() -> None:
    found = per_batch_auc([1, 2], [0, 1], [7, 7])
    assert isinstance(found, Leak)
    assert (found.auc.low, found.auc.high) == (0.0, 1.0)


def claim(epsilon: float, delta: float = 1e-5) -> Certificate:
    return Certificate(kind="differential_privacy", statement="claimed", epsilon=epsilon, delta=delta)


def canaries(right: int = 900, m: int = 1_000) -> tuple[Array, NDArray[np.bool_]]:
    """m canaries, all guessed, `right` of them rightly."""
    coins = np.arange(m) % 2 == 0
    order = np.where(np.arange(m) < right, coins, ~coins)
    return order + 1e-6 * np.arange(m), coins


def test_the_audit_meets_the_reference_of_the_one_run_auditor() -> None:
    """m=1000, r=1000, v=900, significance .05."""
    scores, coins = canaries()
    exact = audit_one_run(scores, coins, claim(2.0, delta=0.0), guesses=(500, 500))
    assert exact.epsilon == pytest.approx(2.0212, abs=5e-5)
    found = audit_one_run(scores, coins, claim(2.0), guesses=(500, 500))
    assert found.epsilon == pytest.approx(2.0206, abs=5e-5)
    assert found.refuted
    assert "refutes the claimed" in found.statement
    assert not audit_one_run(scores, coins, claim(2.03), guesses=(500, 500)).refuted


def test_nothing_claimed_is_never_refuted() -> None:
    scores, coins = canaries()
    found = audit_one_run(scores, coins, no_protection(), guesses=(500, 500), delta=1e-5)
    assert not found.refuted
    assert found.epsilon == pytest.approx(2.0206, abs=5e-5)
    assert "nothing is claimed" in found.statement


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_advantage_is_that_of_the_best_threshold_and_its_bands_cover(shift: float) -> None:
    rng, truth = np.random.default_rng(0), 2 * norm.cdf(shift / 2) - 1
    positive = np.arange(200) % 2 == 0
    found = [advantage(rng.normal(size=200) + shift * positive, positive) for _ in range(100)]
    assert sum(not one.low <= truth <= one.high for one in found) <= 5
    one = advantage([3, 1, 2, 0], [1, 1, 0, 0])
    assert one.value == 0.5
