"""Measure how close lower bounds on ε come to the true ε, and how often they detect a mechanism with too little noise.

    python benchmarks/run.py auditor
    python benchmarks/run.py auditor --rate .1 --rounds 50 --epsilons 8 --canaries 5000 --draws 100 --table FILE

The mechanism is Gaussian with known ε at δ = 1e-5 and releases each canary once. With `--rate`, it has `--rounds`
rounds: a secret coin of this probability decides in each round whether a canary takes part; otherwise only noise is
released. An attack that knows the means scores each canary by its likelihood ratio.

Bounds have 95 % confidence; "independent" and "one run, curve" assume the mechanism's family of trade-off curves. Each
draw is a run with the given number of canaries. The table shows the median bound, and the share of draws whose bound
exceeds the true ε; for a valid bound, its expectation is at most .05. The last column is the share of draws that refute
the claim of a mechanism with .8 of the claimed noise. The table is written to `results/auditor/bounds.csv`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from cells import write_table

from privkit.accountants.auditing.families import GAUSSIAN, Family, ScaledNoise
from privkit.accountants.auditing.independent import epsilon_independent
from privkit.accountants.auditing.one_run import epsilon_one_run, epsilon_one_run_curve, planned_guesses
from privkit.accountants.calibration import calibrate
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson
from privkit.accountants.spec.sensitivity import Known
from privkit.shared.array import Array

TABLE = Path(__file__).parent / "results" / "auditor" / "bounds.csv"
DELTA, SURE = 1e-5, 0.95
Bound = Callable[[Array, Array, Family, float], float]
Scores = Callable[[Array, float, np.random.Generator], Array]
"""(coins, strength, random numbers) -> the canaries' scores, for a mechanism with this signal-to-noise ratio."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `auditor`.

    Attributes:
        epsilons: true values of ε.
        canaries: numbers of canaries (records whose release or absence is decided by a coin) in a run.
        draws: number of runs for the bound "independent"; the two bounds "one run" are slower and get a tenth of it.
        planted: share of the claimed noise that the faulty mechanism has.
        rate: probability that a canary takes part in a round; None for a single release of every canary.
        rounds: number of rounds, if `rate` is given.
        seed: seed of all draws.
        table: path of the written table.
    """

    epsilons: tuple[float, ...] = (2.0, 8.0, 20.0)
    canaries: tuple[int, ...] = (200, 2_000, 20_000)
    draws: int = 1_000
    planted: float = 0.8
    rate: float | None = None
    rounds: int = 1
    seed: int = 0
    table: Path = TABLE


def independent(members: Array, others: Array, family: Family, claim: float) -> float:
    """Lower bound on ε that treats the canaries as independent trials."""
    return epsilon_independent(members, others, threshold=0.0, confidence=SURE, delta=DELTA, family=family).epsilon


def curve(members: Array, others: Array, family: Family, claim: float) -> float:
    """Lower bound on ε from one run, for a family of curves; the claim determines the number of guesses."""
    guesses = planned_guesses(members.size + others.size, claim, confidence=SURE, family=family)
    return epsilon_one_run_curve(members, others, confidence=SURE, delta=DELTA, guesses=guesses, family=family).epsilon


def one_run(members: Array, others: Array, family: Family, claim: float) -> float:
    """Lower bound on ε from one run, without an assumption on the curve."""
    return epsilon_one_run(members, others, confidence=SURE, delta=DELTA).epsilon


BOUNDS: dict[str, tuple[Bound, int]] = {
    "independent": (independent, 1), "one run, curve": (curve, 10), "one run": (one_run, 10)
}  # fmt: skip


def released(coins: Array, mu: float, rng: np.random.Generator) -> Array:
    """Scores of one Gaussian release of each canary."""
    return np.asarray(rng.standard_normal(coins.size) + mu * (coins - 0.5))


def sampled(epsilon: float, rate: float, rounds: int) -> tuple[Family, Scores]:
    """Family and scores of Poisson-sampled Gaussian rounds with this ε; strength 1 is the claimed noise."""
    unit = Known(value=1, relation="add_or_remove_one", norm="l2")
    any_noise = SplitMechanism(
        smashed=unit,
        noise=Noise(smashed=1.0),
        relation="add_or_remove_one",
        participation=Poisson(rate=rate),
        rounds=rounds,
        lower_model="frozen",
    )
    claimed = calibrate(any_noise, "sigma", epsilon=epsilon, delta=DELTA).mechanism

    def scores(coins: Array, strength: float, rng: np.random.Generator) -> Array:
        mu, there = strength / claimed.noise.smashed, rng.random((coins.size, rounds)) < rate
        seen = rng.standard_normal((coins.size, rounds)) + mu * (there & (coins > 0)[:, None])
        return np.asarray(np.log1p(rate * np.expm1(mu * seen - mu * mu / 2)).sum(1))

    return ScaledNoise(mechanism=claimed), scores


def draws(
    scored: Scores, strength: float, canaries: int, count: int, rng: np.random.Generator, bound: Callable[..., float]
) -> Array:
    """The bounds of `count` runs with random coins."""
    found = []
    for _ in range(count):
        coins = rng.random(canaries) < 0.5
        scores = scored(coins, strength, rng)
        found.append(bound(scores[coins], scores[~coins]))
    return np.array(found)


def main(options: Options) -> None:
    """Compute the bounds for each ε and number of canaries; print and write the table."""
    if options.rate is not None and options.table == TABLE:
        raise ValueError(f"{TABLE.name} holds bounds of one release; name another file with --table")
    rows = []
    for truth, canaries, (name, (bound, slower)) in product(options.epsilons, options.canaries, BOUNDS.items()):
        family, scored = (GAUSSIAN, released) if options.rate is None else sampled(truth, options.rate, options.rounds)
        claim = family.strength(truth, DELTA)
        told = partial(bound, family=family, claim=claim)
        rng = np.random.default_rng([options.seed, round(10 * truth), canaries])
        count = max(1, options.draws // slower)
        honest = draws(scored, claim, canaries, count, rng, told)
        faulty = draws(scored, claim / options.planted, canaries, count, rng, told)
        low, middle, high = np.quantile(honest, [0.05, 0.5, 0.95])
        rows.append(
            [f"{truth:g}", f"{canaries:,}", name, str(count), f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
            + [f"{np.mean(values > truth * (1 + 1e-9)):.3f}" for values in (honest, faulty)]
        )
        print(*rows[-1], sep="  ", flush=True)
    heading = ["true ε", "canaries", "bound", "draws", "median", "5 to 95 %", "above the truth", "caught at .8 σ"]
    write_table(options.table, heading, rows)
