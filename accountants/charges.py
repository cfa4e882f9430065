"""The privacy cost of a ledger's charges, i.e. its recorded releases: what is added up, and the bounds on the sum."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf, log

import numpy as np

from privkit.accountants import compile as compiled
from privkit.accountants.bounds import gaussian, renyi
from privkit.accountants.bounds.bound import Bound
from privkit.accountants.bounds.closed_forms import BALLE_WANG, GaussianBound
from privkit.accountants.bounds.numerical_composition import tight_bounds
from privkit.accountants.bounds.renyi_composition import CONVERSION, AddedCurves, RenyiBound
from privkit.accountants.bounds.step import USUAL_ORDERS, Step, Steps
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import PrivateUpdates
from privkit.accountants.spec.secrets import has_secrets
from privkit.accountants.wording import assumptions, warnings
from privkit.shared.array import Array

Counts = Mapping[SplitMechanism, tuple[int, int]]
"""Mechanism of one round -> (number of units, number of charges). A unit is a round, or rounds charged together."""


def bounds_of_charges(counts: Counts, total: Array, *, tight: bool) -> list[Bound]:
    """The bounds (at least one) on the joint ε and δ of all charges (recorded releases) of a ledger.

    `total` is the sum of the charges' costs (`cost_of`). `tight` adds numerical composition of privacy loss
    distributions.

    Source: see `ledger.Ledger`.
    """
    holding = compiled.bounds(steps_of_charges(counts), tight=tight) if len(counts) == 1 else []
    if holding and holding[0].exact:
        return holding
    if total[0] < inf:
        rates = [rate for one in counts for rate in (one.sampling.rate, getattr(one.lower_model, "rate", 1))]
        plain = all(rate == 1 for rate in rates) and not any(map(has_secrets, counts))
        method = "Gaussian profile at √Σμ²" + ("" if plain else ", nothing credited to sampling")
        source = f"{BALLE_WANG}; Dong, Roth and Su 2022, Corollary 3.3"
        holding.append(GaussianBound(mu=float(np.sqrt(total[0])), method=method, source=source))
    holding.append(
        RenyiBound(
            steps=[(AddedCurves(values=total[1:]), 1)],
            orders=USUAL_ORDERS,
            method="Rényi curves of all charges added",
            source=f"Mironov 2017, Proposition 1; {CONVERSION}",
        )
    )
    if tight and len(counts) > 1:
        holding += tight_bounds(steps_of_charges(counts))
    return holding


def within(total: Array, epsilon: float, delta: float) -> bool:
    """Whether the fast bounds prove that a total cost, [1 + A] as in `cost_of`, is (ε, δ)-DP. The fast bounds skip
    numerical composition, so the budget may hold even if the result is False."""
    if total[0] < inf and gaussian.log_delta(epsilon, np.sqrt(total[0])) <= log(delta):
        return True
    return bool(np.min(renyi.canonne(USUAL_ORDERS, total[1:], delta)) <= epsilon)


def cost_of(one: SplitMechanism, units: int, charges: int) -> Array:
    """Compute the cost of all charged rounds of a mechanism, float [1 + A]: Σμ², then the Rényi divergence at each of A
    `USUAL_ORDERS`. μ is the sensitivity divided by the noise's standard deviation, or `inf` without a Gaussian bound.

    Rounds that must be charged together count as one of the `units`. The noisy updates of the lower model (the clients'
    segment) are added once per charge.
    """
    updates = charges * _updates_cost(one.lower_model) if isinstance(one.lower_model, PrivateUpdates) else 0.0
    return units * unit_cost(one) + updates


@lru_cache(maxsize=256)
def unit_cost(one: SplitMechanism) -> Array:
    """Compute `cost_of` for one unit: a round, or rounds charged together. Do not change the cached array."""
    return _step_cost(*compiled.releases(one))


@lru_cache(maxsize=256)
def _updates_cost(updates: PrivateUpdates) -> Array:
    return _step_cost(*compiled.update_step(updates))


def units_and_charges(one: SplitMechanism, rounds: int) -> tuple[int, int]:
    """What a ledger's charge of `rounds` rounds adds: the number of units, and the number of charges, which is 1. A
    unit is a round, or a group of rounds that are charged together."""
    return rounds // one.charged_together, 1


def plus(known: tuple[int, int] | None, more: tuple[int, int]) -> tuple[int, int]:
    """The sum of two pairs (units, charges); None counts as (0, 0)."""
    units, charges = known or (0, 0)
    return units + more[0], charges + more[1]


def _step_cost(step: Step, count: int) -> Array:
    return np.concatenate([[step.shift(count) ** 2], step.rdp(USUAL_ORDERS, count)])


def steps_of_charges(counts: Counts) -> Steps:
    """The run that consists of all charges, as pairs (step, number of its repetitions)."""
    run: list[tuple[Step, int]] = []
    for one, (units, charges) in counts.items():
        step, count = compiled.releases(one)
        run.append((step, units * count))
        run += [(update, charges * steps) for update, steps in compiled.updates(one)]
    return run


def said_of_charges(counts: Counts, delta: float) -> list[str]:
    """List the assumptions and warnings: first those that all mechanisms share, then the others, each with the number
    of its mechanism."""
    each = [(*assumptions(one), *warnings(one, delta)) for one in counts]
    shared = [sentence for sentence in each[0] if all(sentence in other for other in each)]
    rest = [(number, sentence) for number, said in enumerate(each, 1) for sentence in said if sentence not in shared]
    return shared + [f"mechanism {number} of {len(each)}: {sentence}" for number, sentence in rest]
