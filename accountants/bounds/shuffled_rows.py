r"""A shuffled epoch: how well a secret uniform order of rows hides a record, if every row is released separately.

A client deals its n records to n rows in an order that is uniform and that nobody learns, and each row gets fresh
noise N(0, 1). One record is x or x'; any two of all records are at most μ apart. For α = e^ε, the epoch's hockey-stick
divergence is at most h_0(ε), where

    h_L(ε) = H(ε),    h_l(ε) = (p + u_S)·H(ε) + Σ_s (u_{s−1} − u_s)·min(f_s(ε), H(ε)).

H is the profile of N(μ, 1) against N(0, 1), which is the profile if the place is known. n_1 + … + n_L < n. f_s bounds
the profile of a record that hides in rows with the weights W_s, each of which otherwise holds another record. If it
does not grow with s, its running maximum takes its place. With n = n_{l+1} and h = h_{l+1}(ln ·), every choice of these
numbers holds:

    c ≥ 1 and 0 < θ < 1;  p = (1 + 1/θ)·h(c), or 0 if c ≥ n;  for each s, caps κ ≥ 1, of which the last is at least c;
    e_s(κ) > 0 for the others, and 0 for the last;  u_0 = 1 ≥ u_1 ≥ … and u_s ≥ Σ h(κ)/e_s(κ), over the others.

**Proof.** Draw an order, then move some records: the first to the row of one of n_1 others, this one to the row of one
of n_2 further ones, and so on; the last goes to the first's row. Drawn uniformly, the moves leave the order uniform.
Reveal the order before the moves (joint convexity). Let Y_l(o) be the law of all rows that are reached after record o
has left the l-th set: Y_L(o) = N(o, 1), and Y_l(o) is a mean over i of o in row i beside Y_{l+1}(o_i). Its second part
has the same law Q for all o, the mean of the Y_{l+1}(o_i), and gives row i a probability w_i that sums to 1.

Against rows that hold the other records, o and o' in row i have likelihood ratios X_i and X'_i. So the divergence of
Y_l(o) and Y_l(o') is the mean, over the second part under Q, of φ(w) = E(Σ w_i·V_i)₊ with V_i = X_i − e^ε·X'_i. These
are independent of each other and of w. φ(w) is at most Σ w_i·E(V_i)₊ ≤ H(ε).

*Terms.* Let F(w) be the largest φ(w) over all records in the rows (`likelihood_sums`). As a maximum over all of them it
is convex, symmetric and of degree 1. So F(w) ≤ F(W) if both sum to 1 and W majorizes w: for every k, the k largest of W
sum to at least as much as those of w.

*Weights.* Let η(κ) = Σ(w_i − κ/n)₊. Since w_i = Y_{l+1}(o_i)/(n·Q), its mean is a mean over i of the divergence of
Y_{l+1}(o_i) from Q at κ. Q is a mean of such laws. So the mean of η(κ) is at most h(κ), by convexity again. With
probability η(c), or if η(c) > θ, reveal the row: this costs p·H at most, by Markov's inequality. If c ≥ n, nothing has
to be revealed: no w_i is above 1. The remainder v_i = min(w_i, c/n) has a sum of at least 1 − θ, and φ(w) ≤ φ(v) +
η(c)·H. Let s be the first case in which η(κ) ≤ e_s(κ) at all its caps; reveal the row if there is no such case. A case
after the s-th has a probability of at most u_s (Markov again). So the f_s have the weights u_{s−1} − u_s at worst.

*Majorant.* In case s, the k largest of v ≤ w sum to at most kκ/n + e_s(κ) for every cap, the last included. Let v' be v
over its sum. Its k largest sum to at most T(k) = min(1, min over κ of (kκ/n + e_s(κ))/(1 − θ)), which is concave in k.
Let q be κ/(n − nθ) for the lowest cap. W has the increments of T, rounded up to multiples of q, and at least q; from
the first on with which the sum would exceed 1 they are left out; and W is divided by its sum. Its partial sums are at
least T(k), and 1 at the end. So it majorizes v', and f_s = F(W_s). Without some of the smallest rows, W would hide
less, for the same reason.

**More records never hurt**: reveal the rows of some others. The rest are in a uniform order in the remaining rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import ceil, erfc, exp, expm1, floor, inf, log, log1p, log2, sqrt
from typing import TypeAlias

import numpy as np

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.allocation import ToldPlaces
from privkit.accountants.bounds.likelihood_sums import FINE_KINDS, Rows, hidden_delta
from privkit.accountants.bounds.loss_distribution import Profile
from privkit.accountants.bounds.round_profiles import gaussian_profile
from privkit.accountants.bounds.step import Pairs
from privkit.shared.array import Array

SMALLEST_SHIFT, LARGEST_SHIFT = 1e-3, 1.5
"""μ below which there is little to gain, and above which sums of likelihood ratios need too large a grid."""
_MOST_RECORDS = 1_000_000
"""Records of one profile; more hide better, so that this number bounds them, too."""
_TAIL = 1e-12
"""δ at the largest ε of a table."""
_NODES, _INNER_NODES, _NEAR = (24, 10), (12, 7), 7.0
"""Numbers of values of ε, near and far, at which h_0 and other h_l are computed; between them, they are linear in e^ε.
Near means up to this many standard deviations."""
_REST = 0.01
"""θ."""
_CASES = 9.0
"""Largest u_{s−1}/u_s."""
TOLD = 1e-7
"""Probability that a row is recognized in some epoch of a run; at δ far below it, the secret order does not lower ε."""


@dataclass(frozen=True, kw_only=True)
class ShuffledRows(ToldPlaces):
    """One epoch, in which a secret uniform order deals the records of a client to rows, each released alone.

    Its Rényi curve and its shift are charged as if the places were known; only `pairs` credits the hidden places.
    """

    chosen: int = 1
    records: int  # n ≥ 2, with the dummy that replaces an absent record
    apart: float  # the largest distance of two of them over the noise, ≥ `mu`

    @property
    def how(self) -> str:
        return ", a secret order of rows"

    @property
    def profile_source(self) -> str:
        return "derived: shuffled_rows.py"

    def pairs(self, count: int) -> Pairs | None:
        hidden = profile(self.records, self.apart, TOLD / count)
        if hidden is None:
            return None
        return [(lambda epsilon: np.minimum(hidden(epsilon), gaussian_profile(self.mu)(epsilon)), count)]


Hidden: TypeAlias = Callable[[float, float, Rows], float]
"""A bound on F at ε, μ and weights, or a guess."""


@dataclass(frozen=True, kw_only=True)
class Hiding:
    """The terms of h_l, the bound after one step of the recursion in this module."""

    cases: tuple[tuple[float, Rows], ...] = ()  # u_s and W_s
    told: float = 0.0  # p, the probability that the row is revealed at once

    def delta(self, epsilon: float, mu: float, hidden: Hidden) -> float:
        """h_l(ε); a case that would lower it by less than a hundredth is treated as if the place were known."""
        place_told, total, left, largest = _gaussian_delta(epsilon, mu), 0.0, 1.0, 0.0
        for unlikely, rows in self.cases:
            if left * place_told < 0.01 * total:
                break
            largest = max(largest, min(hidden(epsilon, mu, rows), place_told))
            total, left = total + (left - unlikely) * largest, unlikely
        return min(place_told, total + (left + self.told) * place_told)

    @property
    def places(self) -> float:
        """The number of rows of equal weight that would hide the record as well as these cases do on average, by
        variance."""
        mean, left = 0.0, 1.0
        for unlikely, rows in self.cases:
            mean, left = mean + (left - unlikely) / _places(rows), unlikely
        return 1 / (mean + left)


@lru_cache(maxsize=64)
def profile(records: int, mu: float, told: float = TOLD) -> Profile | None:
    """A profile of one epoch, valid in both directions; None if none of the tried numbers of moves hides the record.

    `told` in (0, .5] is the desired probability with which the row counts as known; δ below `told` earn little credit.
    Any two of n ≥ 2 records are at most μ ≥ 0 standard deviations of the noise apart. The result is None below μ = .001
    and above 1.5. With many records and a small `told`, it takes up to seven seconds for μ ≤ 1.1, and up to 13 for
    larger μ.

    Source: derived, see above.

    >>> hidden = profile(1000, 0.3)
    >>> bool(hidden(np.array(0.05)) < 1e-6 < gaussian.delta(1.0, 0.3))
    True
    """
    n, m = validate.whole("records", records, least=2), validate.real("mu", mu, least=0)
    p = validate.real("told", told, above=0, most=0.5)
    found = hiding(min(n, _MOST_RECORDS), m, p) if SMALLEST_SHIFT <= m <= LARGEST_SHIFT else None
    if found is None:
        return None
    ratios, deltas = _table(found, m, partial(hidden_delta, kinds=FINE_KINDS), _NODES)

    def both(epsilon: Array) -> Array:
        inside = np.interp(np.exp(np.minimum(epsilon, 700)), ratios, deltas)
        return np.asarray(np.minimum(np.exp(gaussian.log_delta(epsilon, m)), inside))

    return both


def hiding(records: int, mu: float, told: float = TOLD) -> Hiding | None:
    """The terms of h_0, the bound on a whole epoch. The numbers of moves are the best ones in a normal approximation.

    The result is None if fewer than two equivalent rows are left. Only the choice of the moves is approximate; the
    bound holds for every choice.

    >>> hiding(1000, 0.3).places > 700, hiding(100, 1.5)
    (True, None)
    """

    def places(moves: list[int]) -> float:
        roughly = _built(moves, mu, told, _roughly)
        return roughly.places if roughly else 0.0

    best = max(_choices(records), key=places, default=[])
    found = _built(best, mu, told, hidden_delta) if places(best) >= 2 else None
    return found if found and found.places >= 2 else None


def _choices(records: int) -> Iterator[list[int]]:
    """Numbers of rows n_L, …, n_1 to try: most rows for the first move, and geometric numbers for the others."""
    for count, share in product((2, 4), (0.6, 0.8, 0.9, 0.95, 0.98)):
        parts = 2 ** np.arange(count - 1.0)
        rows = [int(part) for part in (records - 1) * (1 - share) * parts / parts.sum()]
        if rows[0] > 1:
            yield [*rows, int((records - 1) * share)]


def _built(moves: list[int], mu: float, told: float, hidden: Hidden) -> Hiding | None:
    """The terms of h_0 for these numbers of moves; None if some move hides nothing, or there is no move."""
    found = Hiding()
    for left, rows in zip(range(len(moves))[::-1], moves, strict=True):
        table = _table(found, mu, hidden, _INNER_NODES if found.cases else (100, 20))
        found = _covered(table, rows, told / 100 if left else told)
        if not found.cases:
            return None
    return found if moves else None


def _table(found: Hiding, mu: float, hidden: Hidden, counts: tuple[int, int]) -> tuple[Array, Array]:
    """Values of e^ε, and h_l there. A divergence is convex in e^ε, so lines between these values are bounds, too."""
    far = gaussian.epsilon(_TAIL, mu)
    near = min(_NEAR * _spread(mu) / sqrt(found.places), far / 2)
    nodes = np.concatenate([np.linspace(0, near, counts[0]), np.geomspace(near, far, counts[1])[1:]])
    return np.exp(nodes), np.minimum.accumulate([found.delta(one, mu, hidden) for one in nodes.tolist()])


def _covered(table: tuple[Array, Array], rows: int, told: float) -> Hiding:
    """Cases whose caps double from the lowest to c; the lowest cap minimizes the variance of the sum."""
    known = np.concatenate([np.geomspace(1, min(table[0][-1], rows), 2000), [float(rows)]])
    shown = (1 + 1 / _REST) * np.interp(known, *table)
    shown[-1] = 0.0  # no row has a probability above 1
    first = int(np.argmax(shown <= told))
    cap, cases = float(known[first]), []
    lowest = np.append(1 + np.geomspace(1e-3, max(cap - 1, 1e-3), 40), cap)
    doubled = [one * 2.0 ** np.arange(max(ceil(log2(cap / one)), 0) + 1) for one in lowest[lowest <= cap]]
    excesses = [np.append(max(len(one) - 1, 1) * np.interp(one[:-1], *table), 0.0) for one in doubled]
    for unlikely in np.geomspace(0.5, told, ceil(log(0.5 / told) / log(_CASES)) + 1).tolist():
        best = min(range(len(doubled)), key=lambda at: _variance(doubled[at], excesses[at] / unlikely))
        weights = _majorant(doubled[best] / (1 - _REST), excesses[best] / unlikely / (1 - _REST), rows)
        if _places(weights) < 1.5:
            break
        cases.append((unlikely, weights))
    return Hiding(cases=tuple(cases), told=float(shown[first]))


def _variance(caps: Array, excess: Array) -> float:
    """n·ΣW², roughly: twice the area below the excess; infinite if there is no room below the lowest cap."""
    if excess[0] >= 0.9:
        return inf
    x, y = np.append(0.0, caps), np.append(1.0, excess)
    return float(np.sum((y[1:] + y[:-1]) * np.diff(x)))


def _majorant(caps: Array, excess: Array, rows: int) -> Rows:
    """The weights W of a case, empty if no W exists; `caps` and `excess` are κ and e(κ), both over 1 − θ.

    >>> _majorant(np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.01, 0.0]), 100)
    ((1, 80), (2, 8), (3, 1))
    """
    bulk = ceil(np.max((excess[0] - excess[1:]) * rows / (caps[1:] - caps[0]), initial=0.0)) + 1  # from there on, q
    sums = np.min(caps[:, None] * np.arange(bulk + 1.0) + rows * excess[:, None], axis=0, initial=rows)
    multiples = np.maximum(np.ceil(np.diff(sums) / caps[0] - 1e-9), 1).astype(int)
    total = floor(rows / caps[0] * (1 - 1e-8))  # which makes up for the 1e-9 above
    kept = multiples[np.cumsum(multiples) <= total]
    rest = total - int(kept.sum()) if kept.size == multiples.size else 0
    values, counts = np.unique(np.append(kept, 1), return_counts=True)
    counts[0] += rest - 1
    return tuple((value, count) for value, count in zip(values.tolist(), counts.tolist(), strict=True) if count)


def _places(rows: Rows) -> float:
    """Number of equally weighted rows whose sum has the same variance as these rows' sum; 0 without rows."""
    return sum(r * k for r, k in rows) ** 2 / max(sum(r * r * k for r, k in rows), 1)


def _roughly(epsilon: float, mu: float, rows: Rows) -> float:
    """An estimate of F, not a bound: the larger value of a normal approximation and of the largest term alone."""
    spread = _spread(mu) / sqrt(_places(rows))
    normal = _gaussian_delta(epsilon, spread) if spread < mu else 1.0
    largest = _gaussian_delta(log1p(sum(r * k for r, k in rows) / rows[-1][0] * expm1(epsilon)), mu)
    return max(normal, largest)


def _spread(mu: float) -> float:
    """1.2 times the standard deviation of X − X' for records that are μ apart from each other."""
    return 1.2 * sqrt(2 * (exp(mu * mu) - exp(mu * mu / 2)))


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """H(ε), for scalars: `gaussian.delta` is for arrays. An upper bound up to rounding of 1e-16."""
    a, b = (mu / 2 - epsilon / mu) / sqrt(2), (mu / 2 + epsilon / mu) / sqrt(2)
    return max((erfc(-a) - exp(epsilon) * erfc(b)) / 2, 0.0) + 1e-16
