"""How well scores separate two kinds of examples: AUC pooled and per batch with intervals, ROC, TPR at low FPR."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtri, stdtrit

from privkit.constraints import real
from privkit.shared.array import Array
from privkit.shared.interval import Interval, clopper_pearson

_Direction = Literal["higher", "lower", "none"]
_SURE = 3.5  # standard deviations from 1/2 beyond which a batch's area surely shows a leak
_DISJOINT = "Clopper–Pearson of disjoint pairs, since all scores lie on one side"


@dataclass(frozen=True, kw_only=True)
class Leak:
    """An area under the ROC curve (AUC), of all examples together or averaged over batches.

    Scores of different rounds are on different scales, so the area of all examples and the mean over batches differ.
    """

    auc: Interval  # in [0, 1]; 1/2 is chance; `n` counts examples
    batches: int = 1  # number of averaged batches; 1 if all examples share one curve
    skipped: int = 0  # number of batches with only one kind of examples, which have no area

    @property
    def advantage(self) -> float:
        """|AUC − 1/2| in [0, 1/2]; higher means a larger leak, in either direction. It exceeds 0 even by chance."""
        return abs(self.auc.value - 0.5)

    @property
    def direction(self) -> _Direction:
        """Whether positives have the "higher" or the "lower" scores, or "none" if the interval contains 1/2."""
        if self.auc.low <= 0.5 <= self.auc.high:
            return "none"
        return "higher" if self.auc.value > 0.5 else "lower"


def pooled_auc(scores: ArrayLike, positive: ArrayLike, *, confidence: float = 0.95) -> Leak:
    """Area under one ROC curve of all N examples, with its interval; the farther from 1/2, the larger the leak.

    The interval is DeLong's, on the scale ln(AUC/(1 − AUC)). It assumes independent examples; gradients of one batch
    are independent only given the weights. With few examples of a kind, DeLong's deviation is often too small. So the
    interval also includes every area that is compatible with the found area by Hanley and McNeil's deviation. If every
    positive example scores higher than every negative one (or lower), the limit is Clopper–Pearson's for the number of
    disjoint pairs. `scores` are finite [N], `positive` bool or 0/1 [N], with examples of both kinds.

    Source: Hanley and McNeil 1982; DeLong, DeLong and Clarke-Pearson 1988, by ranks as in Sun and Xu 2014; scikit-learn
    `roc_auc_score`.

    >>> pooled_auc([1, 3, 3, 4], [0, 0, 1, 1]).auc.value
    0.875
    """
    from sklearn.metrics import roc_auc_score

    values, truth = _scores_and_truth(scores, positive, confidence, both="pooled_auc")
    auc = float(roc_auc_score(truth, values))
    low, high, how = _delong(values[truth], values[~truth], auc, confidence)
    return Leak(auc=Interval(value=auc, low=low, high=high, n=values.size, confidence=confidence, method=how))


def per_batch_auc(scores: ArrayLike, positive: ArrayLike, batches: ArrayLike, *, confidence: float = 0.95) -> Leak:
    """Mean of the batches' areas under the ROC curve; batches with only one kind of examples are skipped.

    The interval is Student's over batches; with one batch it is the whole [0, 1]. `batches` [N] holds each example's
    batch as a whole number; the other arguments are as in `pooled_auc`. At least one batch needs examples of both
    kinds.

    Source: the released code of Li et al. 2021, "Label leakage and protection", which averages over batches and leaves
    out batches without positives; batches without negatives also have no area.
    """
    values, truth = _scores_and_truth(scores, positive, confidence)
    groups = np.asarray(batches)
    if groups.shape != values.shape or groups.dtype.kind not in "iu":
        given = f"{groups.dtype} of shape {list(groups.shape)}"
        raise ValueError(f"batches must be {values.size} whole numbers, one per example, got {given}")
    numbers, members = np.unique(groups, return_inverse=True)
    areas, counts = _areas(values, truth, members, len(numbers))
    kept = np.isfinite(areas)
    if not kept.any():
        raise ValueError("no batch holds both positive and negative examples, so none has an AUC; pool them")
    defined = areas[kept]
    auc, half = float(defined.mean()), np.inf
    if len(defined) > 1:
        half = float(stdtrit(len(defined) - 1, (1 + confidence) / 2) * defined.std(ddof=1) / len(defined) ** 0.5)
    area = Interval(
        value=auc,
        low=max(0.0, auc - half),
        high=min(1.0, auc + half),
        n=int(counts[kept].sum()),
        confidence=confidence,
        method="Student over batches",
    )
    return Leak(auc=area, batches=len(defined), skipped=int((~kept).sum()))


def opposed(scores: ArrayLike, positive: ArrayLike, batches: ArrayLike) -> str:
    """A sentence if some batches surely leak in one direction and others in the opposite direction; empty otherwise.

    The areas under the batches' ROC curves then cancel in the pooled area and in the mean, although each batch alone
    reveals which of its examples are positive. For the arguments see `per_batch_auc`.

    Source: the deviation of an area without a leak is that of Mann and Whitney 1947.
    """
    values, truth = _scores_and_truth(scores, positive, 0.5)
    _, members = np.unique(np.asarray(batches), return_inverse=True)
    areas, counts = _areas(values, truth, members, int(members.max()) + 1)
    kept, ones = np.isfinite(areas), np.bincount(members, weights=truth)
    areas, counts, ones = areas[kept], counts[kept], ones[kept]
    away = (areas - 0.5) / np.sqrt((counts + 1) / (12 * ones * (counts - ones)))
    if not len(away) or away.min() > -_SURE or away.max() < _SURE:
        return ""
    return (
        f"rounds leak in opposite directions (AUC {areas[away.argmin()]:.2f} in one, {areas[away.argmax()]:.2f} in "
        f"another), so neither the pooled AUC nor the mean over rounds shows the leak"
    )


def roc_points(scores: ArrayLike, positive: ArrayLike) -> tuple[Array, Array, Array]:
    """Corners of the ROC curve: false positive rates, true positive rates and thresholds, one array each.

    Rates rise from 0 to 1, thresholds fall from infinity. `scores` [N] holds a score for each of N examples, `positive`
    [N] whether each example is positive.

    Source: Fawcett 2006, Algorithm 1; scikit-learn `roc_curve`.
    """
    from sklearn.metrics import roc_curve

    values, truth = _scores_and_truth(scores, positive, 0.5, both="roc_points")
    false, true, thresholds = roc_curve(truth, values)
    return false, true, thresholds


def tpr_at(scores: ArrayLike, positive: ArrayLike, false_positive_rate: float, *, confidence: float = 0.95) -> Interval:
    """Largest true positive rate at a given false positive rate, with confidence limits; higher means a larger leak.

    The limits hold for the best threshold whose *true* false positive rate is allowed. The negatives determine this
    rate only roughly. So the lower limit uses a threshold that is surely high enough (at the stated confidence), and
    the upper limit a threshold that is surely low enough. With few negatives, no threshold is surely high enough: with
    fewer than 437 negatives, the lower limit at a rate of 1 % is 0. The arguments are as in `pooled_auc`.

    Source: Carlini et al. 2022, §III (the measure); Clopper and Pearson 1934. Derived: the false positive rate at the
    j-th largest of n negatives is Beta-distributed. The allowed error, 1 − `confidence`, is divided equally among four
    statements: the upper and the lower threshold, and the true positive rate at each.
    """
    values, truth = _scores_and_truth(scores, positive, confidence, both="tpr_at")
    members, others = values[truth], np.sort(values[~truth])[::-1]
    found = float(np.mean(members >= threshold_at(others, false_positive_rate)))
    sure, numbers = 1 - (1 - confidence) / 4, np.arange(len(others))
    at_most = bdtr(numbers, len(others), false_positive_rate)  # how surely the true rate is at least the allowed one
    low, high = 0.0, 1.0
    if (enough := numbers[1 - at_most >= sure]).size:
        above = int((members > others[enough[-1]]).sum())
        low = clopper_pearson(above, members.size, 1 - (1 - confidence) / 2).low
    if (enough := numbers[at_most >= sure]).size:
        reached = int((members >= others[enough[0]]).sum())
        high = clopper_pearson(reached, members.size, 1 - (1 - confidence) / 2).high
    method = "Clopper–Pearson, for the true false positive rate"
    return Interval(value=found, low=low, high=high, n=members.size, confidence=confidence, method=method)


def advantage(scores: ArrayLike, positive: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """The largest difference of true and false positive rate over all thresholds; higher means a larger leak.

    The limits are confidence bands that hold jointly for both distribution functions, so they also hold for the best
    threshold. The bands assume independent examples of each kind; canaries (records that were inserted for a test) of
    one batch are only roughly independent.

    Source: Yeom et al. 2018, Definition 4; the bands: Dvoretzky, Kiefer and Wolfowitz 1956, Massart 1990.
    """
    values, truth = _scores_and_truth(scores, positive, confidence)
    false, true, _ = roc_points(values, truth)
    found = float(np.max(true - false))
    members = int(truth.sum())
    half = sum(sqrt(log(4 / (1 - confidence)) / (2 * count)) for count in (members, truth.size - members))
    return Interval(
        value=found,
        low=max(0.0, found - half),
        high=min(1.0, found + half),
        n=truth.size,
        confidence=confidence,
        method="Dvoretzky–Kiefer–Wolfowitz bands of both kinds",
    )


def threshold_at(negatives: Array, false_positive_rate: float) -> float:
    """The smallest threshold that at most a given share in [0, 1) of the negative scores reaches."""
    real("false_positive_rate", false_positive_rate, least=0, below=1)
    allowed = min(floor(false_positive_rate * len(negatives) * (1 + 1e-12)), len(negatives) - 1)  # 0.29·100 is 29
    return float(np.nextafter(np.sort(negatives)[len(negatives) - 1 - allowed], np.inf))


def _scores_and_truth(
    scores: ArrayLike, positive: ArrayLike, confidence: float, both: str = ""
) -> tuple[Array, NDArray[np.bool_]]:
    """Check the scores [N] and the truth, bool [N]. `both` names a function that needs both kinds of examples."""
    values, truth = np.asarray(scores), np.asarray(positive)
    if values.ndim != 1 or not values.size or values.shape != truth.shape:
        raise ValueError(
            f"scores and positive must be lists of one length >= 1, got {list(values.shape)} and {list(truth.shape)}"
        )
    if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise ValueError("scores must be finite numbers: an attack that diverged has none")
    if truth.dtype.kind not in "biuf" or not np.isin(truth, (0, 1)).all():
        raise ValueError("positive must hold true and false, or 1 and 0")
    real("confidence", confidence, above=0, below=1)
    if both and not 0 < truth.sum() < truth.size:
        raise ValueError(f"{both} needs examples of both kinds, positive and negative")
    return values.astype(np.float64), truth.astype(bool)


def _delong(members: Array, others: Array, auc: float, confidence: float) -> tuple[float, float, str]:
    n, k = len(members), len(others)
    ranks = _ranks(np.concatenate([members, others]))
    above = (ranks[:n] - _ranks(members)) / k  # how many others each member beats
    below = 1 - (ranks[n:] - _ranks(others)) / n
    variance = (above.var(ddof=1) / n if n > 1 else np.inf) + (below.var(ddof=1) / k if k > 1 else np.inf)
    if not np.isfinite(variance):
        return 0.0, 1.0, "none: one example of a kind shows no variance"
    if not 0 < auc < 1 or variance == 0:
        worst = float(((1 - confidence) / 2) ** (1 / min(n, k)))
        if auc == 1:
            return worst, 1.0, _DISJOINT
        if auc == 0:
            return 0.0, 1 - worst, _DISJOINT
        return 0.0, 1.0, "none: scores all tie"
    half = ndtri((1 + confidence) / 2) * variance**0.5 / (auc * (1 - auc))
    odds = np.log(auc / (1 - auc))
    low, high = 1 / (1 + np.exp(-(odds - half))), 1 / (1 + np.exp(-(odds + half)))
    least, most = _hanley_mcneil(n, k, auc, confidence)
    wider = ", and Hanley–McNeil" if least < low or most > high else ""
    how = f"DeLong, on the logit scale{wider}"
    return float(min(low, least)), float(max(high, most)), how


def _hanley_mcneil(n: int, k: int, auc: float, confidence: float) -> tuple[float, float]:
    """Confidence limits of an AUC in (0, 1): the extreme true areas that are compatible with it, by Wilson's method.
    `n` and `k` are the numbers of examples of each kind.

    Source: Hanley and McNeil 1982 (the deviation of exponential scores); Newcombe 2006, part 2 (taken at the limit).
    """
    from scipy.optimize import brentq

    if auc < 0.5:  # the same deviation whichever kind has the higher scores
        least, most = _hanley_mcneil(n, k, 1 - auc, confidence)
        return 1 - most, 1 - least
    quantile = float(ndtri((1 + confidence) / 2))

    def beyond(area: float) -> float:
        of_members, of_others = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
        variance = (area * (1 - area) + (n - 1) * of_members + (k - 1) * of_others) / (n * k)
        return (area - auc) ** 2 - quantile**2 * variance

    return float(brentq(beyond, 0.0, auc)), float(brentq(beyond, auc, 1.0))


def _areas(values: Array, truth: NDArray[np.bool_], members: NDArray[np.intp], count: int) -> tuple[Array, Array]:
    """Compute each batch's area under the ROC curve, NaN if the batch has none, and its number of examples."""
    order = np.lexsort((values, members))
    sizes = np.bincount(members, minlength=count)
    starts = np.cumsum(sizes) - sizes
    # Ranks with ties shared, inside each batch: equal neighbors in the sorted order form runs.
    v, g, y = values[order], members[order], truth[order]
    first = np.concatenate([[True], (v[1:] != v[:-1]) | (g[1:] != g[:-1])])
    run = np.cumsum(first) - 1
    ends = np.append(np.flatnonzero(first)[1:], len(v))
    middle = (np.flatnonzero(first) + ends + 1) / 2
    ranks = middle[run] - starts[g]
    positives = np.bincount(g, weights=y, minlength=count)
    wins = np.bincount(g, weights=ranks * y, minlength=count) - positives * (positives + 1) / 2
    pairs = positives * (sizes - positives)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, wins / pairs, np.nan), sizes.astype(np.float64)


def _ranks(values: Array) -> Array:
    """Ranks from 1, [N], with the mean rank for equal values; scipy's `rankdata` takes a second to import."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (counts.cumsum() - (counts - 1) / 2)[place]
    return ranks
