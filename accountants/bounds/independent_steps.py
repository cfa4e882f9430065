"""Mechanisms whose run is a list of independent steps: random allocation, hidden masks and randomized response.

The list says for each step what composes: its profile and its Rényi curve, both upper bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.bounds import allocation, gaussian, randomized_response, renyi, round_profiles
from privkit.accountants.bounds.loss_distribution import Pair, Profile
from privkit.accountants.bounds.randomized_response import Categories
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation
from privkit.accountants.spec.sensitivity import Clamp, PatchBall

Array = NDArray[np.float64]

ORDERS = np.concatenate([[1.25, 1.5], np.arange(2.0, 65.0), [96.0, 128.0]])
"""Orders at which curves of secret places are tried; the time grows with the square of the largest."""
MOST_OVERLAPS = 1_024
"""Places up to which the exact overlap of two or three subsets is summed."""
ALLOCATION = "Feldman and Shenfeld 2025"
MASKS = "derived: a hidden mask under addition is a random allocation over patches"
TOLD = "derived: joint convexity"
RESPONSE = "Kairouz, Oh and Viswanath 2015"


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A run as independent steps.

    Attributes:
        profiles: makes (profile, how often) for numerical composition; nothing where that gains nothing.
        orders: at which the curve is worth asking for.
        curve: Rényi curve of the whole run.
        method: what the curve and the composition are, in words.
        source: theorem behind them.
        told: μ of the run if every secret is told; None where there is no Gaussian noise.
        response: p, k and the number of answers; None without randomized response.
    """

    profiles: Callable[[], list[tuple[Profile | Pair, int]]]
    orders: Array
    curve: Callable[[Array], Array]
    method: str
    source: str
    told: float | None = None
    response: tuple[float, int, int] | None = None


def of(mechanism: SplitMechanism) -> Steps | None:
    """The steps of a run; None for mechanisms that `answer` computes in other ways.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Known
    >>> one = SplitMechanism(
    ...     smashed=Known(value=1, relation="add_or_remove_one", norm="l2"), noise=Noise(smashed=1),
    ...     lower_model="frozen", relation="add_or_remove_one", rounds=100,
    ...     participation=RandomAllocation(participations=3, epoch_rounds=100),
    ... )
    >>> [count for _, count in of(one).profiles()]
    [2, 1]
    """
    if isinstance(mechanism.smashed, Categories):
        return _response(mechanism, mechanism.smashed)
    if isinstance(part := mechanism.participation, RandomAllocation):
        mu = mechanism.shift().constant
        assert mu is not None  # allocated rounds are not mixed
        epochs = mechanism.rounds // part.epoch_rounds
        return _secret_places(part.participations, part.epoch_rounds, mu, epochs, "random allocation", ALLOCATION)
    if isinstance(mask := mechanism.mixing, HiddenMask):
        mu = patch_shift(mechanism, mask)
        if mechanism.relation == "add_or_remove_one":
            return _secret_places(mask.kept, mask.patches, mu, mechanism.rounds, "hidden masks", MASKS)
        told = sqrt(mask.kept * mechanism.rounds) * mu
        return Steps(
            profiles=list,
            orders=np.array(renyi.ORDERS),
            curve=lambda order: gaussian.rdp(order, told),
            method="masks as if told",
            source=TOLD,
            told=told,
        )
    return None


def patch_shift(mechanism: SplitMechanism, mask: HiddenMask) -> float:
    """Largest shift of one patch over the noise: that of ⌈D/N⌉ clamped coordinates, or of a patch's ball."""
    clip = mechanism.smashed
    if isinstance(clip, PatchBall):
        one: Clamp | PatchBall = PatchBall(radius=clip.radius, patches=1, nonnegative=clip.nonnegative)
    else:
        assert isinstance(clip, Clamp)
        one = Clamp(low=clip.low, high=clip.high, dimensions=ceil(clip.dimensions / mask.patches))
    return one.sensitivity(mechanism.relation, "l2").value / mechanism.noise.smashed


def _secret_places(chosen: int, places: int, mu: float, times: int, method: str, source: str) -> Steps:
    """k of t secret places, repeated: split at random into k blocks, each of which holds one.

    A uniform choice of one place in each block of a uniform partition is a uniform subset. Telling the partition cannot
    lower a divergence (joint convexity), and then the blocks are independent. More than half of the places are as many
    as are left, and a shift that is told: along (1, …, 1) every subset moves the mean by k/√t, and across it a subset
    and its complement mirror each other, so that k of t is t − k of t and one Gaussian of μ²(2k − t).
    """
    known, hidden = max(2 * chosen - places, 0), min(chosen, places - chosen)
    size, larger = divmod(places, max(hidden, 1))
    blocks = [(block, count) for block, count in ((size, hidden - larger), (size + 1, larger)) if count > 0]
    shift, told = mu * sqrt(known * times), sqrt(chosen * times) * mu

    def curve(order: Array) -> Array:
        rest = np.zeros_like(order)
        for block, count in blocks:
            rest = rest + count * allocation.rdp(order, block, mu)
        for i in np.flatnonzero(np.isin(order, (2, 3))) if hidden > 1 and places <= MOST_OVERLAPS else ():
            with_shift = allocation.log_overlap(int(order[i]), hidden, places, mu) / (order[i] - 1)
            reverse = sum(count * allocation.reverse_rdp(order[i], block, mu) for block, count in blocks)
            rest[i] = min(rest[i], max(with_shift, reverse))
        return np.minimum(gaussian.rdp(order, shift) + times * rest, gaussian.rdp(order, told))

    def profiles() -> list[tuple[Profile | Pair, int]]:
        found: list[tuple[Profile | Pair, int]] = [(allocation.profile(block, mu), times * n) for block, n in blocks]
        return [*found, (round_profiles.gaussian_profile(shift), 1)] if known else found

    return Steps(
        profiles=profiles,
        orders=ORDERS,
        curve=curve,
        method=method,
        source=source,
        told=told,
    )


def _response(mechanism: SplitMechanism, categories: Categories) -> Steps:
    """All answers of all rounds, every one of which a neighbor may change."""
    noise, classes = mechanism.noise.smashed, categories.classes
    answers = categories.answers * mechanism.rounds * mechanism.releases
    return Steps(
        profiles=lambda: [(randomized_response.profile(noise, classes), answers)],
        orders=np.array(renyi.ORDERS),
        curve=lambda order: answers * randomized_response.rdp(order, noise, classes),
        method="randomized response",
        source=RESPONSE,
        response=(noise, classes, answers),
    )
