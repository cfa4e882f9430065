"""The bounds of a run: each both ways, none below the truth, many at once as one by one."""

import re
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from privkit.accountants import answer, compile
from privkit.accountants.bounds.allocation import ToldPlaces
from privkit.accountants.bounds.numerical_composition import ComposedBound
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation
from privkit.accountants.spec.sensitivity import Categories, Clamp

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "compose.md"
DELTA = 1e-5
START = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=4.0), lower_model="frozen")
ADDED = replace(START, relation="add_or_remove_one")
UPDATES = PrivateUpdates(noise_multiplier=2.0, steps=20)
RUNS: dict[str, SplitMechanism] = {
    "gaussian": START,
    "rounds": replace(START, rounds=9),
    "fixed ratios": replace(START, mixing=Mixup(ratio=FixedRatio.equal(2)), rounds=3),
    "one of random ratios": replace(START, mixing=CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=4)),
    "random ratios": replace(
        START, mixing=CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=4), rounds=5
    ),
    "one k of n": replace(START, participation=WithoutReplacement(chosen=2, clients=10)),
    "k of n": replace(START, participation=WithoutReplacement(chosen=2, clients=10), rounds=20),
    "poisson": replace(ADDED, participation=Poisson(rate=0.1), rounds=20),
    "laplace": replace(START, noise=Noise(law="laplace", smashed=2.0), rounds=3),
    "one coordinate": replace(
        START, smashed=Clamp(low=0, high=1, dimensions=1), noise=Noise(law="laplace", smashed=2.0)
    ),
    "updates": replace(START, lower_model=UPDATES, rounds=3),
    "sampled updates": replace(
        START, lower_model=PrivateUpdates(noise_multiplier=1.0, steps=50, chosen=10, records=100), rounds=3
    ),
    "allocation": replace(
        ADDED, participation=RandomAllocation(participations=2, epoch_rounds=8), rounds=16
    ),
    "hidden masks": replace(ADDED, mixing=HiddenMask(kept=2, patches=4), rounds=3),
    "told masks": replace(START, mixing=HiddenMask(kept=2, patches=4), rounds=3),
    "answers": SplitMechanism(
        smashed=Categories(classes=4, answers=3), noise=Noise(law="randomized_response", smashed=0.5),
        lower_model="frozen", rounds=4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_bound_answers_both_ways(name: str) -> None:
    """What a bound proves as ε at δ it proves as δ at that ε, and not much more."""
    for one in compile.bounds(compile.steps(RUNS[name])):
        there = one.epsilon(DELTA).value
        assert 0 <= there < inf
        back = one.log_delta(there).value
        slack = 1e-3 if isinstance(one, ComposedBound) else 1e-6
        assert back <= log(DELTA) + slack
        if there > 0 and "pure" not in one.method:
            assert back >= log(DELTA) - 0.02 - slack  # a step down at the best order's ε, or of the grid


@pytest.mark.parametrize("name", RUNS)
def test_an_exact_bound_is_below_all_others(name: str) -> None:
    """A second step that costs nothing, and counts as not exact, asks for the bounds that an exact one leaves out."""
    run = compile.steps(RUNS[name])
    alone = compile.bounds(run, tight=False)
    if not alone[0].exact:
        assert len(alone) > 1
        return
    assert len(alone) == 1
    free = ToldPlaces(chosen=1, mu=0.0)
    others = [one for one in compile.bounds([*run, (free, 1)], tight=False) if not one.exact]
    for delta in (1e-2, 1e-5, 1e-9):
        assert others
        assert all(one.epsilon(delta).value >= alone[0].epsilon(delta).value * (1 - 1e-9) for one in others)


def test_a_table_is_its_rows() -> None:
    together = list(answer.epsilons(list(RUNS.values()), [DELTA] * len(RUNS)))
    for mechanism, found in zip(RUNS.values(), together, strict=True):
        assert answer.epsilon(mechanism, DELTA, tight=False).epsilon == pytest.approx(found.epsilon, rel=1e-13)


def test_bounds_of_one_batch_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    curves = GaussianRelease.curves

    def counted(releases: Any, orders: Any) -> Any:
        asked.append(len(releases))
        return curves(releases, orders)

    monkeypatch.setattr(GaussianRelease, "curves", staticmethod(counted))
    list(answer.epsilons([replace(RUNS["poisson"], rounds=rounds) for rounds in range(2, 41)], [DELTA] * 39))
    assert asked[0] == 39
    assert len(asked) <= 14  # coarse orders, the neighbors of each, high orders: rows do not add to them


@pytest.mark.parametrize(("sampling", "most"), [("poisson", 1.01), ("without_replacement", 1.15)])
def test_delta_of_two_sampled_steps_by_quadrature(sampling: Any, most: float) -> None:
    """Of k of n no pair of neighbors attains the profile in both directions, so that its δ is above this pair's."""
    release = GaussianRelease(mu=1.0, sampling=sampling, rate=0.3)
    update = GaussianRelease(mu=0.8, sampling=sampling, rate=0.5, worst=False)
    *_, composed = compile.bounds([(release, 1), (update, 1)])
    for epsilon in (0.2, 0.8, 1.5):
        found, true = exp(composed.log_delta(epsilon).value), _two_steps(release, update, epsilon)
        assert true * (1 - 1e-6) <= found <= true * most


def test_a_gaussians_trade_off_curve_is_met_from_below() -> None:
    alpha = np.array([1e-4, 0.01, 0.1, 0.5, 0.9, 1.0])
    true = norm.cdf(norm.ppf(1 - alpha) - 0.5)
    found = answer.trade_off(replace(START, noise=Noise(smashed=4.0)), alpha)
    assert np.all(found <= true + 1e-12)
    assert found == pytest.approx(true, abs=2e-3)


@pytest.mark.parametrize("name", ["poisson", "laplace", "answers"])
def test_a_trade_off_curve_falls_and_is_convex(name: str) -> None:
    alpha = np.linspace(0, 1, 21)
    beta = answer.trade_off(RUNS[name], alpha, tight=False)
    assert np.all(np.diff(beta) <= 1e-12)
    assert np.all(np.diff(beta, 2) >= -1e-12)
    assert np.all(beta <= 1 - alpha)


def test_rates_outside_0_to_1_are_refused() -> None:
    with pytest.raises(ValueError, match="false positive rate must lie in"):
        answer.trade_off(START, [0.5, 1.1])


@pytest.mark.parametrize("page", re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL))
def test_the_examples_of_the_guide_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(page, {})


def _two_steps(release: GaussianRelease, update: GaussianRelease, epsilon: float) -> float:
    """δ of two independent steps of the pair P = (1 − γ)N(0, 1) + γN(μ, 1) against Q = N(0, 1), which is a real one."""

    def ratio(one: GaussianRelease, x: float) -> float:
        return 1 - one.rate + one.rate * exp(one.mu * x - one.mu**2 / 2)

    def inner(x: float) -> float:
        """∫ (P(x, y) − e^ε Q(x, y))₊ dy: the ratio grows in y, so that it is a half line."""
        first = ratio(release, x)
        need = (exp(epsilon) / first - 1 + update.rate) / update.rate
        y = -inf if need <= 0 else (log(need) + update.mu**2 / 2) / update.mu
        above = (1 - update.rate) * norm.sf(y) + update.rate * norm.sf(y - update.mu)
        return float(norm.pdf(x) * (first * above - exp(epsilon) * norm.sf(y)))

    return float(quad(inner, -12, 14, epsabs=1e-13, limit=400)[0])
