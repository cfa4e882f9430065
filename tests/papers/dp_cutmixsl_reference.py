"""Values of the paper's formulas that were recomputed from its text, and the true minimizers of Corollary 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import sqrt

from privkit.accountants.bounds import gaussian
from privkit.accountants.golden import read
from privkit.papers.dp_cutmixsl import group_size as sizes
from privkit.papers.dp_cutmixsl.claims import assumed_shift, corollary_1_epsilon, rdp
from privkit.papers.dp_cutmixsl.group_size import DELTA, ORDER
from privkit.papers.dp_cutmixsl.setting import Mechanism, Setting, table_1
from tests.accountants.golden.subsampling import without_replacement_epsilon


def theorem_1(mechanism: Mechanism, group: int, sigma: float) -> float:
    """Its Rényi bound at order 2."""
    return rdp(table_1(mechanism, group=group, sigma=sigma), ORDER)


def corollary_1(mechanism: Mechanism, group: int, sigma: float) -> float:
    """Its ε at order 2 and δ = 0.5."""
    return corollary_1_epsilon(table_1(mechanism, group=group, sigma=sigma), ORDER, DELTA)


def group_size(of: Callable[[Setting, float, float], float], mechanism: Mechanism, sigma: float, delta: float) -> float:
    """A group size at order 2, searched among 1000 clients."""
    return of(replace(table_1(mechanism, group=1, sigma=sigma), clients=1000), ORDER, delta)


def assumed_epsilon(group: int, sigma: float, delta: float, rounds: int = 1, sampled: bool = False) -> float:
    """Exact ε if the kept patches held the published share of DP-CutMixSL's coordinates, which no layout does."""
    mu = assumed_shift(table_1("dp_cutmixsl", group=group, sigma=sigma)) * sqrt(rounds)
    return without_replacement_epsilon(delta, group / 10 if sampled else 1.0, lambda d: gaussian.epsilon(d, mu))


best_group_size = partial(group_size, sizes.best_group)
exact_group_size = partial(group_size, sizes.exact_group_size)
published_group_size = partial(group_size, sizes.published_group_size)

CASES = read(__package__, "dp_cutmixsl_reference.jsonl", globals())
