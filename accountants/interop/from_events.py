"""Translate events of dp_accounting into mechanisms: the inverse of `events`."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from privkit.accountants import validate
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp
from privkit.shared.certificate import Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

_Counts = dict["DpEvent", int]
_ONE = Clamp(low=0, high=1, dimensions=1)
"""A release whose neighbors lie 1 apart under either relation, so that its noise is the event's multiplier."""


def from_dp_event(event: DpEvent, relation: NeighboringRelation, *, unit: Unit = "record") -> SplitMechanism:
    """Translate a dp_accounting event into a mechanism that releases one coordinate in [0, 1] with the event's noise.

    Args:
        event: Gaussian or Laplace noise, Gaussian noise after Poisson sampling or sampling without replacement, or
            compositions of one of these kinds. Unsampled Gaussians may have different σᵢ: together they equal one
            Gaussian with 1/σ² = Σ 1/σᵢ². An event may also compose unsampled Gaussians with Gaussians on samples drawn
            without replacement, all of one kind. Then the unsampled ones become releases of smashed data, and the
            sampled ones become noisy updates of the client's weights (DP-SGD).
        relation: the neighboring relation for which the event is meant. `REPLACE_ONE` is accepted only for samples
            without replacement; the noise multiplier must then be relative to the distance of neighbors. (If yours is
            relative to one record's norm, give half of it.) dp_accounting's accountants disagree on other events with
            this relation. Under `REPLACE_SPECIAL` and `ADD_OR_REMOVE_ONE`, releases of neighbors differ by at most one
            record's norm. Both become add-or-remove-one, since the special record stands for an absent record.
        unit: the unit in which neighbors differ, such as a record or a client.

    Raises:
        ValueError: for any other event or relation, with the reason. A ledger composes mechanisms of several kinds.

    Source: dp_accounting 0.6. The mechanism of an event from `to_dp_event` has the ε of the original mechanism up to
    rounding. A replace-one mechanism without sampling comes back as add-or-remove-one.

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
        given |= {"lower_model": _updates(others[0], counts[others[0]])} if others else {}
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


def _updates(event: Any, steps: int) -> PrivateUpdates:
    if _kind(event) != "SampledWithoutReplacementDpEvent":
        raise ValueError(
            "unsampled releases can only be joined with samples without replacement: charge each in a ledger"
        )
    size, records = event.sample_size, event.source_dataset_size
    return PrivateUpdates(noise_multiplier=_noise(event.event), steps=steps, chosen=size, records=records)


def _noise(event: Any) -> float:
    return validate.real("noise_multiplier", event.noise_multiplier, above=0)
