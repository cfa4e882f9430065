"""Compare the proven ε of shuffled records with the ε of the worst known pair of data sets, and of records in known
positions.

    python benchmarks/run.py shuffled_rows

Mechanisms are drawn at random: μ (the distance of two records over the noise's scale), the number of records and of
epochs, each from a logarithmic scale. Two pairs of neighboring data sets are tried, in which record x is replaced by
x'. In the first pair all other records are x'; in the second, they are a third record at equal distances from x and x'.
The ε of a pair is a numerical value, not a bound, and at most .6 % too large. Bound and pairs are composed over the
epochs in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log10, sqrt
from time import process_time

import numpy as np

from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.likelihood_sums import hidden_delta
from privkit.accountants.bounds.loss_distribution import GridTooLarge, Profile
from privkit.accountants.bounds.shuffled_rows import LARGEST_SHIFT, TOLD, profile
from privkit.accountants.bounds.third_record import Gram

AT_OTHER, AT_X, AT_THIRD = (1.0, 1e-6, 0.0), (1e-6, 1.0, 0.0), (1.0, 1.0, 0.5)
"""Gram matrices of x and x' relative to the other records, which are x', x, or a third record at equal distances."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `shuffled_rows`.

    Attributes:
        count: number of mechanisms.
        seed: seed of the draws.
        delta: the δ at which ε is computed.
    """

    count: int = 200
    seed: int = 0
    delta: float = 1e-5


def main(options: Options) -> None:
    """Print a line for each range of μ."""
    random, rows = np.random.default_rng(options.seed), []
    for _ in range(options.count):
        mu = 10 ** random.uniform(log10(0.05), log10(LARGEST_SHIFT))
        records, epochs = int(10 ** random.uniform(2, 5)), int(10 ** random.uniform(0, 2))
        told, start = gaussian.epsilon(options.delta, sqrt(epochs) * mu), process_time()
        hidden = profile(records, mu, TOLD / epochs)
        bound = told if hidden is None else min(told, pld.composed_bounds([(hidden, epochs)], options.delta)[1])
        seconds = process_time() - start
        rows.append((mu, bound / known(records, mu, epochs, options.delta), told / bound, seconds, hidden is None))
    print(f"{options.count} specifications, seed {options.seed}, δ = {options.delta:g}")
    print("           μ   drawn  no credit   over the pair: median, 90 %, most   told, median   CPU s")
    for low, high in ((0.05, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 0.8), (0.8, LARGEST_SHIFT)):
        some = np.array([row for row in rows if low <= row[0] < high], float)
        if len(some):
            over = np.quantile(some[:, 1], (0.5, 0.9, 1.0))
            print(
                f"{f'{low:g} to {high:g}':>12} {len(some):7d} {int(some[:, 4].sum()):10d} "
                f"{over[0]:18.2f} {over[1]:7.2f} {over[2]:7.2f} {np.median(some[:, 2]):13.1f} {some[:, 3].max():6.1f}"
            )


def known(records: int, mu: float, epochs: int, delta: float) -> float:
    """The larger ε of the two pairs over all epochs; by the central limit theorem if the grid would be too large."""
    return max(_composed(records, mu, epochs, delta, ends) for ends in ((AT_OTHER, AT_X), (AT_THIRD, AT_THIRD)))


def _composed(records: int, mu: float, epochs: int, delta: float, ends: tuple[Gram, Gram]) -> float:
    """ε over all epochs of a pair whose other records are all the same; `ends` are their two Gram matrices."""
    a, b, c = (mu**2 * one for one in ends[0])
    spread = sqrt((exp(a) + exp(b) - 2 * exp(c)) / records)
    nodes = np.concatenate([np.linspace(0, 8 * spread, 25), np.geomspace(8 * spread, 8 * spread + 9 * mu, 6)[1:]])

    def profile_at(matrix: Gram) -> Profile:
        values = [hidden_delta(float(one), mu, ((1, records),), (matrix,)) for one in nodes]
        sampled = np.minimum.accumulate(values)
        return lambda epsilon: np.interp(np.exp(np.minimum(epsilon, 700)), np.exp(nodes), sampled)

    try:
        return pld.composed_bounds([((profile_at(ends[0]), profile_at(ends[1])), epochs)], delta)[1]
    except GridTooLarge:
        return gaussian.epsilon(delta, sqrt(epochs) * spread)
