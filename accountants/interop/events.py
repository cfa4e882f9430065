"""Translate mechanisms into events of dp_accounting, if this library has an event with the same meaning, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

from privkit.accountants import validate
from privkit.accountants.bounds.renyi import SAMPLED_ORDERS
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.noise_laws import LawName
from privkit.accountants.spec.parts import Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import has_secrets
from privkit.accountants.spec.sensitivity import Clamp
from privkit.accountants.spec.shift import laplace_shift, one_patch
from privkit.shared.certificate import Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event, and the settings with which dp_accounting computes its ε."""

    event: DpEvent  # the event, for `compose` of an accountant of dp_accounting
    relation: NeighboringRelation  # the relation to give to this accountant, whose ε is wrong with another relation
    # the accountants that take the event: "rdp" (`RdpAccountant`), "pld" (`PLDAccountant`)
    accountants: tuple[Literal["rdp", "pld"], ...]
    orders: tuple[float, ...] | None = None  # orders to give to `RdpAccountant`; None for its defaults


def to_dp_event(mechanism: SplitMechanism) -> Event:
    """Translate a mechanism into the dp_accounting event with the same meaning, or in two cases into a costlier event.

    In the first case, sampled clients take secret places in a mixture whose fixed mixing ratios differ. dp_accounting
    has no event for the mean over the places, so the event describes the place with the largest ratio. In the second
    case, single rows are shuffled in a secret order (`ShuffledEpochs` with `records`). The event describes a record
    whose place is known. In both cases the event's ε is an upper bound, and privkit's ε is smaller.

    The noise multiplier is 1/μ: the noise divided by the largest distance between the releases of two neighbors.
    dp_accounting itself divides the noise by one record's norm, but its accountants disagree on the cost of a
    replacement. `PLDAccountant` doubles the norm. `RdpAccountant` does not, so half of the sensitivity is missing.
    Samples without replacement are an exception: `RdpAccountant` takes their noise multiplier as relative to the
    distance. So a replace-one mechanism without sampling comes with the relation `REPLACE_SPECIAL`, for which all
    accountants count the distance once. Only sampling without replacement comes with `REPLACE_ONE`, which
    `RdpAccountant` requires.

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
    one = _EVENTS[mechanism.noise.law](mechanism)
    event: DpEvent = SelfComposedDpEvent(one, mechanism.composed_rounds)
    sampled = isinstance(mechanism.sampling, WithoutReplacement)
    if isinstance(updates := mechanism.lower_model, PrivateUpdates):
        event = ComposedDpEvent([event, _updates(updates)])
        sampled = sampled or updates.chosen is not None
    if not sampled:
        return Event(event=event, relation=relation, accountants=("rdp", "pld"))
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


_Counts = dict["DpEvent", int]
_ONE = Clamp(low=0, high=1, dimensions=1)
"""A release whose neighbors lie 1 apart under either relation, so that its noise is the event's multiplier."""


def from_dp_event(event: DpEvent, relation: NeighboringRelation, *, unit: Unit = "record") -> SplitMechanism:
    """Translate a dp_accounting event into a mechanism that releases one coordinate in [0, 1] with the event's noise.

    Args:
        event: Gaussian or Laplace noise, Gaussian noise after Poisson sampling or sampling without replacement, or
            compositions of one of these kinds. Unsampled Gaussians may have different σᵢ: together they equal one
            Gaussian with 1/σ² = Σ 1/σᵢ². An event may also compose unsampled Gaussians with equal Gaussians on samples
            drawn without replacement. Then the unsampled ones become releases of smashed data, and the sampled ones
            become noisy updates of the client's weights (DP-SGD).
        relation: the neighboring relation for which the event is meant. `REPLACE_ONE` is accepted only for samples
            without replacement; the noise multiplier must then be relative to the distance of neighbors. (If your
            multiplier is relative to one record's norm, give half of it.) dp_accounting's accountants disagree on other
            events with this relation. Under `REPLACE_SPECIAL` and `ADD_OR_REMOVE_ONE`, releases of neighbors differ by
            at most one record's norm. Both become add-or-remove-one, since the special record stands for an absent
            record.
        unit: the unit in which neighbors differ, such as a record or a client.

    Raises:
        ValueError: for any other event or relation, with the reason. A ledger composes mechanisms of several kinds.

    Source: dp_accounting 0.6. The mechanism of an event from `to_dp_event` has the ε of the original mechanism up to
    rounding, or a larger ε if the event is costlier (see there). A replace-one mechanism without sampling comes back as
    add-or-remove-one.

    >>> from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
    >>> mechanism = from_dp_event(SelfComposedDpEvent(GaussianDpEvent(2.0), 4), NeighboringRelation.REPLACE_SPECIAL)
    >>> mechanism.noise.smashed, mechanism.rounds
    (2.0, 4)
    """
    counts = _counted(event)
    plain = {one: count for one, count in counts.items() if _kind(one) == "GaussianDpEvent"}
    others = [one for one in counts if one not in plain]
    _check_relation(relation, {_kind(one) for one in others})
    if len(others) > 1 or not counts:
        found = f"{len(others)} kinds of releases" if others else "no release"
        raise ValueError(f"the event holds {found}, but a mechanism has one kind: charge each in a ledger")
    given: dict[str, Any] = {"smashed": _ONE, "unit": unit, "lower_model": "frozen"}
    given["relation"] = "replace_one" if relation.name == "REPLACE_ONE" else "add_or_remove_one"
    if plain:
        given |= _one_gaussian(plain)
        given |= {"lower_model": _updates_of(others[0], counts[others[0]])} if others else {}
    else:
        given |= _one_kind(others[0], counts[others[0]])
    return SplitMechanism(**given)


def _counted(event: DpEvent) -> _Counts:
    kind: str = _kind(event)
    if kind == "NoOpDpEvent":
        return {}
    if kind in ("ComposedDpEvent", "SelfComposedDpEvent"):
        inner: Any = event
        parts = [(one, 1) for one in inner.events] if kind == "ComposedDpEvent" else [(inner.event, inner.count)]
        counts: _Counts = {}
        for part, times in parts:
            for one, count in _counted(part).items():
                counts[one] = counts.get(one, 0) + times * count
        return counts
    single = kind in ("GaussianDpEvent", "LaplaceDpEvent")
    sampled = kind in ("PoissonSampledDpEvent", "SampledWithoutReplacementDpEvent")
    if single or (sampled and _kind(event.event) == "GaussianDpEvent"):
        return {event: 1}
    raise ValueError(f"no mechanism is derived for the event {event!r}")


def _kind(event: object) -> str:
    return type(event).__name__


def _check_relation(relation: NeighboringRelation, kinds: set[str]) -> None:
    if drawn := "SampledWithoutReplacementDpEvent" in kinds:
        needed: tuple[str, ...] = ("REPLACE_ONE",)
    elif "PoissonSampledDpEvent" in kinds:
        needed = ("ADD_OR_REMOVE_ONE",)
    else:
        needed = ("REPLACE_SPECIAL", "ADD_OR_REMOVE_ONE")
    if relation.name not in needed:
        why = "" if drawn else " (for REPLACE_ONE, dp_accounting's two accountants disagree)"
        raise ValueError(f"this event is meant for {' or '.join(needed)}, got {relation.name}{why}")


def _one_gaussian(counts: _Counts) -> dict[str, Any]:
    if len(counts) == 1:
        ((one, rounds),) = counts.items()
        return {"noise": Noise(smashed=_noise(one)), "rounds": rounds}
    together = sum(count / _noise(one) ** 2 for one, count in counts.items())
    return {"noise": Noise(smashed=1 / sqrt(together))}


def _one_kind(event: Any, rounds: int) -> dict[str, Any]:
    if _kind(event) == "LaplaceDpEvent":
        return {"noise": Noise(law="laplace", smashed=_noise(event)), "rounds": rounds}
    how: Poisson | WithoutReplacement
    if _kind(event) == "PoissonSampledDpEvent":
        how = Poisson(rate=event.sampling_probability)
    else:
        how = WithoutReplacement(chosen=event.sample_size, clients=event.source_dataset_size)
    return {"noise": Noise(smashed=_noise(event.event)), "rounds": rounds, "participation": how}


def _updates_of(event: Any, steps: int) -> PrivateUpdates:
    if _kind(event) != "SampledWithoutReplacementDpEvent":
        raise ValueError(
            "unsampled releases can only be joined with samples without replacement: charge each in a ledger"
        )
    size, records = event.sample_size, event.source_dataset_size
    return PrivateUpdates(noise_multiplier=_noise(event.event), steps=steps, chosen=size, records=records)


def _noise(event: Any) -> float:
    return validate.real("noise_multiplier", event.noise_multiplier, above=0)
