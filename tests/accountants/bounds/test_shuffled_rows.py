"""Shuffled rows: no data set gives away more than the profile."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, permutations
from math import exp, factorial, pi, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.likelihood_sums import hidden_delta
from privkit.accountants.bounds.shuffled_rows import (
    _REST,
    _bends,
    _built,
    _concave,
    _gaussian_delta,
    _majorant,
    _roughly,
    _tops,
    hiding,
    profile,
)
from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedRatio
from privkit.accountants.spec.parts import EveryRound, Mixup, Noise
from privkit.accountants.spec.records import from_json, to_json
from privkit.accountants.spec.secrets import ShuffledEpochs
from privkit.accountants.spec.sensitivity import Clamp, Known, OneHot
from privkit.accountants.table import mechanism_of

Array = NDArray[np.float64]
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, sqrt(0.75)]])
"""Three records that are 1 apart."""


def credited(**changes: Any) -> SplitMechanism:
    """1,000 records of shift .3 in ten batches, for two epochs."""
    given: dict[str, Any] = {
        "smashed": Known(value=0.3, relation="replace_one", norm="l2"),
        "noise": Noise(smashed=1.0),
        "lower_model": "frozen",
        "participation": ShuffledEpochs(epoch_rounds=10, records=1000),
        "rounds": 20,
    }
    return SplitMechanism(**(given | changes))


def at_least(losses: Array, epsilon: float) -> float:
    """δ(ε) of [S] privacy losses, less five standard errors."""
    gains = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0)))
    return float(gains.mean() - 5 * gains.std() / sqrt(gains.size))


def alike(records: int, mu: float, epochs: int, samples: int, x: int, other: int, rest: int) -> Array:
    """[S] privacy losses of `epochs` epochs, if all other records are one corner."""
    random, means = np.random.default_rng([records, samples, x, other]), mu * (CORNERS[[x, other]] - CORNERS[rest])
    total = np.zeros(samples)
    for _ in range(epochs):
        seen = random.normal(size=(samples, records, 2))
        seen[np.arange(samples), random.integers(records, size=samples)] += means[0]
        ours, theirs = (logsumexp(seen @ mean - mean @ mean / 2, axis=1) for mean in means)
        total += ours - theirs
    return total


def clustered(records: int, mu: float, samples: int) -> Array:
    """[S] privacy losses of an epoch in which half of the others are the first corner and half the second.

    The likelihood is a sum over the places of the record, and over the places of the first cluster: an elementary
    symmetric polynomial of the likelihood ratios of all other rows, from polynomials of the rows before and behind.
    """
    random, half = np.random.default_rng(5), (records - 1) // 2
    data = mu * np.concatenate([CORNERS[[2]], np.repeat(CORNERS[:2], [half, records - 1 - half], axis=0)])
    seen = np.stack([data[random.permutation(records)] for _ in range(samples)]) + random.normal(
        size=(samples, records, 2)
    )

    def relative(mean: Array) -> Array:
        return np.asarray(np.exp(seen @ (mean - mu * CORNERS[1]) - (mean @ mean - mu**2) / 2))

    def grown(ratios: Array) -> list[Array]:
        tables = [np.eye(1, half + 1).repeat(samples, axis=0)]
        for row in ratios.T:
            tables.append(tables[-1] + row[:, None] * np.pad(tables[-1][:, :-1], ((0, 0), (1, 0))))
        return tables

    first = relative(mu * CORNERS[0])
    before, behind = grown(first), grown(first[:, ::-1])
    rest = np.stack([(before[j] * behind[records - 1 - j][:, ::-1]).sum(1) for j in range(records)], axis=1)
    ours, theirs = (relative(mu * mean) for mean in (CORNERS[2], CORNERS[0]))
    return np.asarray(np.log((ours * rest).sum(1) / (theirs * rest).sum(1)))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("x", "other", "rest"), [(0, 1, 2), (0, 1, 1), (0, 1, 0)])
def test_others_that_are_alike_give_away_less(x: int, other: int, rest: int) -> None:
    records, mu, epochs = 400, 0.5, 2
    losses, claimed = alike(records, mu, epochs, 4000, x, other, rest), profile(records, mu)
    assert claimed is not None
    for epsilon in (0.0, 0.1, 0.2):
        assert at_least(losses, epsilon) <= pld.history_delta([(claimed, epochs)], epsilon)


@pytest.mark.parametrize("mu", [0.5, 1.0, 1.5])
def test_in_tiny_epochs_others_that_are_alike_are_the_worst(mu: float) -> None:
    """Three rows on a line, integrated on a grid: so the gap of the bound is no weakness of the known pair."""
    seen = np.linspace(-5.5, 7, 56)

    def law(records: tuple[float, ...]) -> Array:
        each = [np.exp(-((seen - mu * one) ** 2) / 2) / sqrt(2 * pi) * (seen[1] - seen[0]) for one in records]
        orders = [np.einsum("i,j,k->ijk", *(each[at] for at in order)) for order in permutations(range(3))]
        return np.asarray(sum(orders) / 6)

    for epsilon in (0.0, 0.3, 0.8, 1.5):
        found: dict[bool, list[float]] = {True: [], False: []}
        for others in combinations_with_replacement((0.0, 0.5, 1.0), 2):
            ours, theirs = law((0.0, *others)), law((1.0, *others))
            for p, q in ((ours, theirs), (theirs, ours)):
                found[others[0] == others[1]].append(float(np.maximum(p - exp(epsilon) * q, 0).sum()))
        assert max(found[False]) < max(found[True])


def test_others_in_two_clusters_give_away_less() -> None:
    losses = clustered(61, 0.3, 3000)
    claimed = profile(61, 0.3)
    assert claimed is not None
    for epsilon in (0.0, 0.05, 0.1, 0.2):
        assert at_least(losses, epsilon) <= float(claimed(np.array(epsilon)))


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("counts", [(0, 12, 12), (22, 1, 1), (1, 1, 22), (1, 20, 3), (8, 8, 8)])
@pytest.mark.parametrize("mu", [0.1, 0.3])
def test_permanents_of_few_records_lie_below_the_profile(counts: tuple[int, int, int], mu: float) -> None:
    """25 records, the others in up to three clusters: likelihoods are sums over all orders."""
    samples, random = 4000, np.random.default_rng([*counts, int(10 * mu)])
    data = mu * np.concatenate([CORNERS[[0]], np.repeat(CORNERS, counts, axis=0)])
    seen = np.stack([data[random.permutation(25)] for _ in range(samples)]) + random.normal(size=(samples, 25, 2))
    ratios = np.exp(seen @ (mu * CORNERS.T) - mu**2 * np.sum(CORNERS**2, axis=1) / 2)
    places = [over_orders(ratios, counts, one) for one in (0, 1)]
    claimed = profile(25, mu)
    assert claimed is not None
    for epsilon in (0.0, 0.02, 0.05, 0.1, 0.2):
        assert at_least(np.log(places[0] / places[1]), epsilon) <= float(claimed(np.array(epsilon)))


def over_orders(ratios: Array, counts: tuple[int, ...], own: int) -> Array:
    """[S] means over all orders of the products of [S, n, 3] ratios, with one more record at a corner."""
    numbers = [count + (kind == own) for kind, count in enumerate(counts)]
    tables = np.zeros((len(ratios), *(number + 1 for number in numbers)))
    tables[:, 0, 0, 0] = 1.0
    for row in np.moveaxis(ratios, 1, 0):
        after = np.zeros_like(tables)
        for kind in range(3):
            there = np.moveaxis(after, kind + 1, 0)
            there[1:] += np.moveaxis(tables, kind + 1, 0)[:-1] * row[:, kind, None, None]
        tables = after
    arrangements = factorial(len(ratios[0])) // prod(factorial(number) for number in numbers)
    return np.asarray(tables[:, -1, -1, -1] / arrangements)


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("far", [0, 1, 4, 20])
@pytest.mark.parametrize(("moves", "mu"), [([60], 0.3), ([60], 1.0), ([12, 48], 0.3), ([20, 60], 0.6), ([40, 60], 1.0)])
def test_moves_lie_below_their_bound(moves: list[int], mu: float, far: int) -> None:
    """The law of the moves themselves, if the order before them is told, and some others are far from the rest."""
    found = _built(moves, mu, 1e-3, hidden_delta)
    assert found is not None
    for own in ((0, 1), (2, 1), (1, 0)):
        losses = moved(moves, mu, far, 6000, own)
        for epsilon in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0):
            assert at_least(losses, epsilon) <= found.delta(epsilon, mu, hidden_delta)


def moved(moves: list[int], mu: float, far: int, samples: int, own: tuple[int, int]) -> Array:
    """[S] privacy losses of one move or two, in terms of what each row holds before."""
    random, at = np.random.default_rng([*moves, far, *own]), mu * CORNERS
    sets = [np.where((np.arange(rows) < far)[:, None], at[2], at[1]) for rows in moves]
    hole, held = random.normal(size=(samples, 2)), at[list(own)]
    leaving = [random.integers(rows, size=samples) for rows in moves]
    hole += sets[0][leaving[0]]
    known = hole @ sets[0].T - np.sum(sets[0] ** 2, axis=1) / 2  # [S, n_L] ln likelihood of who is in the first row
    for depth in range(len(moves)):
        arriving = (
            sets[depth + 1][leaving[depth + 1]] if depth + 1 < len(moves) else np.broadcast_to(held[0], (samples, 2))
        )
        kinds = sets[depth + 1] if depth + 1 < len(moves) else held
        seen = sets[depth] + random.normal(size=(samples, moves[depth], 2))
        seen[np.arange(samples), leaving[depth]] += arriving - sets[depth][leaving[depth]]
        parts = []
        for kind in kinds:
            move = kind - sets[depth]
            ratios = np.sum(seen * move, axis=2) - (kind @ kind - np.sum(sets[depth] ** 2, axis=1)) / 2
            parts.append(logsumexp(ratios + known, axis=1))
        known = np.stack(parts, axis=1)
    return np.asarray(known[:, 0] - known[:, 1])


def worlds(random: np.random.Generator, rows: int, outcomes: int) -> tuple[Array, Array]:
    """[n, M] laws of n records on M outcomes, and [C] their largest hockey-stick divergence at [C] α = CAPS."""
    spread = 10 ** random.uniform(-1.5, 0.3)
    laws = np.exp(spread * random.normal(size=(rows, outcomes)) * random.choice([0.2, 1.0, 3.0], size=outcomes))
    if random.random() < 0.5:  # two kinds of records
        laws = laws[random.integers(2, size=rows)]
    laws /= laws.sum(1, keepdims=True)
    apart = [max(np.maximum(one - alpha * laws, 0).sum(1).max() for one in laws) for alpha in CAPS]
    return laws, np.array(apart)


CAPS = 1 + np.geomspace(1e-3, 50, 200)


@pytest.mark.slow(but=10)
@pytest.mark.parametrize("seed", range(40))
def test_weights_are_majorized_as_often_as_claimed(seed: int) -> None:
    """Laws of records on a few outcomes are drawn, and the weights of the rows are enumerated over all outcomes."""
    random = np.random.default_rng(seed)
    rows, power, share = int(random.integers(3, 60)), *(float(one) for one in random.uniform(0, 1, 2) + 0.05)
    laws, apart = worlds(random, rows, 40)
    bends = _bends(CAPS, apart, power, share)
    mean = laws.mean(0)
    ratios, levels = laws / mean, [1.0, 1.6, 3.0, 8.0, 40.0]  # [n, M] rows' weights times n
    cap = float(min(rows, random.choice([2, 5, rows])))
    cut = np.minimum(ratios, (1 - _REST) * cap if cap < rows else rows)
    pairs = ratios[:, None] / ratios[None]  # Ψ, between and beyond the nodes
    curve = np.interp(pairs, *bends[:2]) + bends[2] * np.maximum(pairs - bends[0][-1], 0)
    uneven = (ratios[None] * curve).mean((0, 1))  # [M] G/B
    assert uneven @ mean <= 1 + 1e-9
    for level, (multiples, excess) in zip(levels, _tops(bends, levels, rows, cap), strict=True):
        weights = _majorant(multiples, excess, rows)
        if not weights:
            break
        larger = np.repeat(*np.array(weights).T)[::-1] / sum(r * k for r, k in weights)
        largest = np.cumsum(np.pad(larger, (0, max(rows - larger.size, 0))))[:rows]
        for kept in cut.T[(uneven <= level) & (cut.mean(0) >= 1 - _REST)]:
            assert np.all(largest >= np.cumsum(np.sort(kept)[::-1]) / kept.sum() - 1e-9)


def test_the_mean_of_cases_lies_below_the_concave_function() -> None:
    """For any law of G with a mean of at most 1: the mean of the step function is at most the value at 1."""
    random = np.random.default_rng(3)
    for _ in range(300):
        starts = np.append(0.0, np.sort(random.uniform(0, 6, 5)))
        heights = np.sort(random.random(6)) ** 3
        chances, values = random.dirichlet(np.full(4, 0.3)), random.exponential(size=4) ** 2
        values *= random.random() / (chances @ values)
        reached = heights[np.maximum(np.searchsorted(starts, values) - 1, 0)]
        assert chances @ reached <= _concave(starts.tolist(), heights.tolist())[0] + 1e-12


def test_cases_that_are_left_out_matter_little() -> None:
    mu = 1.0
    found = _built([307, 922, 2768, 5999], mu, 1e-8, _roughly)
    assert found is not None
    for epsilon in (0.0, 0.05, 0.2, 0.5, 1.0, 3.0):
        top = _gaussian_delta(epsilon, mu)
        heights = [*(min(_roughly(epsilon, mu, rows), top) for _, rows in found.cases), top]
        least = [min(heights[at:]) for at in range(len(heights))]
        full = min(top, _concave([0.0, *(level for level, _ in found.cases)], least)[0] + found.told * top)
        assert full * (1 - 1e-9) <= found.delta(epsilon, mu, _roughly) <= 1.2 * full


@pytest.mark.slow
def test_the_order_is_worth_its_place() -> None:
    """ε of ten epochs of 10,000 records, told and hidden; a pair of data sets is known at .051."""
    one = credited(
        smashed=Known(value=0.5, relation="replace_one", norm="l2"),
        participation=ShuffledEpochs(epoch_rounds=100, records=10_000),
        rounds=1000,
    )
    found = answer.epsilon(one, 1e-5)
    told = answer.epsilon(
        credited(smashed=one.smashed, participation=ShuffledEpochs(epoch_rounds=100), rounds=1000), 1e-5
    )
    pair = gaussian.epsilon(1e-5, sqrt(10 * (exp(0.25) - 1) / 10_000))
    assert pair < found.epsilon < 1.2 * pair
    assert told.epsilon > 110 * found.epsilon
    assert found.source is not None
    assert "shuffled_rows.py" in found.source
    assert any("uniform order that the server does not learn" in said for said in found.assumptions)


def test_moves_that_hide_nothing_are_not_chosen() -> None:
    assert hiding(126, 0.92, 1e-7 / 28) is not None


def test_few_records_and_large_shifts_hide_nothing() -> None:
    for records, mu in ((2, 0.3), (10, 1.0), (50, 1.5), (10**6, 1.6), (1000, 1e-9)):
        assert profile(records, mu) is None
    few = credited(participation=ShuffledEpochs(epoch_rounds=2, records=2))
    assert answer.epsilon(few, 1e-5).epsilon == pytest.approx(gaussian.epsilon(1e-5, 0.3 * sqrt(10)), rel=1e-6)


@pytest.mark.parametrize("told", [50.0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_row_is_told_with_a_probability(told: float) -> None:
    with pytest.raises(ValueError, match="told must"):
        profile(1000, 0.3, told)


@pytest.mark.slow
def test_more_records_hide_more_and_larger_shifts_less() -> None:
    places = [(found := hiding(records, 0.4)) and found.places for records in (200, 1000, 5000)]
    assert places == sorted(places, key=lambda one: one or 0)
    deltas = [float(profile(500, mu)(np.array(0.05))) for mu in (0.2, 0.4)]  # type: ignore[misc]
    assert deltas == sorted(deltas)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "client"}, "unit"),
        ({"mixing": Mixup(ratio=FixedRatio.equal(2))}, "mixing"),
        (
            {"noise": Noise(law="laplace", smashed=1.0), "smashed": Known(value=1, relation="replace_one", norm="l1")},
            "noise",
        ),
    ],
)
def test_what_no_bound_was_derived_for_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"a secret order of records with {said}="):
        credited(**changes)


def test_a_sensitivity_for_adding_does_not_limit_the_other_records() -> None:
    added = Known(value=0.3, relation="add_or_remove_one", norm="l2")
    with pytest.raises(ValueError, match="the largest distance of two records counts"):
        credited(relation="add_or_remove_one", smashed=added)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("sigma", [10.0, 4.0, 2.5])
@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0])
def test_a_dummy_among_records_gives_away_less(sigma: float, others: float) -> None:
    """One of 1,000 records at 1 is replaced by zeros; a uniform order deals the rows, and `others` are all alike."""
    added = credited(
        smashed=Clamp(low=-1, high=1, dimensions=1), noise=Noise(smashed=sigma), relation="add_or_remove_one", rounds=10
    )
    random, runs = np.random.default_rng(int(sigma)), 4000
    noise = random.normal(size=(runs, 1000))
    alone = replace(added, participation=EveryRound(), rounds=1)
    for epsilon in (0.003, 0.02, 0.1):
        claimed = answer.delta(added, epsilon).delta
        assert claimed is not None
        assert claimed < 0.5 * (answer.delta(alone, epsilon).delta or 0)
        for ours, theirs in ((1.0, 0.0), (0.0, 1.0)):
            p, q = (ours - others) / sigma, (theirs - others) / sigma
            seen = noise + p * (np.arange(1000) == 0)
            ratio = np.exp(p * seen - p * p / 2).mean(1) / np.exp(q * seen - q * q / 2).mean(1)
            assert at_least(np.log(ratio), epsilon) < claimed


def test_records_are_at_least_the_batches() -> None:
    with pytest.raises(ValueError, match="records must be a whole number >= 10, got 9"):
        ShuffledEpochs(epoch_rounds=10, records=9)


@pytest.mark.slow
def test_noisy_labels_count_in_the_shift() -> None:
    labelled = credited(labels=OneHot(), noise=Noise(smashed=1.0, labels=10.0))
    assert answer.epsilon(credited(), 1e-5).epsilon < answer.epsilon(labelled, 1e-5).epsilon < 1.2


@pytest.mark.slow
def test_tables_files_and_ledgers_know_the_records(tmp_path: Path) -> None:
    row = {"mechanism": "gaussian", "sigma": 1, "sensitivity": 0.3, "sampling": "shuffled_epochs", "rounds": 20}
    one = mechanism_of(row | {"epoch_rounds": 10, "records": 1000})
    assert one == credited()
    assert from_json(to_json(one)) == one
    with Ledger(tmp_path / "ledger", tight=True) as book:
        book.charge(one, rounds=20)
        assert book.epsilon(1e-5).epsilon == pytest.approx(answer.epsilon(one, 1e-5).epsilon, rel=1e-6)
