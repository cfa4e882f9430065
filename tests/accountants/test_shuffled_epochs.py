"""Shuffled epochs of fixed batches: no data set gives away more than is charged, and some more than other sampling has.

Worlds are written from the loop: a permutation deals all units to batches of a fixed size, in every epoch anew. The
server sees the noisy sum of each batch, or every noisy row in its place. Its likelihood is the mean over all deals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from privkit.accountants import answer, calibration
from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import EveryRound, Mixup, Noise, Poisson
from privkit.accountants.spec.records import from_json, to_json
from privkit.accountants.spec.secrets import RandomAllocation, ShuffledEpochs
from privkit.accountants.spec.sensitivity import Ball, Clamp, Known
from privkit.accountants.table import mechanism_of

Array = NDArray[np.float64]


def shuffled(**changes: Any) -> SplitMechanism:
    """One unit of shift 1, in one of ten batches of an epoch, for three epochs."""
    given: dict[str, Any] = {
        "smashed": Known(value=1.0, relation="replace_one", norm="l2"),
        "noise": Noise(smashed=1.0),
        "lower_model": "frozen",
        "participation": ShuffledEpochs(epoch_rounds=10),
        "rounds": 30,
    }
    return SplitMechanism(**(given | changes))


@dataclass(frozen=True)
class World:
    """Neighboring data sets of a shuffled loader.

    Attributes:
        ours: [n, D] values of all units; the first is the one that differs.
        theirs: [D] its other value; all zero for a placeholder.
        batches: B.
        epochs: E.
        sums: whether the server sees the sum of a batch, or each of its rows.
    """

    ours: Array
    theirs: Array
    batches: int
    epochs: int
    sums: bool

    def means(self, first: Array) -> Array:
        """[deals, what the server sees] means of an epoch, all deals alike."""
        data = np.concatenate([first[None], self.ours[1:]])
        deals = data[np.array(list(permutations(range(len(data)))))]
        if self.sums:
            deals = deals.reshape(len(deals), self.batches, -1, data.shape[1]).sum(2)
        return np.unique(deals.reshape(len(deals), -1), axis=0) if self.sums else deals.reshape(len(deals), -1)


def drawn(seed: int) -> tuple[SplitMechanism, World]:
    random = np.random.default_rng([seed, 7])
    batches, size = [(2, 1), (2, 2), (3, 1), (3, 2), (5, 1)][int(random.integers(5))]
    dimensions, epochs = int(random.integers(1, 3)), int(random.integers(1, 4))
    low = float(-random.integers(0, 2))
    added = bool(random.integers(2))

    def place() -> Array:
        anywhere = random.random(dimensions)
        return low + (1 - low) * np.where(random.random(dimensions) < 0.7, np.round(anywhere), anywhere)

    crowd = place()
    values = [place(), *[crowd if random.random() < 0.5 else place() for _ in range(batches * size - 1)]]
    theirs = np.zeros(dimensions) if added else place()
    if random.random() < 0.6:  # as far apart as the clip allows
        values[0] = np.ones(dimensions)
        theirs = np.zeros(dimensions) if added else np.full(dimensions, low)
    mechanism = SplitMechanism(
        smashed=Clamp(low=low, high=1.0, dimensions=dimensions),
        noise=Noise(smashed=float(10 ** random.uniform(-0.7, 0.6))),
        lower_model="frozen",
        relation="add_or_remove_one" if added else "replace_one",
        participation=ShuffledEpochs(epoch_rounds=batches),
        rounds=batches * epochs - int(random.integers(batches)),
    )
    return mechanism, World(np.array(values), theirs, batches, epochs, bool(random.integers(2)))


def faults(seed: int, runs: int = 3000) -> list[tuple[Any, ...]]:
    """ε at which a world gives away more than is charged, by more than five standard errors, in either direction."""
    mechanism, world = drawn(seed)
    random, sigma, found = np.random.default_rng([seed, 8]), mechanism.noise.smashed, []
    pair = world.means(world.ours[0]), world.means(world.theirs)
    for p, q in (pair, pair[::-1]):
        total = np.zeros(runs)
        for _ in range(world.epochs):
            seen = p[random.integers(len(p), size=runs)] + sigma * random.normal(size=(runs, p.shape[1]))

            def log_likelihood(means: Array, seen: Array = seen) -> Array:
                squared = (means**2).sum(1) - 2 * seen @ means.T
                return np.asarray(logsumexp(-squared / (2 * sigma**2), axis=1) - np.log(len(means)))

            total += log_likelihood(p) - log_likelihood(q)
        for share in (0.3, 0.9, 0.99):
            epsilon = max(0.0, float(np.quantile(total, share)))
            gains = np.maximum(0, -np.expm1(np.minimum(epsilon - total, 0)))
            least = float(gains.mean() - 5 * gains.std() / sqrt(runs)) - 1e-12
            claimed = answer.delta(mechanism, epsilon).delta
            if claimed is None or claimed < least:
                found.append((seed, mechanism, epsilon, claimed, least))
    return found


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("block", range(10))
def test_no_world_gives_away_more(block: int) -> None:
    assert [fault for seed in range(30 * block, 30 * block + 30) for fault in faults(seed)] == []


def displaced(epsilon: float, mu: float, batches: int) -> float:
    """δ at ε of a placeholder among units at the other end of the clip, by the largest of the batches' sums.

    A unit at +1 among units at −1 moves its batch by two, a placeholder moves it by one: both are in a random batch.
    """
    at = np.linspace(0, 12 + 2 * mu, 4000)

    def above(shift: float) -> Array:
        return np.asarray(-np.expm1(norm.logcdf(at - shift) + (batches - 1) * norm.logcdf(at)))

    return float((above(2 * mu) - exp(epsilon) * above(mu)).max())


@pytest.mark.parametrize(("mu", "batches"), [(2.0, 100), (1.5, 20), (3.0, 1000)])
def test_neither_poisson_nor_allocation_covers_a_shuffle(mu: float, batches: int) -> None:
    """What the largest sum tells exceeds the δ of both, so that neither may be claimed; the charge is above it."""
    change: dict[str, Any] = {
        "relation": "add_or_remove_one",
        "smashed": Known(value=mu, relation="add_or_remove_one", norm="l2"),
        "rounds": batches,
    }
    shuffle = shuffled(**change, participation=ShuffledEpochs(epoch_rounds=batches))
    poisson = replace(shuffle, participation=Poisson(rate=1 / batches))
    allocation = replace(shuffle, participation=RandomAllocation(participations=1, epoch_rounds=batches))
    epsilon = answer.epsilon(poisson, 1e-5).epsilon
    least = displaced(epsilon, mu, batches)
    for other in (poisson, allocation):
        claimed = answer.delta(other, epsilon).delta
        assert claimed is not None
        assert claimed < least
    charged = answer.delta(shuffle, epsilon).delta
    assert charged is not None
    assert charged > least


def reached(mu: float, batches: int, epochs: int, delta: float, runs: int = 20_000) -> float:
    """ε at δ that the displaced pair reaches in either direction, by draws of all sums, less two standard errors."""
    random, best = np.random.default_rng([batches, epochs]), 0.0
    for ours, theirs in ((2 * mu, mu), (mu, 2 * mu)):
        loss = np.zeros(runs)
        for _ in range(epochs):
            seen = random.normal(size=(runs, batches))
            seen[:, 0] += ours
            loss += logsumexp(ours * seen - ours**2 / 2, axis=1) - logsumexp(theirs * seen - theirs**2 / 2, axis=1)
        low, high = 0.0, 200.0
        while high - low > 1e-3:
            epsilon = (low + high) / 2
            gains = np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 0)))
            enough = gains.mean() - 2 * gains.std() / sqrt(runs) > delta
            low, high = (epsilon, high) if enough else (low, epsilon)
        best = max(best, low)
    return best


@pytest.mark.parametrize(("mu", "batches", "epochs"), [(1.5, 5, 3), (2.0, 30, 1), (2.5, 100, 2), (4.0, 50, 3)])
def test_the_charge_is_close_to_what_is_reached_by_adding_or_removing(mu: float, batches: int, epochs: int) -> None:
    """So there is little credit to derive for the shuffle, if one record is far from hidden in its own batch."""
    shuffle = shuffled(
        relation="add_or_remove_one",
        smashed=Known(value=mu, relation="add_or_remove_one", norm="l2"),
        participation=ShuffledEpochs(epoch_rounds=batches),
        rounds=batches * epochs,
    )
    charged = answer.epsilon(shuffle, 0.01).epsilon
    assert charged / 1.1 < reached(mu, batches, epochs, 0.01) < charged


def test_a_removal_that_deals_all_batches_anew_is_not_covered_and_the_certificate_says_so() -> None:
    """All others sit at −1, and 1 is removed: its batch moves by 2μ, and the last batch, now one short, by μ."""
    ball = Ball(radius=1.0)
    one = shuffled(smashed=ball, relation="add_or_remove_one", participation=ShuffledEpochs(epoch_rounds=2), rounds=2)
    said = answer.epsilon(one, 1e-5)
    at = np.linspace(-9, 13, 551)
    first, last = np.meshgrid(at, at, indexing="ij")
    with_it = (norm.pdf(first - 2) * norm.pdf(last) + norm.pdf(first) * norm.pdf(last - 2)) / 2
    without = norm.pdf(first) * norm.pdf(last - 1)
    delta = np.maximum(with_it - exp(said.epsilon) * without, 0).sum() * (at[1] - at[0]) ** 2
    assert delta > 1000 * 1e-5
    assert any("no other unit moves" in sentence for sentence in said.assumptions)
    assert not any("counts as zeros" in sentence for sentence in said.assumptions)
    coins = answer.epsilon(replace(one, participation=Poisson(rate=0.5), rounds=1), 1e-5)
    for found, claim in ((said, "a dummy (zeros with the same noise)"), (coins, "counts as zeros with the same noise")):
        assert any(claim in sentence for sentence in found.assumptions)


def test_an_epoch_costs_what_one_known_place_costs() -> None:
    three = answer.epsilon(shuffled(), 1e-5)
    known = answer.epsilon(shuffled(participation=EveryRound(), rounds=3), 1e-5)
    assert three.epsilon == known.epsilon
    assert known.lower == known.epsilon
    assert three.lower is None  # whether the place shows depends on what the others send
    assert "shuffled epochs of 10" in three.statement
    assert any("nothing is credited to the shuffle" in said for said in three.assumptions)


def test_an_epoch_that_ends_early_is_charged_whole() -> None:
    assert answer.epsilon(shuffled(rounds=31), 1e-5).epsilon == answer.epsilon(shuffled(rounds=40), 1e-5).epsilon
    assert shuffled(rounds=31).turns == 4


def test_mixing_labels_and_other_noise_are_charged_by_the_epoch() -> None:
    clip = Clamp(low=0, high=1, dimensions=4)
    for changes in (
        {"smashed": clip, "mixing": Mixup(ratio=FixedRatio.equal(2))},
        {"smashed": clip, "mixing": Mixup(ratio=DirichletRatio(concentration=2, clients=3))},
        {"smashed": clip, "noise": Noise(law="laplace", smashed=1.0)},
        {"smashed": clip, "unit": "client", "lower_model": "trained", "releases": 8},
    ):
        every = answer.epsilon(shuffled(**changes, participation=EveryRound(), rounds=3), 1e-5)
        assert answer.epsilon(shuffled(**changes), 1e-5).epsilon == every.epsilon


def test_ratios_of_rounds_have_no_place_in_a_shuffle() -> None:
    once = Mixup(ratio=DirichletRatio(concentration=2, clients=3, drawn="once"))
    with pytest.raises(ValueError, match="are fixed to rounds, but a shuffled epoch draws each unit's round"):
        shuffled(smashed=Clamp(low=0, high=1, dimensions=4), mixing=once)


def test_a_table_says_what_really_ran() -> None:
    row = {"mechanism": "gaussian", "sigma": 1, "sensitivity": 1, "sampling": "shuffled_epochs", "rounds": 30}
    assert mechanism_of(row | {"epoch_rounds": 10}) == shuffled()
    assert mechanism_of(row) == shuffled(participation=ShuffledEpochs(epoch_rounds=30))
    with pytest.raises(ValueError, match="a loader that shuffles epochs does not sample that way"):
        mechanism_of(row | {"rate": 0.1})
    assert from_json(to_json(shuffled())) == shuffled()


def test_rounds_and_ledgers_count_whole_epochs(tmp_path: Any) -> None:
    found = calibration.calibrate(shuffled(), "rounds", epsilon=12.0, delta=1e-5)
    assert found.mechanism.rounds % 10 == 0
    ledger = Ledger(tmp_path / "run.jsonl")
    ledger.charge(shuffled())
    assert ledger.epsilon(1e-5).epsilon == pytest.approx(answer.epsilon(shuffled(), 1e-5).epsilon, rel=1e-9)
    with pytest.raises(ValueError, match="a shuffled run is charged in epochs of 10"):
        ledger.charge(shuffled(), rounds=15)
