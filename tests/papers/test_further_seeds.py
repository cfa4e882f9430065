"""New seeds: their number follows from the first three, and the verdict errs as seldom as it says."""

import numpy as np
import pytest
from scipy.stats import nct, t

from privkit.papers import PAPERS
from privkit.papers.further_seeds import PILOT, decided, judged_differences, needed_seeds, seeds_to_decide
from privkit.papers.orderings import audit_rows, measured, on_record, ordering_verdicts


@pytest.mark.parametrize("gaps", [[0.04, 0.01, 0.03], [0.01, -0.02, 0.02], [-0.01, 0.02, -0.02], [0.3, 0.31, 0.29]])
def test_the_number_is_the_smallest_of_power_08(gaps: list[float]) -> None:
    effect = abs(np.mean(gaps)) / np.std(gaps, ddof=1)

    def power(n: int) -> float:
        return float(1 - nct.cdf(t.ppf(0.975, n - 1), n - 1, effect * n**0.5))

    n = seeds_to_decide(gaps)
    assert n is not None
    assert power(n) >= 0.8 - 1e-9
    assert n == 2 or power(n - 1) < 0.8


def test_equal_gaps_need_two_and_no_gap_needs_more_than_there_are() -> None:
    assert seeds_to_decide([0.5, 0.5, 0.5]) == 2
    assert seeds_to_decide([0.01, -0.01]) is None


def test_what_three_seeds_decide_needs_no_more_and_new_seeds_count_only_together() -> None:
    clear, open_one = {0: 0.30, 1: 0.31, 2: 0.29}, {0: 0.04, 1: 0.01, 2: 0.03}
    assert (needed_seeds(clear), needed_seeds(open_one), needed_seeds({5: 0.1})) == (0, 5, None)
    new = {3: -0.02, 4: -0.03, 5: -0.01, 6: -0.02}
    assert judged_differences({**clear, **new}) == clear
    assert judged_differences({**open_one, **new}) == open_one  # one is missing, so nobody looks
    assert judged_differences({**open_one, **new, 7: -0.02, 8: 0.9}) == {
        **new,
        7: -0.02,
    }  # not the one beyond the number


def test_a_difference_of_nothing_is_decided_as_seldom_as_an_interval_of_95_percent_says() -> None:
    """Adding seeds until a verdict pleases would decide three times as often; see the second count."""
    draws, wrong, greedy, judged = np.random.default_rng(0), 0, 0, 0
    for _ in range(3000):
        gaps = dict(enumerate(draws.normal(size=30)))
        needed = needed_seeds(gaps)
        if needed and needed <= 27:
            judged += 1
            wrong += decided(judged_differences(gaps).values())
            greedy += any(decided([gaps[seed] for seed in range(n)]) for n in range(4, needed + 4))
    assert judged > 500
    assert abs(wrong / judged - 0.05) < 3 * (0.05 * 0.95 / judged) ** 0.5
    assert greedy > 2 * wrong


def test_the_rows_that_ship_are_judged_by_the_rule_and_rows_of_a_user_by_all_seeds() -> None:
    for name in PAPERS:
        everything = ordering_verdicts(name, measured(name, audit_rows()))
        for one, by_all in zip(on_record(name), everything, strict=True):
            if one.difference is None or by_all.difference is None:
                continue
            assert one.difference.n == one.needed if one.anew else one.difference.n <= len(PILOT)
            assert by_all.difference.n >= one.difference.n
