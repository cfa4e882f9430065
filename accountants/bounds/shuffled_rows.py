r"""Rows that a secret uniform order deals: what a shuffled epoch hides, if every row is released alone.

A client deals its n records to n rows in an order that is uniform and that nobody learns, and each row gets fresh
noise N(0, 1). One record is x or x'; any two of all records are at most μ apart. For α = e^ε, the epoch's hockey-stick
divergence is at most h_0(ε), where

    h_L(ε) = H(ε),    h_l(ε) = p·H(ε) + (1 − p)·f_m(ε),    p = (1 + 1/θ)·h_{l+1}(ln κ),    m = ⌊(1 − θ)·n_{l+1}/κ⌋.

H is the profile of N(μ, 1) against N(0, 1): the place is told. n_1 + … + n_L < n; every κ ≥ 1 and θ in (0, 1) holds.
f_m bounds a record that hides in m places, each of which holds another record instead.

**Proof.** Draw an order, then move some records: the first to the row of one of n_1 others, this one to the row of one
of n_2 further ones, and so on; the last goes to the first's row. Drawn uniformly, the moves leave the order uniform.
Tell the order before the moves (joint convexity). Let Y_l(o) be the law of all rows that are reached after record o has
left the l-th set: Y_L(o) = N(o, 1), and Y_l(o) is a mean over i of o in row i beside Y_{l+1}(o_i). Its second part has
the same law for all o, and gives row i a probability w_i. The mean of η = Σ(w_i − κ/n_{l+1})₊ is at most
h_{l+1}(ln κ), by convexity again. With probability η, or if η > θ, tell the row. Otherwise no row has a probability
above 1/m, so that these are a mixture of uniform ones over m rows. Tell which.

**f_m.** Against rows that hold the other records, o and o' in row i have likelihood ratios X and X'. So f_m is the
mean of (Σ(X_i − e^ε·X'_i))₊/m over independent rows. It increases in the convex order of each term. In this order all
terms have a least upper bound, whose E(V − c)₊ is the largest over all triples of records that are at most μ apart
(`third_record.triples`). It is moved to a grid by connecting the dots, which makes it larger, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import erfc, exp, expm1, floor, log, log1p, pi, sqrt
from typing import TypeAlias

import numpy as np
from scipy import fft
from scipy.optimize import brentq
from scipy.special import ndtr

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.allocation import ToldPlaces
from privkit.accountants.bounds.loss_distribution import Profile
from privkit.accountants.bounds.step import Pairs
from privkit.accountants.bounds.third_record import Gram, triples
from privkit.shared.array import Array

SMALLEST_SHIFT, LARGEST_SHIFT = 1e-3, 1.5
"""μ below which there is little to gain, and above which sums of likelihood ratios need too large a grid."""
_MOST_RECORDS = 1_000_000
"""Records of one profile; more hide better, so that this number bounds them, too."""
_LARGEST_WINDOW = 2**21
"""Nodes of a sum's window."""
_TAIL, _LOW_TAIL = 1e-12, 1e-9
"""Mean excess of a term above its grid, which is added to δ, and below it, which is moved up."""
_FINE, _COARSE = 8, 12
"""Nodes in a term's standard deviation near its mean, and in its distance to the mean far from it."""
_FADES = 46.0
"""Exponent after which what a sum exceeds its window by is lost in rounding, and is added."""
_MOST_TILT = 20.0
"""Largest exponent of a tilted term."""
_COVER = triples((0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0), (0.0, 0.6, 0.85, 0.95, 1.0))
ALL_TRIPLES = tuple(dict.fromkeys([*_COVER, *((b, a, c) for a, b, c in _COVER)]))
"""Matrices that exceed those of all triples, in both orders of x and x'; more of them would lower ε by a hundredth."""
_WIDE = 10.0
"""Standard deviations of a normal variable that integrals reach."""
_PROFILE_NODES, _FAR_NODES, _NEAR = 24, 10, 7.0
"""Values of ε at which a profile is computed, near and far; it is interpolated in e^ε, from above. Near are those up to
so many standard deviations."""
TOLD = 1e-7
"""Wanted probability that a row is told in some epoch of a run; δ far below it gains nothing from the order."""


@dataclass(frozen=True, kw_only=True)
class ShuffledRows(ToldPlaces):
    """One epoch, in which a secret uniform order deals the records of a client to rows, each released alone.

    Its Rényi curve and its shift are charged as if the places were told; the hidden places count in `pairs`.

    Attributes:
        records: n ≥ 2.
        mu: largest distance of two records over the noise's standard deviation, ≥ 0.
    """

    chosen: int = 1
    records: int

    @property
    def how(self) -> str:
        return ", a secret order of rows"

    @property
    def profile_source(self) -> str:
        return "derived: shuffled_rows.py"

    def pairs(self, count: int) -> Pairs | None:
        hidden = profile(self.records, self.mu, TOLD / count)
        return None if hidden is None else [(hidden, count)]


@dataclass(frozen=True, kw_only=True)
class Hiding:
    """What h_l is made of.

    Attributes:
        places: m ≥ 1.
        told: p, the probability that the row is told, in [0, 1].
    """

    places: int
    told: float


@lru_cache(maxsize=64)
def profile(records: int, mu: float, told: float = TOLD) -> Profile | None:
    """A profile of one epoch, in both directions; None if no number of moves is known to hide anything.

    It takes up to three seconds, and ten for a million records.

    Args:
        records: n ≥ 2.
        mu: largest distance of two records over the noise's standard deviation, ≥ 0; None below .001 and above 1.5.
        told: wanted probability that the row is told, > 0; no δ below it is small.

    Source: derived, see above.

    >>> hidden = profile(1000, 0.3)
    >>> bool(hidden(np.array(0.05)) < 1e-6 < gaussian.delta(1.0, 0.3))
    True
    """
    n, m = validate.whole("records", records, least=2), validate.real("mu", mu, least=0)
    found = hiding(min(n, _MOST_RECORDS), m, told) if SMALLEST_SHIFT <= m <= LARGEST_SHIFT else None
    if found is None:
        return None
    spread, far = _spread(m) / sqrt(found.places), gaussian.epsilon(_TAIL, m)
    near = min(_NEAR * spread, far / 2)
    nodes = np.concatenate([np.linspace(0, near, _PROFILE_NODES), np.geomspace(near, far, _FAR_NODES)[1:]])
    hidden = np.minimum.accumulate([hidden_delta(float(one), m, found.places) for one in nodes])

    def both(epsilon: Array) -> Array:
        place_told = np.exp(gaussian.log_delta(epsilon, m))
        inside = np.interp(np.exp(np.minimum(epsilon, 700)), np.exp(nodes), hidden)
        return np.asarray(np.minimum(place_told, found.told * place_told + (1 - found.told) * inside))

    return both


def hiding(records: int, mu: float, told: float = TOLD) -> Hiding | None:
    """h_0 for the moves that hide best by a normal approximation; None if they leave less than two places.

    What is approximated is only which moves to make.

    >>> hiding(1000, 0.3).places > 500, hiding(1000, 1.5)
    (True, None)
    """

    def places(moves: Moves) -> int:
        roughly = _built(moves, mu, _roughly)
        return roughly.places if roughly else 0

    best = max(_choices(records, told), key=places, default=[])
    found = _built(best, mu, hidden_delta) if places(best) >= 2 else None
    return found if found and found.places >= 2 else None


Moves: TypeAlias = list[tuple[int, float, float]]
"""From the last to the first: n_l, the wanted probability that a row is told, and θ."""


def _choices(records: int, told: float) -> Iterator[Moves]:
    """Moves worth trying: most rows for the first; to the others, geometric numbers and probabilities."""
    shares = 0.5, 0.65, 0.8, 0.9, 0.95, 0.98
    for count, share, ratio, last, theta in product((2, 3, 4, 5, 7), shares, (2.0, 5.0), (0.1, 0.003), (0.02, 0.08)):
        parts = ratio ** np.arange(count - 1.0)
        rows = [int(part) for part in (records - 1) * (1 - share) * parts / parts.sum()]
        others = [last, *np.geomspace(last, told / 10, count - 1)[1:].tolist()] if count > 2 else [told / 10]
        if rows[0] > 0:
            moves = [(part, one, 0.08) for part, one in zip(rows, others, strict=True)]
            yield [*moves, (int((records - 1) * share), told, theta)]


def _built(moves: Moves, mu: float, hidden: Callable[[float, float, int], float]) -> Hiding | None:
    """h_0; None if some move leaves no place, or there is none."""
    found: Hiding | None = None
    for rows, told, theta in moves:

        def shown(cap: float, before: Hiding | None = found, theta: float = theta) -> float:
            return (1 + 1 / theta) * _level(cap, mu, before, hidden)

        def above(cap: float, shown: Callable[[float], float] = shown, told: float = told) -> float:
            return log(max(shown(cap), 1e-300) / told)

        highest = mu * mu / 2 + 10 * mu  # there even a told place has δ < 1e-20
        cap = brentq(above, 0.0, highest, xtol=1e-4, rtol=1e-2) if above(0.0) > 0 else 0.0
        places = floor((1 - theta) * rows * exp(-cap))
        if places < 1:
            return None
        found = Hiding(places=places, told=min(shown(cap), 1.0))
    return found


def _level(epsilon: float, mu: float, level: Hiding | None, hidden: Callable[[float, float, int], float]) -> float:
    """h_l(ε)."""
    place_told = _gaussian_delta(epsilon, mu)
    if level is None:
        return place_told
    return min(place_told, level.told * place_told + (1 - level.told) * hidden(epsilon, mu, level.places))


def _roughly(epsilon: float, mu: float, places: int) -> float:
    """f_m by a normal variable and by its largest term alone: no bound."""
    spread = _spread(mu) / sqrt(places)
    normal = _gaussian_delta(epsilon, spread) if spread < mu else 1.0
    largest = _gaussian_delta(log1p(places * expm1(epsilon)), mu)
    return min(max(normal, largest), _gaussian_delta(epsilon, mu))


def _spread(mu: float) -> float:
    """Standard deviation of X − X' for records that are μ apart from each other, and a fifth more."""
    return 1.2 * sqrt(2 * (exp(mu * mu) - exp(mu * mu / 2)))


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """H(ε), for scalars: `gaussian.delta` is for arrays. An upper bound up to rounding of 1e-16."""
    a, b = (mu / 2 - epsilon / mu) / sqrt(2), (mu / 2 + epsilon / mu) / sqrt(2)
    return max((erfc(-a) - exp(epsilon) * erfc(b)) / 2, 0.0) + 1e-16


def hidden_delta(epsilon: float, mu: float, places: int, triples: tuple[Gram, ...] = ALL_TRIPLES) -> float:
    """f_m(ε), an upper bound: a record hides in one of m places, which hold other records else.

    The sum is tilted by e^{ts} before its law is computed, so that rounding is small beside a small δ.

    >>> [round(hidden_delta(0.2, 0.5, m), 5) for m in (1, 10, 100)]
    [0.12545, 0.01737, 2e-05]
    """
    nodes, masses, interval, beyond = _term(epsilon, mu, triples)
    mean = float(masses @ nodes)
    spread = sqrt(float(masses @ (nodes - mean) ** 2))
    tilt = min((3 - min(mean, 0.0) * sqrt(places) / spread) / (spread * sqrt(places)), _MOST_TILT / float(nodes[-1]))
    tilted = masses * np.exp(tilt * nodes)
    total = float(tilted.sum())
    mean = float(tilted @ nodes) / total
    spread = sqrt(max(float(tilted @ nodes**2) / total - mean**2, 0.0))
    low, top = min(0.0, places * mean - 12 * spread * sqrt(places)), _FADES / tilt
    if top - low > _LARGEST_WINDOW * interval and places > 1:
        return hidden_delta(epsilon, mu, places // 2, triples)  # fewer places hide less
    first = floor(low / interval)
    size = fft.next_fast_len(int(top / interval) - first + 2, real=True)
    law = np.zeros(size)
    np.add.at(law, np.rint(nodes / interval).astype(int) % size, tilted / total)
    spectrum = fft.rfft(law) ** places
    masses_of_sum = np.maximum(fft.irfft(spectrum, size), 0.0)
    count = size + first  # nodes of the sum from 0 on
    sums = interval * np.arange(count)
    above = float(np.einsum("i,i->", sums * np.exp(-tilt * sums), masses_of_sum[:count]))
    norm = sqrt(float(np.mean(np.abs(spectrum) ** 2)) * size)
    rounding = np.finfo(float).eps * (16 * places + 8 * log(size)) * norm * exp(-1) / tilt
    outside = interval * count * exp(-tilt * interval * count)
    scale = exp(min(places * log(total), 700.0)) / places
    return float(min(scale * (above + rounding + outside) + beyond, gaussian.delta(epsilon, mu)))


@lru_cache(maxsize=256)
def _term(epsilon: float, mu: float, triples: tuple[Gram, ...]) -> tuple[Array, Array, float, float]:
    """The least upper bound of X − e^ε·X' on a grid: nodes, masses, the nodes' interval, and E(V − top)₊."""
    scale, mean = exp(epsilon), -expm1(epsilon)
    matrices = [tuple(mu**2 * one for one in matrix) for matrix in triples]
    a, b, c = np.array(matrices).T
    spread = sqrt(float(np.max(np.exp(a) + scale**2 * np.exp(b) - 2 * scale * np.exp(c) - mean**2)))
    top = exp(gaussian.epsilon(_TAIL, 1.05 * mu))
    bottom = -scale * exp(gaussian.epsilon(_LOW_TAIL, 1.05 * mu))
    interval = spread / _FINE
    places = [0]
    while places[-1] * interval < top - mean + 2 * interval:
        places.append(places[-1] + max(1, places[-1] // _COARSE))
    below = [0]
    while below[-1] * interval > bottom - mean:
        below.append(below[-1] - max(1, -below[-1] // _COARSE))
    strikes = (np.array([*below[:0:-1], *places]) + round(mean / interval)) * interval
    values = np.max([excess(strikes, epsilon, *matrix) for matrix in matrices], axis=0)
    first = max(int(np.argmax(values - (mean - strikes) > _LOW_TAIL)) - 1, 0)
    last = (
        max(int(np.argmax(values <= _TAIL)), int(np.argmax(strikes > 0))) if values[-1] <= _TAIL else strikes.size - 1
    )
    strikes, values = strikes[first : last + 1], values[first : last + 1]
    slopes = np.minimum(np.maximum.accumulate(np.maximum(np.diff(values) / np.diff(strikes), -1.0)), 0.0)
    masses = np.diff(np.concatenate([[-1.0], slopes, [0.0]]))
    return strikes, masses, interval, float(values[-1])


def excess(strikes: Array, epsilon: float, a: float, b: float, c: float) -> Array:
    """[K] E(X − e^ε·X' − k)₊ at strikes k; ln X has the variance a > 0, ln X' the variance b > 0; their covariance c.

    Both have mean 1, and c² < a·b. Given ln X', this is a call of Black and Scholes; given ln X, a put. The mean over
    what is given is a sum over equidistant nodes, which converges exponentially: where the other's strike is positive.

    >>> excess(np.array([0.0, -1.0]), 0.0, 1.0, 1e-12, 0.0).round(6).tolist()  # X' = 1
    [0.382925, 1.0]
    """
    values, scale, above = np.empty(strikes.size), exp(epsilon), strikes >= 0
    values[above] = _priced(strikes[above], scale, 1.0, (b, a, c), call=True)
    values[~above] = _priced(-strikes[~above], 1.0, scale, (a, b, c), call=False)
    return values


def _priced(strikes: Array, given: float, free: float, matrix: Gram, *, call: bool) -> Array:
    """[K] mean call or put on `free` times a variable, at strikes k ≥ 0 plus `given` times another."""
    (a, b, c), side = matrix, sqrt(matrix[0])
    shift, left = c / side, sqrt(b - c * c / a)
    step = min(0.5 * min(1.0, left / (side + abs(shift))), 0.5 / side)
    z = np.arange(min(0.0, shift, side) - _WIDE, max(0.0, shift, side) + _WIDE, step)
    weights = np.exp(-z * z / 2) * (step / sqrt(2 * pi))
    forward = free * np.exp(shift * z - shift**2 / 2)
    strike = given * np.exp(side * z - a / 2) + strikes[:, None]
    d, sign = np.log(forward / strike) / left, 1 if call else -1
    return np.asarray((sign * (forward * ndtr(sign * (d + left / 2)) - strike * ndtr(sign * (d - left / 2)))) @ weights)
