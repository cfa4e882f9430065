"""Translate mechanisms into events of dp_accounting, if this library has an event with the same meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from privkit.accountants.bounds.renyi import SAMPLED_ORDERS
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.noise_laws import LawName
from privkit.accountants.spec.parts import Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import has_secrets
from privkit.accountants.spec.shift import laplace_shift, one_patch

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

_Accountant = Literal["rdp", "pld"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event, and the settings with which dp_accounting computes its ε."""

    event: DpEvent  # the event, for `compose` of an accountant of dp_accounting
    relation: NeighboringRelation  # the relation to give to this accountant, whose ε is wrong with another relation
    accountants: tuple[
        _Accountant, ...
    ]  # the accountants that take the event: "rdp" (`RdpAccountant`), "pld" (`PLDAccountant`)
    orders: tuple[float, ...] | None = None  # orders to give to `RdpAccountant`; None for its defaults


def to_dp_event(mechanism: SplitMechanism) -> Event:
    """Translate a mechanism into the dp_accounting event with the same meaning; in one case, into a costlier event.

    In this case, sampled clients take secret places in a mixture whose fixed mixing ratios differ. dp_accounting has no
    event for the mean over the places. The event then describes the place with the largest ratio, so its ε is an upper
    bound, and privkit's ε is smaller.

    The noise multiplier is 1/μ: the noise divided by the largest distance between the releases of two neighbors.
    dp_accounting itself divides the noise by one record's norm, but its accountants disagree on the cost of a
    replacement. `PLDAccountant` doubles the norm. `RdpAccountant` does not, so half of the sensitivity is missing; only
    for samples without replacement it takes the norm as the distance. So a replace-one mechanism without sampling comes
    with the relation `REPLACE_SPECIAL`, for which all accountants count the distance once. Only sampling without
    replacement comes with `REPLACE_ONE`, which `RdpAccountant` requires.

    There are events for two kinds of mechanism: Gaussian noise of constant shift (in every round, for k of n sampled
    clients, or Poisson-sampled), and Laplace noise on one coordinate in every round. Others raise a ValueError.

    Source: dp_accounting 0.6, compared with exact profiles.

    >>> from privkit.accountants.table import mechanism_of
    >>> found = to_dp_event(mechanism_of({"mechanism": "gaussian", "sigma": 2, "sensitivity": 1, "rounds": 4}))
    >>> found.event, found.relation.name
    (SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4), 'REPLACE_SPECIAL')
    """
    from dp_accounting import ComposedDpEvent, NeighboringRelation, SelfComposedDpEvent

    if has_secrets(mechanism):
        raise ValueError(
            "dp_accounting has no event that means the same as random allocation, hidden masks or several randomized "
            "responses: ask privkit for their ε"
        )

    added = mechanism.relation == "add_or_remove_one"
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if added else NeighboringRelation.REPLACE_SPECIAL
    accountants: tuple[_Accountant, ...] = ("rdp", "pld")
    one = _EVENTS[mechanism.noise.law](mechanism)
    event: DpEvent = SelfComposedDpEvent(one, mechanism.composed_rounds)
    sampled = isinstance(mechanism.sampling, WithoutReplacement)
    if isinstance(updates := mechanism.lower_model, PrivateUpdates):
        event = ComposedDpEvent([event, _updates(updates)])
        sampled = sampled or updates.chosen is not None
    if not sampled:
        return Event(event=event, relation=relation, accountants=accountants)
    return Event(
        event=event,
        relation=NeighboringRelation.REPLACE_ONE,
        accountants=("rdp",),
        orders=tuple(SAMPLED_ORDERS.tolist()),  # at higher orders, its curve is wrong
    )


def _gaussian_event(mechanism: SplitMechanism) -> DpEvent:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

    law = mechanism.shift()
    only_seats = mechanism.seated and not (mechanism.participation_shows or one_patch(mechanism))
    constant = float(law.mu.max()) if only_seats else law.constant
    if constant is None:
        raise ValueError(
            "dp_accounting has no event for random ratios or a random participation that the release reveals (its "
            "mixture of Gaussians hides the draw): use fixed or realized ratios, and every client in every round"
        )
    event = GaussianDpEvent(_multiplier(constant))
    part = mechanism.sampling
    if isinstance(part, Poisson):
        return PoissonSampledDpEvent(float(part.rate), event)
    if isinstance(part, WithoutReplacement):
        return SampledWithoutReplacementDpEvent(int(part.clients), int(part.chosen), event)
    return event


def _laplace_event(mechanism: SplitMechanism) -> DpEvent:
    from dp_accounting import LaplaceDpEvent

    shift, one = laplace_shift(mechanism)
    if not one:
        raise ValueError(
            "dp_accounting's Laplace event has one coordinate, but this mechanism has several: its ε would be wrong"
        )
    if isinstance(mechanism.sampling, WithoutReplacement):
        raise ValueError(
            "dp_accounting samples without replacement before Gaussian noise only, not before Laplace noise"
        )
    return LaplaceDpEvent(_multiplier(shift))


_EVENTS: Mapping[LawName, Callable[[SplitMechanism], DpEvent]] = {
    "gaussian": _gaussian_event,
    "laplace": _laplace_event,
}
"""Law of the noise -> function that gives the event of one round; `to_dp_event` refuses randomized response earlier."""


def _updates(updates: PrivateUpdates) -> DpEvent:
    from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent

    step: DpEvent = GaussianDpEvent(float(updates.noise_multiplier))
    if updates.chosen is not None and updates.records is not None:
        step = SampledWithoutReplacementDpEvent(int(updates.records), int(updates.chosen), step)
    return SelfComposedDpEvent(step, int(updates.steps))


def _multiplier(shift: float) -> float:
    """Divide the noise by the neighbors' distance, as a float: dp_accounting gives wrong ε for integers and float32."""
    multiplier = 1 / float(shift) if shift > 0 else inf
    if multiplier == inf:
        raise ValueError(f"the release does not depend on the record (shift {shift:g}), for which there is no event")
    return multiplier
