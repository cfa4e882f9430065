"""Lower bounds on δ for mechanisms with secret positions (random allocation, hidden masks) and for randomized response.

A server's test that distinguishes two neighboring datasets proves a lower bound on δ. For secret positions, three test
statistics are tried: the sum over all positions, their largest value, and the value at one position. For randomized
response, δ is summed up exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log, log1p, sqrt
from typing import Any

import mpmath
import numpy as np
from campaign_truth import Array, Part, log_delta_hidden, log_profile, part, renyi
from scipy.special import log_ndtr
from scipy.stats import hypergeom

Spec = dict[str, Any]
MOST_ANSWERS = 2000
"""Largest number of answers whose losses are summed up; further answers reveal more, so a lower bound remains."""

Tests = list[tuple[str, Callable[[float], float]]]


def applies(m: Spec) -> bool:
    """Whether a specification has secret positions or randomized response."""
    special = ("random_allocation", "shuffled_epochs", "hidden_mask", "categories")
    return any(m[name]["kind"] in special for name in ("participation", "mixing", "smashed"))


def tests(m: Spec, length: float) -> tuple[Tests, bool]:
    """Lower bounds on δ(ε) by tests that a server can do.

    Returns for each test its name and a function from ε to ln δ; and whether the first test's value is exact.

    Args:
        m: the mechanism's specification as in JSON.
        length: largest squared distance between the smashed data of two whole records.
    """
    if m["smashed"]["kind"] == "categories":
        return [("all answers", _answers(m))], _count(m) <= MOST_ANSWERS
    taking, mask, sigma = m["participation"], m["mixing"], m["noise"]["smashed"]
    if taking["kind"] in ("random_allocation", "shuffled_epochs"):  # others equal one neighbor
        chosen, places = taking.get("participations", 1), taking["epoch_rounds"]
        shift = sqrt(length) / sigma
        bounds = _places(shift, chosen, places, places, m["rounds"] // places)
        both_ends = m["smashed"]["kind"] in ("ball", "known") and not m["smashed"].get("nonnegative")
        if taking["kind"] == "shuffled_epochs" and m["relation"] == "add_or_remove_one" and both_ends:
            # All other records lie opposite. The record moves its batch by twice the norm, a placeholder by once.
            bounds.append(("displaced", lambda e: _largest(e, 2 * shift, 1, places, shift)))
        return bounds, False
    chosen, places, clip = mask["kept"], mask["patches"], m["smashed"]
    if clip["kind"] == "patch_ball":
        bounds = _places(sqrt(length / places) / sigma, chosen, places, places, m["rounds"])
        if m["relation"] == "replace_one":  # the other tests compare with zeros, which are nearer
            bounds = [one for one in bounds if one[0] == "places added up"]
        return bounds, False
    largest = -(-clip["dimensions"] // places)  # coordinates in each of the `many` largest patches
    many = clip["dimensions"] - (largest - 1) * places
    return _places(sqrt(length / clip["dimensions"] * largest) / sigma, chosen, places, many, m["rounds"]), False


def curve(m: Spec, length: float, order: float) -> float:
    """Lower bound on the Rényi divergence of this order."""
    if m["smashed"]["kind"] == "categories":
        true, other, classes = _chances(m)
        with mpmath.workdps(50):
            a, p, q = mpmath.mpf(order), mpmath.mpf(true), mpmath.mpf(other)
            total = p**a * q ** (1 - a) + q**a * p ** (1 - a) + (classes - 2) * q
            return _count(m) * float(mpmath.log(total / (p + (classes - 1) * q)) / (a - 1))
    taking, mask, sigma = m["participation"], m["mixing"], m["noise"]["smashed"]
    if taking["kind"] in ("random_allocation", "shuffled_epochs"):
        chosen, places = taking.get("participations", 1), taking["epoch_rounds"]
        times, shift = m["rounds"] // places, sqrt(length) / sigma
    elif m["smashed"]["kind"] == "patch_ball":
        chosen, places, times, shift = (
            mask["kept"],
            mask["patches"],
            m["rounds"],
            sqrt(length / mask["patches"]) / sigma,
        )
    else:
        return 0.0
    together = order / 2 * (chosen * shift) ** 2 / places * times
    if m["relation"] != "add_or_remove_one":
        return together
    alone = max(renyi(part(shift, rate=chosen / places, pair=pair), order) for pair in ("up", "down"))
    return max(together, times * alone)


def _places(shift: float, chosen: int, places: int, many: int, times: int) -> Tests:
    """Tests on a shift in `chosen` of `places` secret places, of which `many` hold anything."""
    if many < places:
        j = np.arange(min(chosen, many) + 1.0)
        sums = Part(shift=j * shift / sqrt(many), weight=hypergeom.pmf(j, places, many, chosen))
        return [
            ("largest place", lambda e: _largest(e, shift, 0, places)),
            ("places added up", lambda e: log_delta_hidden(sums, e)),
        ]
    together = np.array(chosen * shift / sqrt(places) * sqrt(times))
    one = Part(shift=np.array([shift, 0.0]), weight=np.array([chosen / places, 1 - chosen / places]))
    return [
        ("largest place", lambda e: _largest(e, shift, chosen, places)),
        ("places added up", lambda e: float(log_profile(e, together))),
        ("one place", lambda e: log_delta_hidden(one, e)),
    ]


def _largest(epsilon: float, shift: float, chosen: int, places: int, other: float = 0.0) -> float:
    """ln δ in one epoch of the test whether any position's value exceeds a threshold, for the best threshold.

    With one dataset, `chosen` of the `places` positions have mean `shift`; with its neighbor, as many have mean
    `other`.
    """
    if chosen == 0:
        return -inf
    c = np.linspace(-5, 36, 4001)  # further out, the tail underflows
    first = _log1mexp(chosen * log_ndtr(c - shift) + (places - chosen) * log_ndtr(c))
    second = epsilon + _log1mexp(chosen * log_ndtr(c - other) + (places - chosen) * log_ndtr(c))
    better = second < first
    if not better.any():
        return -inf
    return float(np.max(first[better] + np.log(-np.expm1(second[better] - first[better]))))


def _log1mexp(x: Array) -> Array:
    """ln(1 − e^x), x ≤ 0."""
    with np.errstate(divide="ignore"):
        return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def _chances(m: Spec) -> tuple[float, float, int]:
    """Probability of the true answer, probability of each other answer, and number of classes."""
    p, classes = m["noise"]["smashed"], m["smashed"]["classes"]
    return 1 - p + p / classes, p / classes, classes


def _count(m: Spec) -> int:
    return int(m["smashed"]["answers"] * m["rounds"] * m["releases"])


def _answers(m: Spec) -> Callable[[float], float]:
    """Function from ε to ln δ of all answers; each has the loss e, 0 or −e, and sums are found by squaring."""
    true, other, classes = _chances(m)
    each, count = log1p((true - other) / other), min(_count(m), MOST_ANSWERS)
    power, base, left = np.ones(1), np.array([other, (classes - 2) * other, true]), count
    while left:
        if left & 1:
            power = np.convolve(power, base)
        left >>= 1
        base = np.convolve(base, base) if left else base
    losses = (np.arange(power.size) - count) * each

    def log_delta(epsilon: float) -> float:
        beyond = losses > epsilon
        total = float(power[beyond] @ -np.expm1(epsilon - losses[beyond]))
        return log(total) if total > 0 else -inf

    return log_delta
