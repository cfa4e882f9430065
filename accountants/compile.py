"""Translate a mechanism into steps, i.e. repeated noisy releases, and choose the bounds that hold for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import ceil
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants.bounds import BOUNDS
from privkit.accountants.bounds.allocation import SecretPlaces, ToldPlaces
from privkit.accountants.bounds.bound import Bound
from privkit.accountants.bounds.laplace import LaplaceRelease
from privkit.accountants.bounds.mixture import PublicMixture
from privkit.accountants.bounds.randomized_response import RandomizedAnswer
from privkit.accountants.bounds.renyi_composition import renyi_curves
from privkit.accountants.bounds.sampled import GaussianRelease, Sampling
from privkit.accountants.bounds.step import Step, Steps
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.noise_laws import LawName
from privkit.accountants.spec.parts import Poisson, PrivateUpdates
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, ShuffledEpochs
from privkit.accountants.spec.sensitivity import Categories, Clamp, Known, PatchBall
from privkit.accountants.spec.shift import laplace_parts, laplace_shift
from privkit.shared.array import Array

_NUMERICAL = "numerical_composition", "third_record"
"""Bounds that are tried only with `tight`."""


def steps(mechanism: SplitMechanism) -> Steps:
    """The steps of a run, as pairs (step, number of its repetitions): the releases of all rounds, then the noisy
    updates of the lower model (the clients' segment) if there are any."""
    return [releases(mechanism), *updates(mechanism)]


def releases(mechanism: SplitMechanism) -> tuple[Step, int]:
    """The step that describes the releases of one round, epoch or answer, and the number of its repetitions."""
    return RELEASES[mechanism.noise.law](mechanism)


def _gaussian_step(mechanism: SplitMechanism) -> tuple[Step, int]:
    rounds, sampling = mechanism.composed_rounds, mechanism.sampling
    if isinstance(part := mechanism.participation, RandomAllocation):
        mu = mechanism.shift().constant  # nothing is mixed
        assert mu is not None
        places = SecretPlaces(chosen=part.participations, places=part.epoch_rounds, mu=mu)
        return places, mechanism.rounds // part.epoch_rounds
    if isinstance(mask := mechanism.mixing, HiddenMask):
        mu = _patch_shift(mechanism, mask)
        if mechanism.relation == "add_or_remove_one":
            return SecretPlaces(chosen=mask.kept, places=mask.patches, mu=mu, masked=True), rounds
        return ToldPlaces(chosen=mask.kept, mu=mu), rounds
    law = mechanism.shift()
    if law.constant is None:
        return PublicMixture(law=law, rate=sampling.rate), rounds
    if isinstance(part, ShuffledEpochs) and part.records is not None:
        from privkit.accountants.bounds.shuffled_rows import ShuffledRows  # its FFT is slow to import

        apart = replace(mechanism, relation="replace_one").shift().constant or 0.0  # distance of two records
        return ShuffledRows(records=part.records, mu=law.constant, apart=max(law.constant, apart)), rounds
    kind: Sampling = "poisson" if isinstance(sampling, Poisson) else "without_replacement"
    rate = sampling.rate
    return GaussianRelease(mu=law.constant, sampling=kind if rate < 1 else "every_round", rate=rate), rounds


def _laplace_step(mechanism: SplitMechanism) -> tuple[Step, int]:
    worst = Known not in (type(mechanism.smashed), type(mechanism.labels))  # a known sum may need several coordinates
    parts, single = laplace_parts(mechanism), bool(laplace_shift(mechanism)[1])
    one = LaplaceRelease(parts=parts, rate=mechanism.sampling.rate, single=single, worst=worst)
    return one, mechanism.composed_rounds


def _response_step(mechanism: SplitMechanism) -> tuple[Step, int]:
    answered = mechanism.smashed
    assert isinstance(answered, Categories)
    one = RandomizedAnswer(noise=mechanism.noise.smashed, classes=answered.classes)
    return one, answered.answers * mechanism.composed_rounds * mechanism.releases


RELEASES: Mapping[LawName, Callable[[SplitMechanism], tuple[Step, int]]] = {
    "gaussian": _gaussian_step,
    "laplace": _laplace_step,
    "randomized_response": _response_step,
}
"""Law of the noise -> function that computes `releases`."""


def updates(mechanism: SplitMechanism) -> Steps:
    """The noisy updates of the clients' segment, as a list of one pair (step, repetitions); empty if no update is
    noisy."""
    lower = mechanism.lower_model
    return [update_step(lower)] if isinstance(lower, PrivateUpdates) else []


def update_step(updates: PrivateUpdates) -> tuple[Step, int]:
    """The step of one noisy update, and the number of updates. The neighbors that differ most in the updates need not
    be those that differ most in the releases, so `worst` is False."""
    kind: Sampling = "without_replacement" if updates.rate < 1 else "every_round"
    one = GaussianRelease(mu=1 / updates.noise_multiplier, sampling=kind, rate=updates.rate, worst=False)
    return one, updates.steps


def curve(mechanism: SplitMechanism, orders: ArrayLike) -> Array:
    """Upper bounds, in nats, on the Rényi divergence of a run of the `mechanism` at A `orders` α > 1: float [A]. If
    releases are sampled, the bounds are interpolated between whole orders.

    >>> from privkit.accountants.table import mechanism_of
    >>> curve(mechanism_of({"mechanism": "gaussian", "sigma": 2, "sensitivity": 2}), [2, 8]).tolist()
    [1.0, 4.0]
    """
    return np.asarray(renyi_curves([steps(mechanism)], np.asarray(orders, float))[0])


def bounds(run: Steps, *, tight: bool = True) -> list[Bound]:
    """Collect every bound on ε and δ that applies to a run. An exact bound is returned alone, since no bound is
    smaller.

    With `tight`, privacy loss distributions are composed numerically too. An answer then takes tens of milliseconds,
    and up to a second for many rounds in which k of n clients are sampled.
    """
    exact = run[0][0].exact(run[0][1]) if len(run) == 1 else None
    if exact is not None:
        return [exact]
    holding = []
    for theorem in _theorems(tuple(BOUNDS.items()), tight):
        bound = theorem(run)
        if bound is not None:
            if bound.exact:
                return [bound]
            holding.append(bound)
    return holding


@cache
def _theorems(table: tuple[tuple[str, str], ...], tight: bool) -> list[Callable[[Steps], Bound | None]]:
    wanted = [target.split(":") for name, target in table if tight or name not in _NUMERICAL]
    return [cast("Callable[[Steps], Bound | None]", getattr(import_module(module), name)) for module, name in wanted]


def _patch_shift(mechanism: SplitMechanism, mask: HiddenMask) -> float:
    """The largest distance of one patch between two neighboring releases, divided by the noise's standard deviation.
    Each of N patches has at most ⌈D/N⌉ of D clamped coordinates, or is clipped to a ball."""
    clip = mechanism.smashed
    if isinstance(clip, PatchBall):
        one: Clamp | PatchBall = PatchBall(radius=clip.radius, patches=1, nonnegative=clip.nonnegative)
    else:
        assert isinstance(clip, Clamp)
        one = Clamp(low=clip.low, high=clip.high, dimensions=ceil(clip.dimensions / mask.patches))
    return one.sensitivity(mechanism.relation, "l2") / mechanism.noise.smashed
