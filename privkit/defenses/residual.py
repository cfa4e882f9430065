"""Tests whether noise follows the declared law, from a release and its clean copy, or from many releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, chdtr, chdtrc, erf
from torch import Tensor

from privkit.shared.array import Array

Law = Literal["gaussian", "laplace"]  # laws whose tests are derived

LEVEL = 1e-6
"""Probability that correct noise is refuted: by any test of `refuted_by`, or by a single test of `unlike`."""
ROUNDED = 0.01  # share by which noise may be below the declared scale, since 0.67 can stand for 2/3
_TESTS = 8
_FLOAT = 2.0**-21  # relative error of a float32 number that was computed in a few steps
_MOST = 256  # largest number of rows or columns whose combinations are tested; from more, some are drawn at random
_FAR = 1e100  # largest difference in units of the scale; larger ones are cut, so that squares stay finite
_PAIRED = 96  # largest number of rows or columns whose pairs are compared; from more, some are drawn at random
_REPEATS = 0.1  # noise counts as rounded if a larger share of draws equals another draw of the same coordinate


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Properties of a noise law at scale 1 that the tests use."""

    deviation: float  # standard deviation
    power: int  # the sum of (2/power)·|x|^power over N numbers is chi-squared with 2N/power degrees of freedom
    absolute: Callable[[Any], Any]  # distribution function of |x|
    apart: Callable[[Any], Any]  # distribution function of the distance of two numbers
    margin: float  # margin of the smallest singular value of a matrix of draws, in standard deviations


_SHAPES = {
    "gaussian": _Shape(
        deviation=1.0,
        power=2,
        absolute=lambda x: erf(x / sqrt(2)),
        apart=lambda x: erf(x / 2),
        margin=sqrt(-2 * log(LEVEL)),
    ),
    "laplace": _Shape(
        deviation=sqrt(2),
        power=1,
        absolute=lambda x: -np.expm1(-x),
        apart=lambda x: 1 - np.exp(-x) * (1 + x / 2),
        margin=8.0,
    ),
}


def _shape(law: str) -> _Shape:
    if law not in _SHAPES:
        raise ValueError(f"noise is compared with these laws: {', '.join(_SHAPES)}; no test is derived for {law!r}")
    return _SHAPES[law]


def refuted_by(
    clean: Tensor, released: Tensor, *, law: Law, scale: float | Tensor, level: float = LEVEL, blur: float = 0.0
) -> str:
    """Test whether `released − clean`, both float [N, ...], can be independent noise of the given law and scale.

    Returns the first finding as a clause that can follow "but", or "". Most tests look for less noise than declared: in
    total, in one of the N records, in one coordinate over all records, and in sums, differences and other linear
    combinations of records or coordinates. If `clean` is wrong but independent of the noise, the difference only
    becomes larger, so these tests raise no false alarm. The last test checks the distribution; it runs only if the
    difference has the declared size, because a wrong `clean` changes the distribution, too.

    Args:
        scale: standard deviation σ > 0, or b > 0 for Laplace noise; a tensor that broadcasts to `released`. Numbers
            with scale 0 have no noise and are not tested.
        level: the probability, in (0, 1), that correct noise fails some test.
        blur: standard deviation of the error of `clean`, if it is known, for example if `clean` is a mean.

    Source: derived from Anderson 1955: a shift only enlarges symmetric noise with one peak. For Gaussian noise this
    holds in any fixed subspace; here subspaces are chosen on one half of the data and tested on the other. The
    distribution of absolute values is tested by Kolmogorov–Smirnov with the constant of Massart 1990. A small shift
    changes this distribution only to second order.
    """
    for odds, sentence in _tests(clean, released, law, scale, level / _TESTS, blur):
        if odds < level / _TESTS:
            return f"{sentence} (p = {odds:.1g})" if odds > 1e-300 else f"{sentence} (p < 1e-300)"
    return ""


def _tests(
    clean: Tensor, released: Tensor, law: Law, scale: float | Tensor, level: float, blur: float
) -> Iterator[tuple[float, str]]:
    """For each of at most `_TESTS` tests: its p-value under the declared noise, and its finding in words."""
    z, slack, held = _standardized(clean, released, scale)
    size, freedom, power = _sizes(np.abs(z) + slack, held, law)
    noise = f"the declared {law.capitalize()} noise"
    odds, _, found = _lacking(size.reshape(1, -1).sum(1), freedom.reshape(1, -1).sum(1), power)
    yield odds, f"what was added has {found:.3f} times the size of {noise}"
    odds, place, found = _lacking(size.sum(1), freedom.sum(1), power)
    yield odds, f"row {place} got {found:.3f} times {noise}"
    odds, place, found = _lacking(size.sum(0), freedom.sum(0), power)
    yield odds, f"number {place} of every row got {found:.3f} times {noise}"
    if not (held.all() and np.isfinite(z).all()):
        return
    for name, side in (("numbers of a row", z), ("rows", z.T)):
        odds, found = _repeated(side, law, 2 * float(slack.max()))
        yield odds, f"two {name} got the same noise, up to its sign and {found:.2g} of the declared scale"
        if law == "gaussian":
            odds, found = _tied(side)
            yield odds, f"some combinations of {name} got {found:.3f} times {noise}"
    ratio = float(size.mean() / freedom.mean()) / (1 + (blur / float(scale) if blur else 0.0) ** 2)
    if _as_declared(ratio, float(freedom.sum()), power, level) and (law == "gaussian" or not blur):
        odds = _other_law(np.abs(z).ravel(), law, ratio)
        yield odds, "what was added has the size of the declared noise, but not its law"


def times_declared(clean: Tensor, released: Tensor, *, law: Law, scale: float | Tensor) -> float:
    """Size of `released − clean` divided by the expected size of the declared noise, ≥ 0; about 1 for correct noise.

    The size is a root mean square for Gaussian noise, and a mean absolute value for Laplace noise.
    """
    z, _, held = _standardized(clean, released, scale)
    size, freedom, power = _sizes(np.abs(z), held, law)
    ratio = float(size.sum()) / max(1.0, float(freedom.sum()))
    return ratio if power == 1 else sqrt(ratio)


def _standardized(clean: Tensor, released: Tensor, scale: float | Tensor) -> tuple[Array, Array, NDArray[np.bool_]]:
    """The added noise [N, D] in units of its scale, its float32 rounding error [N, D], and a mask of noisy entries."""
    a, c = (side.detach().cpu().flatten(1).double().numpy() for side in (released, clean.expand_as(released)))
    if isinstance(scale, Tensor):
        s = scale.detach().cpu().double().expand(released.shape).flatten(1).numpy()
    else:
        s = np.full_like(a, scale)
    held = s > 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(held, (a - c) / s, 0.0)
        slack = np.where(held, np.maximum(np.abs(a), np.abs(c)) * _FLOAT / s, 0.0)
    return z.clip(-_FAR, _FAR), slack.clip(max=_FAR), held  # clipped, so that sums of squares are finite


def _sizes(absolute: Array, held: NDArray[np.bool_], law: str) -> tuple[Array, Array, int]:
    """Terms of a chi-squared sum made from noise values, their degrees of freedom, and the power of |x| in a term."""
    power = _shape(law).power
    with np.errstate(over="ignore"):
        size = 2 / power * absolute**power
    return size, 2 / power * held.astype(np.float64), power


def _lacking(total: Array, freedom: Array, power: int) -> tuple[float, int, float]:
    """Find the chi-squared sum that is least likely to be so small under the declared noise. Returns its p-value
    (corrected for the number of sums), its index, and its size relative to the expected one."""
    known = freedom > 0
    ratio = np.where(known, total / np.maximum(freedom, 1.0), 1.0)
    odds = np.where(known & (ratio < (1 - ROUNDED) ** power), chdtr(np.maximum(freedom, 1.0), total), 1.0)
    place = int(np.lexsort((ratio, odds))[0])
    return float(odds[place]) * int(known.sum()), place, float(ratio[place]) ** (1 / power)


def _as_declared(ratio: float, freedom: float, power: int, level: float) -> bool:
    """Whether released minus clean data are no larger than the declared noise, up to chance or rounding; otherwise the
    clean data may be wrong, and the noise's law is not tested."""
    likely = freedom > 0 and bool(chdtrc(freedom, ratio * freedom) > level)
    return likely or (1 - ROUNDED) ** power < ratio < (1 + ROUNDED) ** power


def _repeated(z: Array, law: Law, slack: float) -> tuple[float, float]:
    """Test whether two columns of standardized noise z [N, D] are nearly equal or opposite.

    Returns the p-value, corrected for the number of pairs, and the least likely difference. The test compares, over N
    records, the median and the maximum of the two columns' absolute differences (or sums) with independent noise;
    rounding may change a difference by `slack`.
    """
    part = _some(z, _MOST, _PAIRED)
    rows, columns = part.shape
    if columns < 2:
        return 1.0, 1.0
    ranks = np.array([(rows - 1) // 2, rows - 1])
    least = np.full(2, np.inf)
    for number, one in enumerate(part.T[:-1]):
        others = part[:, number + 1 :]
        for apart in (others - one[:, None], others + one[:, None]):
            least = np.minimum(least, np.partition(np.abs(apart), ranks, axis=0)[ranks].min(1))
    least += slack
    odds = betainc(ranks + 1, rows - ranks, _shape(law).apart(least))  # that more than `ranks` rows lie below `least`
    return 2 * columns * (columns - 1) * float(odds.min()), float(least[odds.argmin()])


def _tied(z: Array) -> tuple[float, float]:
    """Test whether linear combinations of the columns of standardized noise z [N, D] have too little noise.

    Returns the p-value, corrected for the number of combinations, and the least likely combination's size relative to
    its expected size. Combinations are chosen on one half of the N records and tested on the other.
    """
    part = _some(z, 8 * _MOST, _MOST)
    rows, columns = part.shape
    if rows < 4 or columns < 2:
        return 1.0, 1.0
    seen, fresh = part[: rows // 2], part[rows // 2 :]
    weakest = np.linalg.eigh(seen.T @ seen)[1]  # the combinations with the least noise come first
    counts = 2 ** np.arange(columns.bit_length() - 1)
    sums = ((fresh @ weakest) ** 2).sum(0).cumsum()[counts - 1]
    odds, _, found = _lacking(sums, counts * float(len(fresh)), 2)
    return odds, found


def _some(z: Array, rows: int, columns: int) -> Array:
    draws = np.random.default_rng(0)
    return z[draws.permutation(len(z))[:rows]][:, draws.permutation(z.shape[1])[:columns]]


def _other_law(absolute: Array, law: Law, ratio: float) -> float:
    """Test whether absolute noise values follow the declared law (Kolmogorov–Smirnov); returns the p-value.

    The noise is the release minus a computed noise-free release. For Gaussian noise, an error in this computed release
    changes the law only to second order. For Laplace noise, it flattens the peak by at most `ratio` − 1, the growth of
    the noise's size, up to a random error; the test allows for this.
    """
    n, shape = len(absolute), _shape(law)
    if law == "gaussian":
        size, allowed = sqrt(float((absolute**2).mean())), 0.0
    else:
        size, allowed = float(absolute.mean()), max(0.0, ratio - 1 + 5 / sqrt(n))
    expected = shape.absolute(np.sort(absolute) / size)
    exponent = 2 * n * max(0.0, _furthest(expected) - allowed) ** 2
    return 2 * exp(-exponent) if exponent > log(2) else 1.0


def unlike(draws: Array, law: str) -> str:
    """Test whether draws [K, p] are independent noise of the given law with scale 1; return a finding, or "".

    A draw is the noise in p < K coordinates of one of K releases of the same data. Each column's mean is subtracted.
    Five tests check the size of the noise in its weakest direction, the distribution of its numbers, its size over all
    coordinates of one draw, its largest number, and repeated numbers. Noise that is shared, mirrored or missing leaves
    a direction with little noise; clamped noise has no tail; rounded noise repeats.

    Source: Davidson and Szarek 2001, Theorem II.13, for the smallest singular value of Gaussian noise; Bai and Yin 1993
    for Laplace noise, here with a wider margin; Massart 1990, Corollary 1 (Dvoretzky–Kiefer–Wolfowitz).
    """
    shape, (k, p) = _shape(law), draws.shape
    if p > 1 and (np.diff(np.sort(draws, 0), axis=0) == 0).mean() > _REPEATS:
        return "its numbers repeat, as rounded or constant ones do"
    apart = (draws - draws.mean(0)) * sqrt(k / (k - 1))
    smallest = sqrt(max(0.0, np.linalg.eigvalsh(apart.T @ apart / k)[0])) / shape.deviation
    if smallest < 1 - (sqrt(p) + shape.margin) / sqrt(k):
        return (
            f"it has standard deviation {smallest * shape.deviation:.4g} in its quietest direction, where "
            f"{shape.deviation:.4g} is declared"
        )
    if not _follows(apart.ravel(), lambda x: (1 + np.sign(x) * shape.absolute(np.abs(x))) / 2):
        deviates = apart.std()
        return f"its numbers have standard deviation {deviates:.4g} and do not follow the declared {law} law"
    size, freedom, _ = _sizes(np.abs(apart), np.ones_like(apart, dtype=bool), law)
    if not _follows(size.sum(1), lambda total: chdtr(freedom[0].sum(), total)):
        return "its coordinates depend on each other"
    furthest = float(np.abs(apart).max())
    if apart.size * np.log(shape.absolute(furthest)) < log(LEVEL):
        return f"none of {apart.size} numbers lies further than {furthest:.4g}, as if it were clamped"
    return ""


def _follows(values: Array, law: Callable[[Array], Array]) -> bool:
    n = len(values)
    return bool(_furthest(law(np.sort(values))) <= sqrt(log(2 / LEVEL) / (2 * n)))


def _furthest(expected: Array) -> float:
    """The Kolmogorov–Smirnov distance, in [0, 1]; `expected` is the distribution function at the sorted sample."""
    n = len(expected)
    return max(float((np.arange(1, n + 1) / n - expected).max()), float((expected - np.arange(n) / n).max()))
