"""Numerical composition of a mechanism's rounds by privacy loss distributions, where no closed form is exact."""

from __future__ import annotations

from dataclasses import dataclass

from privkit.accountants.bounds import independent_steps, pld, profiles, round_profiles, subsampling
from privkit.accountants.bounds.loss_distribution import GridTooLarge, Pair, Profile
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Known

METHOD = "numerical composition of privacy loss distributions"
SOURCE = "Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022"

MOST_NODES = 4_000
"""Nodes of a law of ratios above which a grid of its profile takes minutes; the Rényi bound then stands alone."""

Steps = list[tuple[Profile | Pair, int]]


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Bounds on ε, or on δ, of all rounds; `lower` is None where no one pair of neighbors is worst throughout."""

    upper: float
    lower: float | None = None


def steps(mechanism: SplitMechanism) -> Steps | None:
    """Exact profiles of the rounds and how often each is composed; None where none is known.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Known
    >>> one = Known(value=1, relation="add_or_remove_one", norm="l2")
    >>> sampled = SplitMechanism(
    ...     smashed=one, noise=Noise(smashed=1), lower_model="frozen", relation="add_or_remove_one",
    ...     participation=Poisson(rate=0.01), rounds=10,
    ... )
    >>> [rounds for _, rounds in steps(sampled)]
    [10]
    """
    found = releases(mechanism)
    return None if found is None else found + updates(mechanism)


def updates(mechanism: SplitMechanism) -> Steps:
    """The noisy updates of the lower model; empty where there are none.

    >>> from privkit.accountants.spec.parts import Noise
    >>> one = SplitMechanism(
    ...     smashed=Known(value=1, relation="replace_one", norm="l2"), noise=Noise(smashed=1),
    ...     lower_model=PrivateUpdates(noise_multiplier=2, steps=9),
    ... )
    >>> [rounds for _, rounds in updates(one)]
    [9]
    """
    lower = mechanism.lower_model
    if not isinstance(lower, PrivateUpdates):
        return []
    return [(round_profiles.without_replacement_gaussian(lower.rate, 1 / lower.noise_multiplier), lower.steps)]


def releases(mechanism: SplitMechanism) -> Steps | None:
    """The steps of the releases alone; Laplace noise has one for smashed data and one for labels.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> noise = Noise(law="laplace", smashed=1)
    >>> one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=9), noise=noise, lower_model="frozen", rounds=2)
    >>> [rounds for _, rounds in releases(one)]
    [18]
    """
    if (special := independent_steps.of(mechanism)) is not None:
        return special.profiles() or None
    rounds, rate = mechanism.composed_rounds, mechanism.sampling.rate
    if mechanism.noise.law == "laplace":
        parts = mechanism.laplace_parts()
        if rate == 1:
            return [(round_profiles.laplace(shift), count * rounds) for shift, count in parts]
        if sum(count for _, count in parts) > 1:
            return None  # the profile of several variables together has no closed form to be sampled
        base = round_profiles.laplace(parts[0][0])
        return [(lambda epsilon: subsampling.without_replacement_delta(epsilon, rate, base), rounds)]
    if isinstance(mechanism.sampling, Poisson):
        constant = mechanism.shift().constant
        assert constant is not None  # Poisson subsets are not mixed
        return [(round_profiles.poisson_gaussian(rate, constant), rounds)]
    profile = profiles.one_round(mechanism)
    if profile is None or (rounds > 1 and mechanism.shift().mu.size > MOST_NODES):
        return None
    return [(profile, rounds)]


def epsilon(mechanism: SplitMechanism, delta: float) -> Composed | None:
    """Bounds on ε at δ; None where no profile is known or the grid would be too large.

    The lower bound is that of one pair of neighbors: with published coins the pair that every round's profile belongs
    to; with sampled clients a record against zero among others' zeros, which attains the sampled profile in one
    direction only, so that it is composed apart.
    """
    found = steps(mechanism)
    if found is None:
        return None
    try:
        lower, upper = pld.composed_bounds(found, delta)
        unattained = isinstance(mechanism.lower_model, PrivateUpdates) or _sum_only(mechanism)
        if unattained or independent_steps.of(mechanism) is not None:
            return Composed(upper=upper)
        if isinstance(mechanism.sampling, WithoutReplacement) and mechanism.sampling.rate < 1:
            constant = mechanism.shift().constant if mechanism.noise.law == "gaussian" else None
            if constant is None:
                return Composed(upper=upper)
            pair = round_profiles.poisson_gaussian(mechanism.sampling.rate, constant)
            lower = pld.composed_lower([(pair, found[0][1])], delta)
    except GridTooLarge:
        return None  # the Rényi bound stands
    return Composed(upper=upper, lower=min(lower, upper))


def delta(mechanism: SplitMechanism, epsilon: float) -> Composed | None:
    """An upper bound on δ at ε: the inverse of `epsilon`, up to the grid; None likewise."""
    found = steps(mechanism)
    if found is None:
        return None
    try:
        return Composed(upper=pld.history_delta(found, epsilon))
    except GridTooLarge:
        return None


def _sum_only(mechanism: SplitMechanism) -> bool:
    """Whether Laplace noise meets a known L1 distance, which need not fit into the one coordinate that is worst."""
    return mechanism.noise.law == "laplace" and Known in (type(mechanism.smashed), type(mechanism.labels))
