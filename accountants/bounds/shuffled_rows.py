r"""Privacy of a shuffled epoch: a secret uniform order of rows hides a record, and every row is released separately.

A client puts its n records into n rows in a uniform order that nobody learns, and adds fresh noise N(0, 1) to each row.
One record is x or x'; any two of all records are at most μ apart. At α = e^ε, the epoch's hockey-stick divergence is at
most h_0(ε), where

    h_L(ε) = H(ε),    h_l(ε) = p·H(ε) + C(1) with the least concave function C of g ≥ 0 that is at least
                               f_s(ε) on (g_{s−1}, g_s] for s = 1, …, S, and at least H(ε) beyond g_S.

H is the profile of N(μ, 1) against N(0, 1): the profile of a record whose row is known. The recursion has L steps with
n_1 + … + n_L < n. f_s bounds the profile of a record that hides in rows with the weights W_s; each row otherwise holds
another record. f_s is at most H, and at most f_{s+1}. From here on, n stands for n_{l+1}, and h for h_{l+1}(ln ·). The
bound holds for every choice of these numbers:

    c ≥ 1 and 0 < θ < 1;  p = (1 + 1/θ)·h(c), or 0 if c ≥ n;  0 = g_0 < g_1 < … < g_S;
    Ψ(y) = Σ a_κ·(y − κ)₊ + Σ b_κ·(1/κ − y)₊  over caps κ ≥ 1, with a, b ≥ 0;  B = Σ a_κ·h(κ) + Σ b_κ·h(κ)/κ.

**Proof.** Draw an order, then move some records: the protected record to the row of one of n_1 other records, that
record to the row of one of n_2 further records, and so on. The last record moves to the row that the protected record
left. If the moves are drawn uniformly, the order stays uniform. Reveal the order before the moves (joint convexity).
Let Y_l(o) be the law of all rows that are reached after record o has left the l-th set. Y_L(o) is N(o, 1). Y_l(o) is
the mean over i of two parts: o in row i, and Y_{l+1}(o_i). The law of the second part, Q, is the mean of the
Y_{l+1}(o_i), and so the same for all o. Given the second part, row i has a probability w_i, and the w_i sum to 1.

Let X_i and X'_i be the likelihood ratios of o and o' in row i against the record that the row holds otherwise. So the
divergence of Y_l(o) from Y_l(o') is the mean, over the second part under Q, of φ(w) = E(Σ w_i·V_i)₊ with V_i = X_i −
e^ε·X'_i. The V_i are independent of each other and of w. φ(w) is at most Σ w_i·E(V_i)₊ ≤ H(ε).

*Terms.* Let F(w) be the largest φ(w) over all records in the rows (`likelihood_sums`). As a maximum over all records, F
is convex, symmetric and of degree 1. So F(w) ≤ F(W) if both sum to 1 and W majorizes w: for every k, the k largest
entries of W sum to at least as much as those of w.

*Large weights.* Let η = Σ(w_i − c/n)₊. Since n·w_i = Y_{l+1}(o_i)/Q, the mean of η is a mean over i of the divergence
of Y_{l+1}(o_i) from Q at c. This mean is at most h(c) by convexity, since Q is a mean of such laws. With probability η,
and always if η > θ, reveal the row: this costs at most p·H, by Markov's inequality. If c ≥ n, nothing has to be
revealed, since no w_i is above 1. If η ≤ θ, the remainder v_i = min(w_i, c/n) has a sum of at least 1 − θ, and φ(w) ≤
F(v) + η·H. Let y_i be n·v_i divided by this sum.

*Uneven weights.* Let K(a, b) = b·Ψ(a/b), and let G(w) be the mean of K(n·w_i, n·w_j) over all pairs. The mean of
K(n·w_i, n·w_j) is an f-divergence of Y_{l+1}(o_i) from Y_{l+1}(o_j): Σ a_κ times their divergence at κ, plus Σ b_κ/κ
times the divergence of Y_{l+1}(o_j) from Y_{l+1}(o_i) at κ. So G(w) has a mean of at most B. K has degree 1 and is 0 if
a = b. It grows if the larger of a and b grows, or if the smaller one falls, since Ψ is convex and Ψ(1) = 0. So G(y) ≤
G(w)/(1 − θ). Case s is g_{s−1} < G(w)/B ≤ g_s. In this case, F(v) ≤ F(y/n) ≤ f_s and G(y) ≤ g_s·B/(1 − θ), so the f of
later cases are bounds, too. Beyond g_S, F(v) ≤ H. So F(v) is at most a growing concave function of G(w)/B. Hence the
mean of F(v) is at most this function of the mean of G(w)/B (Jensen).

*Majorant.* K is convex. In case s, let the k = pn largest y_i have the mean a, and the others the mean b. Then p·a + (1
− p)·b = 1 and p(1 − p)·(K(a, b) + K(b, a)) ≤ G(y) (Jensen in both groups). The left side grows with a. So a ≤ a(p),
which is at most c/(1 − θ). Here k may be any number, if a row may be split. For p between two nodes q < r, p·a is at
most p·a(q) and at most r·a(r). So for every κ, p·a − p·κ is at most e(κ), the largest r·a(r)·(1 − κ/a(q))₊ over all
intervals. Hence the k largest entries of y/n sum to at most T(k), the smallest of 1 and all kκ/n + e(κ). T is concave.
W has the increments of T, rounded up to multiples of a unit, and ends before its sum would exceed 1. Then W is divided
by its sum. Its partial sums are at least T(k), and 1 at the end. So W majorizes y/n, and f_s is F(W_s).

*Choice of Ψ.* If ln(n·w_i) is roughly normal, Ψ'' = h^{−λ} makes G an exponential moment of the variance of the
weights, which few outcomes exceed. A second term, Ψ'' = 1/(κ·h), bounds the largest weights.

**More records never hurt.** Reveal the rows of some other records. The rest are in a uniform order in the remaining
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, erfc, exp, expm1, floor, inf, log1p, sqrt
from typing import TypeAlias

import numpy as np

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.allocation import ToldPlaces
from privkit.accountants.bounds.likelihood_sums import FINE_KINDS, RowWeights, hidden_delta
from privkit.accountants.bounds.loss_distribution import Profile
from privkit.accountants.bounds.step import Pairs
from privkit.shared.array import Array

SMALLEST_SHIFT, LARGEST_SHIFT = 1e-3, 1.5
"""μ below which there is little to gain, and μ above which sums of likelihood ratios need too large a grid."""
_MOST_RECORDS = 1_000_000  # most records of one profile; it also bounds δ for more records, which hide better
_TAIL = 1e-12  # δ at the largest ε of a table
_NODES, _INNER_NODES, _NEAR = (24, 10), (12, 7), 7.0
"""Numbers (near, far) of values of ε at which h_0 is computed; the same for the other h_l; and the number of standard
deviations up to which an ε counts as near. Between the values, h_l is linear in e^ε."""
_REST = 0.05  # θ
_FIRST_LEVELS, _LEVELS = (1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 18.0), 3.0
"""g_1, g_2, …, and the ratio of successive further levels."""
_POWERS, _FEW_POWERS = ((0.2, 0.1), (0.5, 0.1), (0.7, 0.1), (0.2, 0.5), (0.5, 0.5), (0.7, 0.5)), 3
"""Pairs (λ, size of Ψ's second term relative to the first) of which the best is taken; moves are chosen with the first
few."""
_MATTERS = 1.02
"""No more cases are computed if h_l is below this multiple of the smallest value that it could have with more cases."""
_UNITS = 16  # weights are multiples of 1/(16·n)
_SHARES = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # k/n at which T has a tangent
TOLD = 1e-7
"""Probability with which the proof reveals the row in some epoch of a run; a δ far below it is hardly lowered."""


@dataclass(frozen=True, kw_only=True)
class ShuffledRows(ToldPlaces):
    """One epoch in which a client puts its records into rows in a secret uniform order and releases each row
    separately.

    The Rényi curve and the shift are computed for known rows; only `pairs` credits the secret order.
    """

    chosen: int = 1
    records: int  # n ≥ 2, with the dummy that replaces an absent record
    apart: float  # the largest distance of two records in standard deviations of the noise, ≥ `mu`
    how = ", a secret order of rows"
    profile_source = "derived: shuffled_rows.py"

    def pairs(self, count: int) -> Pairs | None:
        hidden = profile(self.records, self.apart, TOLD / count)
        if hidden is None:
            return None
        return [(lambda epsilon: np.minimum(hidden(epsilon), gaussian.profile(self.mu)(epsilon)), count)]


Hidden: TypeAlias = Callable[[float, float, RowWeights], float]
"""A function of ε, μ and the rows' weights that bounds or estimates F of this module."""


@dataclass(frozen=True, kw_only=True)
class Hiding:
    """The numbers chosen for step l of the recursion in the module's docstring; `delta` computes the bound h_l."""

    cases: tuple[tuple[float, RowWeights], ...] = ()  # for each case s: the limit g_s, the hiding rows' weights W_s
    told: float = 0.0  # p, the probability with which the proof reveals the row of the protected record

    def delta(self, epsilon: float, mu: float, hidden: Hidden) -> float:
        """h_l(ε), a bound on δ. Only cases that seem to matter are computed; others count as the next computed case."""
        place_told, last = _gaussian_delta(epsilon, mu), len(self.cases)
        starts, known = [0.0, *(level for level, _ in self.cases)], {last: place_told}
        at = 0
        while at not in known:
            known[at] = min(hidden(epsilon, mu, self.cases[at][1]), place_told)
            above = [min(f for s, f in known.items() if s >= one) for one in range(last + 1)]
            below = [max((above[s] for s in known if s <= one), default=0.0) for one in range(last + 1)]
            value, first = _concave(starts, above)
            if value < _MATTERS * _concave(starts, below)[0]:
                break
            at = (first + min(s for s in known if s >= first)) // 2
        return min(place_told, value + self.told * place_told) if self.cases else place_told

    @property
    def places(self) -> float:
        """A number of equally weighted rows. Judged by variance, the cases hide the record at least as well as these
        rows."""
        starts = [0.0, *(level for level, _ in self.cases)]
        return 1 / _concave(starts, [*(1 / _places(rows) for _, rows in self.cases), 1.0])[0]


def _concave(starts: list[float], heights: list[float]) -> tuple[float, int]:
    """The value at 1 of the least concave, non-decreasing function that is at least heights[i] beyond starts[i] for all
    i, and the index of a height on which this value depends. `starts` grow from 0, and `heights` never fall."""
    points = list(zip(starts, heights, strict=True))
    near = sum(start <= 1 for start in starts)
    chords = [(f, at) for at, (_, f) in enumerate(points[:near])]
    for at, (far, high) in enumerate(points[near:], near):
        chords += [(f + (high - f) * (1 - start) / (far - start), at) for start, f in points[:near]]
    return max(chords, key=lambda one: one[0])


@lru_cache(maxsize=64)
def profile(records: int, mu: float, told: float = TOLD) -> Profile | None:
    """A privacy profile of one epoch with a secret order of n = `records` rows: a function from ε ≥ 0 to δ, valid in
    both directions. None if no number of moves that is tried (see the module's docstring) helps.

    Any two of n ≥ 2 records are at most μ ≥ 0 standard deviations of the noise apart; the result is None for μ below
    0.001 or above 1.5. `told` in (0, 0.5] is the desired probability with which the proof reveals the row: at a δ below
    it, the order gains little. With many records and a small `told`, the computation takes up to 10 seconds for μ ≤
    1.1, and up to 16 seconds for larger μ.

    Source: derived in the module's docstring.
    """
    n, m = validate.whole("records", records, least=2), validate.real("mu", mu, least=0)
    p = validate.real("told", told, above=0, most=0.5)
    found = hiding(min(n, _MOST_RECORDS), m, p) if SMALLEST_SHIFT <= m <= LARGEST_SHIFT else None
    if found is None:
        return None
    ratios, deltas = _table(found, m, partial(hidden_delta, kinds=FINE_KINDS), _NODES)

    def both(epsilon: Array) -> Array:
        inside = np.interp(np.exp(np.minimum(epsilon, 700)), ratios, deltas)
        return np.asarray(np.minimum(gaussian.profile(m)(epsilon), inside))

    return both


def hiding(records: int, mu: float, told: float = TOLD) -> Hiding | None:
    """Choose the limits g_s, the weights W_s and the probability p of h_0, the bound on δ of an epoch.

    The proof in the module's docstring moves records in L steps. An estimate chooses the number n_l of records in each
    step, and the bound holds for every choice. The result is None if two rows of equal weight would hide the record
    better, by variance.
    """

    def rough(moves: list[int]) -> float:
        found = _built(moves, mu, told, _roughly, _POWERS[:_FEW_POWERS])
        if found is None:
            return inf
        spread = min(mu, _spread(mu) / sqrt(found.places))  # the shift of one epoch; TOLD / told epochs are composed
        return max(_rough_epsilon(found, mu, told), gaussian.epsilon(100 * TOLD, sqrt(TOLD / told) * spread))

    best = min(_choices(records), key=rough, default=[])
    found = _built(best, mu, told, hidden_delta)
    return found if found and found.places >= 2 else None


def _choices(records: int) -> Iterator[list[int]]:
    # n_L, …, n_1: most rows for the first move, and geometric numbers for the others
    few = ((2, 0.6), (2, 0.8)) if records < 1000 else ()
    for count, share in (*few, (2, 0.97), (2, 0.9), (3, 0.95), (3, 0.85), (4, 0.75), (4, 0.6), (5, 0.5)):
        parts = 3 ** np.arange(count - 1.0)
        rows = [int(part) for part in (records - 1) * (1 - share) * parts / parts.sum()]
        if rows[0] > 1:
            yield [*rows, int((records - 1) * share)]


def _built(
    moves: list[int], mu: float, told: float, hidden: Hidden, powers: Sequence[tuple[float, float]] = _POWERS
) -> Hiding | None:
    # the terms of h_0 for n_L, …, n_1 = `moves`; None if some move hides nothing, or there is no move
    found = Hiding()
    for left, rows in zip(range(len(moves))[::-1], moves, strict=True):
        table = _table(found, mu, hidden, _INNER_NODES if found.cases else (100, 20))
        found = _covered(table, rows, mu, told / 100 if left else told, powers)
        if not found.cases:
            return None
    return found if moves else None


def _table(found: Hiding, mu: float, hidden: Hidden, counts: tuple[int, int]) -> tuple[Array, Array]:
    # values of e^ε, and h_l at them; a divergence is convex in e^ε, so lines between them are bounds, too
    far = gaussian.epsilon(_TAIL, mu)
    near = min(_NEAR * _spread(mu) / sqrt(found.places), far / 2)
    nodes = np.concatenate([np.linspace(0, near, counts[0]), np.geomspace(near, far, counts[1])[1:]])
    return np.exp(nodes), np.minimum.accumulate([found.delta(one, mu, hidden) for one in nodes.tolist()])


def _rough_epsilon(found: Hiding, mu: float, told: float) -> float:
    # an estimate of the ε at δ = 100·told
    low, high = 0.0, gaussian.epsilon(_TAIL, mu)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if found.delta(middle, mu, _roughly) > 100 * told else (low, middle)
    return high


def _covered(
    table: tuple[Array, Array], rows: int, mu: float, told: float, powers: Sequence[tuple[float, float]]
) -> Hiding:
    # the terms of h_l with the best of several Ψ, chosen by an estimate; no cases if no Ψ hides the record
    known = np.append(np.geomspace(1, min(table[0][-1], rows), 2000), float(rows))
    shown = (1 + 1 / _REST) * np.interp(known, *table)
    shown[-1] = 0.0  # no row has a probability above 1
    first = int(np.argmax(shown <= told))
    cap = min(float(known[first]) / (1 - _REST), float(rows))
    levels = [*_FIRST_LEVELS]
    while levels[-1] < 1 / told:
        levels.append(_LEVELS * levels[-1])
    caps = 1 + np.geomspace(min(1e-3, cap / 100), max(cap - 1, 0.01), 200)
    found = []
    for power, share in powers:
        bends = _bends(caps, np.interp(caps, *table), power, share)
        cases = [
            (level, _majorant(*one, rows)) for level, one in zip(levels, _tops(bends, levels, rows, cap), strict=True)
        ]
        some = [_places(weights) >= 1.5 for _, weights in cases]
        kept = tuple(cases[: some.index(False)] if False in some else cases)
        if kept:
            found.append(Hiding(cases=kept, told=float(shown[first])))
    return min(found, key=lambda one: _rough_epsilon(one, mu, told), default=Hiding())


def _bends(caps: Array, deltas: Array, power: float, share: float) -> tuple[Array, Array, float]:
    # nodes y ≥ 0 from 0 on, Ψ/B there, and the slope of Ψ/B beyond the last node; `deltas` are h at the caps
    safe = np.maximum(deltas, 1e-300)
    widths = np.diff(caps, prepend=1.0), -np.diff(1 / caps, prepend=1.0)  # of κ, and of 1/κ
    calls, puts = np.zeros(caps.size), np.zeros(caps.size)
    for weight, densities in (
        (1.0, (safe**-power, (safe / caps) ** -power)),
        (share, (1 / caps / safe, caps**2 / safe)),
    ):
        call, put = widths[0] * densities[0], widths[1] * densities[1]
        size = weight / float(call @ safe + put @ (safe / caps))
        calls, puts = calls + size * call, puts + size * put
    bound = float(calls @ safe + puts @ (safe / caps))
    nodes = np.concatenate([[0.0], 1 / caps[::-1], caps])
    values = np.maximum(nodes[:, None] - caps, 0) @ calls + np.maximum(1 / caps - nodes[:, None], 0) @ puts
    return nodes, values / bound, float(calls.sum()) / bound


def _tops(
    bends: tuple[Array, Array, float], levels: list[float], rows: int, cap: float
) -> Iterator[tuple[Array, Array]]:
    # for each level g_s, slopes κ as multiples of a unit, and e(κ)
    nodes, values, slope = bends
    p = np.concatenate([np.geomspace(1 / rows, 0.9, 60), 1 - np.geomspace(0.1, 1e-3, 10)[1:]])

    def uneven(a: Array) -> Array:
        b = np.maximum((1 - p * a) / (1 - p), 1e-12)
        beyond = slope * np.maximum(a - nodes[-1] * b, 0)
        both = b * np.interp(np.minimum(a / b, nodes[-1]), nodes, values) + beyond + a * np.interp(b / a, nodes, values)
        return np.asarray(p * (1 - p) * both)

    most = np.broadcast_to(np.minimum(cap, 1 / p), (len(levels), p.size))
    allowed = np.array(levels)[:, None] / (1 - _REST)
    low, high = np.ones_like(most), most.copy()
    for _ in range(30):
        middle = (low + high) / 2
        fits = uneven(middle) <= allowed
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    for one in np.minimum.accumulate(high, axis=1):
        sums, means = np.append(np.minimum(p * one, 1.0), 1.0), np.append(cap, one)
        tangents = np.interp(_SHARES, p, np.diff(sums) / np.diff(np.append(p, 1.0)))
        multiples = np.unique(np.maximum(np.rint(np.append(_UNITS * tangents, ceil(_UNITS * cap))), 1))
        gains = sums * np.maximum(1 - multiples[:, None] / _UNITS / means, 0)
        yield multiples, gains.max(1)


def _majorant(multiples: Array, excess: Array, rows: int) -> RowWeights:
    # the weights W of a case; `multiples` are slopes κ in units, and `excess` is e(κ), 0 for the last slope
    few = min(rows, 256)
    starts = np.unique(np.append(np.arange(few), np.geomspace(few, rows, 100)[:-1].astype(int)))

    def sums(k: Array) -> Array:
        reached = multiples[:, None] * k + _UNITS * rows * excess[:, None]
        return np.asarray(np.min(reached, axis=0, initial=float(_UNITS * rows)))

    grown = sums(starts + 1.0) - sums(starts + 0.0)
    rounded = np.unique(np.append(multiples, np.ceil(multiples[-1] * 1.25 ** -np.arange(60.0))))
    weights = rounded[np.searchsorted(rounded, grown - 1e-9)].astype(int)
    left, kept = floor(_UNITS * rows * (1 - 1e-8)), dict[int, int]()  # 1e-8 outweighs the 1e-9 above
    for weight, count in zip(weights.tolist(), np.diff(np.append(starts, rows)).tolist(), strict=True):
        fits = min(count, left // weight)
        kept[weight], left = kept.get(weight, 0) + fits, left - fits * weight
        if fits < count:
            break
    return tuple((weight, count) for weight, count in sorted(kept.items()) if count)


def _places(rows: RowWeights) -> float:
    """The number of equally weighted rows whose sum has the same variance as the sum of `rows`; 0 without rows."""
    return sum(r * k for r, k in rows) ** 2 / max(sum(r * r * k for r, k in rows), 1)


def _roughly(epsilon: float, mu: float, rows: RowWeights) -> float:
    # an estimate of F, not a bound: the larger value of a normal approximation and of the largest term alone
    spread = _spread(mu) / sqrt(_places(rows))
    normal = _gaussian_delta(epsilon, spread) if spread < mu else 1.0
    largest = _gaussian_delta(log1p(sum(r * k for r, k in rows) / rows[-1][0] * expm1(epsilon)), mu)
    return max(normal, largest)


def _spread(mu: float) -> float:
    # 1.2 times the standard deviation of X − X' for records that are μ apart from each other
    return 1.2 * sqrt(2 * (exp(mu * mu) - exp(mu * mu / 2)))


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """δ at ε ≥ 0 of a Gaussian release of shift μ > 0, raised by 1e-16; faster than `gaussian.delta` for one number."""
    a, b = (mu / 2 - epsilon / mu) / sqrt(2), (mu / 2 + epsilon / mu) / sqrt(2)
    return max((erfc(-a) - exp(epsilon) * erfc(b)) / 2, 0.0) + 1e-16
