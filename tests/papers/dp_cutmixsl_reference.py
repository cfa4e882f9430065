"""Values of the paper's formulas that were recomputed from its text, and the true minimizers of Corollary 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil, exp, expm1, floor, log, log1p, sqrt

from privkit.accountants.bounds import gaussian
from privkit.accountants.golden import read_cases
from privkit.papers.dp_cutmixsl import group_size as sizes
from privkit.papers.dp_cutmixsl.claims import conversion, corollary_1_epsilon, label_rdp, rdp, smashed_rdp
from privkit.papers.dp_cutmixsl.group_size import DELTA, ORDER
from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism, table_1
from tests.accountants.golden.subsampling import without_replacement_epsilon


def theorem_1(mechanism: Mechanism, group: int, sigma: float) -> float:
    """Its Rényi bound at order 2."""
    return rdp(table_1(mechanism, group=group, sigma=sigma), ORDER)


def corollary_1(mechanism: Mechanism, group: int, sigma: float) -> float:
    """Its ε at order 2 and δ = 0.5."""
    return corollary_1_epsilon(table_1(mechanism, group=group, sigma=sigma), ORDER, DELTA)


def group_size(
    of: Callable[[GroupRelease, float, float], float], mechanism: Mechanism, sigma: float, delta: float
) -> float:
    """A group size at order 2, searched among 1000 clients."""
    return of(replace(table_1(mechanism, group=1, sigma=sigma), clients=1000), ORDER, delta)


def assumed_epsilon(group: int, sigma: float, delta: float, rounds: int = 1, sampled: bool = False) -> float:
    """Exact ε if the kept patches held the published share of DP-CutMixSL's coordinates, which no layout does."""
    mu = assumed_shift(table_1("dp_cutmixsl", group=group, sigma=sigma)) * sqrt(rounds)
    return without_replacement_epsilon(delta, group / 10 if sampled else 1.0, lambda d: gaussian.epsilon(d, mu))


def assumed_shift(setting: GroupRelease) -> float:
    """μ of one release if its patches held the share ⌈λN⌉/N of the coordinates that the paper counts: no bound.

    With more patches than coordinates no such layout exists; where D_s is a multiple of N, it is what is kept.

    Source: the DP-CutMixSL paper, Eqs. 19 and 20, with whole patches.

    >>> round(assumed_shift(table_1("dp_cutmixsl", group=10, sigma=16 / 255)), 6)
    3.366148
    """
    ratio = setting.ratio
    smashed = setting.kept if setting.mechanism == "dp_cutmixsl" else ratio * ratio
    return sqrt(smashed * smashed_rdp(setting, 2) + ratio * ratio * label_rdp(setting, 2))


def best_group(setting: GroupRelease, order: float, delta: float) -> int:
    """Whole k in 1..n with the smallest ε′ at λ = 1/k, λN taken to be whole; the smaller of two equal ones.

    Source: derived; a test tries every k.

    >>> from dataclasses import replace
    >>> best_group(replace(table_1("dp_mixsl", group=1, sigma=16 / 255), clients=1000), 2, 0.5)
    42
    """
    if setting.mechanism == "dp_sl":
        return 1
    b, c = sizes._coefficients(setting, order)
    start, real = conversion(order, delta), sizes.exact_group_size(setting, order, delta)

    def height(k: int) -> float:
        """ln of k(e^{B/k + C/k² + ε_o} − 1), which orders ε′."""
        exponent = b / k + c / k**2 + start
        return log(k) + (log(expm1(exponent)) if exponent < 1 else exponent + log1p(-exp(-exponent)))

    near = {min(max(k, 1), setting.clients) for k in (floor(real), ceil(real))}
    return min(sorted(near), key=height)


best_group_size = partial(group_size, best_group)
exact_group_size = partial(group_size, sizes.exact_group_size)
published_group_size = partial(group_size, sizes.published_group_size)

CASES = read_cases(__package__, "dp_cutmixsl_reference.jsonl", globals())
