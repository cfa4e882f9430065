"""Rules that decide which of two methods is better: by three seeds, or by new seeds whose number is fixed beforehand.

Three seeds decide large differences. For a smaller difference, the mean and spread over three seeds determine how many
seeds would decide it. This number of *new* seeds is run, and only the new seeds are judged, once. So seeds cannot be
added until the verdict is favorable. Each of the two tests (of the first three seeds, and of the new ones) has an error
of 5 %; together they call equal methods unequal in 9 % of cases (simulated).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from math import isfinite, sqrt

PILOT = (0, 1, 2)  # the first seeds, which every experiment has
CONFIDENCE = 0.95
_POWER = 0.8
_MOST = 10_000


def seeds_to_decide(gaps: Collection[float]) -> int | None:
    """Number of seeds, 2 to 10,000, with which Student's interval excludes 0 with probability 0.8, if differences have
    the mean and spread of `gaps` (at least two); None if more are needed, for example if the mean difference is 0.

    Source: the power of the two-sided t test, by the noncentral t distribution; Julious 2004.
    """
    from numpy import mean, std
    from scipy.special import nctdtr, stdtrit

    spread = float(std(list(gaps), ddof=1))
    effect = abs(float(mean(list(gaps)))) / spread if spread else float("inf")
    if not isfinite(effect):
        return 2

    def enough(n: int) -> bool:
        power = 1 - nctdtr(n - 1, effect * sqrt(n), stdtrit(n - 1, (1 + CONFIDENCE) / 2))
        return bool(power >= _POWER)

    if effect < 1e-9 or not enough(_MOST):
        return None
    return bisect_left(range(_MOST), True, lo=2, key=enough)


def decided(gaps: Collection[float]) -> bool:
    """Whether Student's 95 % interval of the mean difference excludes 0."""
    from privkit.reports.seed_intervals import over_values

    interval = over_values(list(gaps), CONFIDENCE)
    return interval.low > 0 or interval.high < 0


def needed_seeds(gaps: Mapping[int, float]) -> int | None:
    """Number of new seeds that are needed to decide which of two methods is better; 0 if the first three decide. None
    if fewer than two of these were run, or if more than 10,000 new seeds would be needed. `gaps` maps seeds to
    differences.
    """
    first = [gaps[seed] for seed in PILOT if seed in gaps]
    if len(first) < 2:
        return None
    return 0 if decided(first) else seeds_to_decide(first)


def counted(gaps: Mapping[int, float]) -> dict[int, float]:
    """The differences (seed -> difference) that are judged: those of the needed new seeds if all were run; otherwise
    those of the first three seeds.
    """
    new, needed = sorted(set(gaps) - set(PILOT)), needed_seeds(gaps)
    if needed and len(new) >= needed:
        return {seed: gaps[seed] for seed in new[:needed]}
    return {seed: gaps[seed] for seed in PILOT if seed in gaps}
