"""What the charges of a ledger cost together: Gaussian shifts and Rényi curves add up, the smallest bound holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from privkit.accountants import answer
from privkit.accountants.bounds import composition, gaussian, independent_steps, pld, renyi, round_profiles
from privkit.accountants.bounds.loss_distribution import GridTooLarge
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import PrivateUpdates

Array = NDArray[np.float64]
Counts = Mapping[SplitMechanism, tuple[int, int]]
"""One round's mechanism -> units charged (1 for rounds that share their ratios) and number of charges."""

ORDERS = np.array(renyi.ORDERS)
"""Orders at which the curves of all charges are added up."""
ADDED = "Mironov 2017, Proposition 1"
ROOT_OF_SQUARES = "Dong, Roth and Su 2022, Corollary 3.3"


def best(counts: Counts, total: Array, delta: float, *, tight: bool) -> answer.Bound:
    """The smallest of the valid bounds on ε.

    Args:
        counts: all charges, at least one.
        total: [1 + A] their cost, added.
        delta: in (0, 1).
        tight: whether numerical composition is tried, too.

    Source: as for `ledger.Ledger`.
    """
    bounds, whole = [], _whole(counts)
    if whole is not None:
        found = answer.epsilon(whole, delta, tight=tight)
        exact = found.lower == found.epsilon
        bounds.append(_bound(found.epsilon, found.method, found.source, found.order, found.at_grid_edge, exact))
        if exact:
            return bounds[0]
    root = float(np.sqrt(total[0]))
    unsampled = root < inf and all(map(_unsampled, counts))
    if root < inf:
        method = "Gaussian profile at √Σμ²" + ("" if unsampled else ", nothing credited to sampling")
        bounds.append(_bound(gaussian.epsilon(delta, root), method, f"{answer.BALLE_WANG}; {ROOT_OF_SQUARES}"))
    if not unsampled:
        sums = renyi.best_epsilon(ORDERS, total[1:], delta)
        method, source = "Rényi curves of all charges added", f"{ADDED}; {answer.CONVERSION}"
        bounds.append(_bound(sums.value, method, source, sums.order, sums.at_edge))
        if tight and whole is None and (value := _composed(counts, delta)) is not None:
            bounds.append(_bound(value, composition.METHOD, composition.SOURCE))
    return min(bounds, key=lambda bound: bound.value)


def within(total: Array, epsilon: float, delta: float) -> bool:
    """Whether a cheap bound on [1 + A] a cost already fits into (ε, δ)."""
    if total[0] < inf and gaussian.log_delta(epsilon, np.sqrt(total[0])) <= log(delta):
        return True
    return bool(np.min(renyi.canonne(ORDERS, total[1:], delta)) <= epsilon)


def cost(one: SplitMechanism, units: int, charges: int) -> Array:
    """[1 + A] Σμ² (`inf` for what is no Gaussian of constant shift) and the Rényi curve of so many units and charges.

    The lower model's updates come with the first unit of each charge.
    """
    updates = charges * updates_cost(one.lower_model) if isinstance(one.lower_model, PrivateUpdates) else 0.0
    return units * unit_cost(one) + updates


@lru_cache(maxsize=256)
def unit_cost(one: SplitMechanism) -> Array:
    """[1 + A] of the releases of one unit; not to be changed."""
    if (steps := independent_steps.of(one)) is not None:
        told = inf if steps.told is None else steps.told**2
        return np.concatenate([[told], steps.curve(ORDERS)])
    constant = one.shift().constant if one.noise.law == "gaussian" else None
    squared = inf if constant is None else constant**2
    return np.concatenate([[squared], answer.releases_curve(one, ORDERS)])


@lru_cache(maxsize=256)
def updates_cost(updates: PrivateUpdates) -> Array:
    """[1 + A] of one charge's updates; not to be changed."""
    squared = updates.steps / updates.noise_multiplier**2
    return np.concatenate([[squared], answer.updates_curve(updates, ORDERS)])


def counted(one: SplitMechanism, rounds: int) -> tuple[int, int]:
    """Units and charges of one charge: rounds that are charged together are one unit."""
    return rounds // one.charged_together, 1


def plus(known: tuple[int, int] | None, more: tuple[int, int]) -> tuple[int, int]:
    """Units and charges added."""
    units, charges = known or (0, 0)
    return units + more[0], charges + more[1]


def _unsampled(one: SplitMechanism) -> bool:
    """Whether nothing of it is sampled."""
    if independent_steps.of(one) is not None:
        return False
    updates = one.lower_model.rate if isinstance(one.lower_model, PrivateUpdates) else 1
    return one.sampling.rate == updates == 1


def _whole(counts: Counts) -> SplitMechanism | None:
    """All charges as one mechanism, where they are of one kind."""
    (one, (units, charges)), *others = counts.items()
    if others or (charges > 1 and (one.joint or isinstance(one.lower_model, PrivateUpdates))):
        return None
    return replace(one, rounds=units * one.charged_together)


def _composed(counts: Counts, delta: float) -> float | None:
    """Numerical composition of all charges; None where a profile is not known or the grid would be too large."""
    squared, steps = 0.0, []
    for one, (units, charges) in counts.items():
        if _unsampled(one) and (shifts := float(cost(one, units, charges)[0])) < inf:
            squared += shifts  # Gaussians that are not sampled need no grid of their own
            continue
        if (found := composition.releases(one)) is None:
            return None
        steps += [(profile, units * number) for profile, number in found]
        steps += [(profile, charges * number) for profile, number in composition.updates(one)]
    if squared:
        steps.append((round_profiles.gaussian_profile(squared**0.5), 1))
    try:
        return pld.composed_bounds(steps, delta)[1]
    except GridTooLarge:
        return None


def _bound(
    value: float, method: str, source: str, order: float | None = None, at_edge: bool = False, exact: bool = False
) -> answer.Bound:
    """Shorthand."""
    return answer.Bound(value=value, method=method, source=source, order=order, at_edge=at_edge, exact=exact)
