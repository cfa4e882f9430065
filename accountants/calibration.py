"""The other way round: how much noise, how many rounds or how large a group reaches a target ε."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from privkit.accountants import answer, validate
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, NoMixing, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation
from privkit.certificate import Certificate

Parameter = Literal["sigma", "rounds", "group"]
_TOLERANCE = 1e-6
_NUMERICAL_TOLERANCE = 1e-4
_LARGEST = 2**40


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A mechanism that reaches the target.

    Attributes:
        parameter: what was found.
        value: smallest σ (on smashed data; labels keep their proportion), largest number of rounds, or smallest group.
        mechanism: with that value.
        certificate: what it proves; its ε is at most the target.
    """

    parameter: Parameter
    value: float
    mechanism: SplitMechanism
    certificate: Certificate


def calibrate(
    mechanism: SplitMechanism, parameter: Parameter, *, epsilon: float, delta: float, tight: bool = True
) -> Calibrated:
    """Find σ, rounds or group size for a target; the answer lies on the safe side of the target.

    Args:
        mechanism: everything but the parameter; its own value of the parameter is where the search starts.
        parameter: "sigma", "rounds" or "group".
        epsilon: target > 0.
        delta: in (0, 1).
        tight: as in `answer.epsilon`; σ is then found to 1e-4, else to 1e-6, relative.

    Raises:
        ValueError: if an argument is out of range or no value reaches the target; the sentence says what the best is.

    Source: bisection on `answer.epsilon`, which falls with σ and grows with rounds.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Known
    >>> one = Known(value=1, relation="replace_one", norm="l2")
    >>> start = SplitMechanism(smashed=one, noise=Noise(smashed=1), lower_model="frozen")
    >>> round(calibrate(start, "sigma", epsilon=1, delta=1e-5).value, 4)
    3.7306
    """
    target = validate.real("epsilon", epsilon, above=0)
    validate.delta(delta)
    validate.choice("parameter", parameter, ("sigma", "rounds", "group"))
    search = {"sigma": _sigma, "rounds": _rounds, "group": _group}[parameter]
    value, reached = search(mechanism, target, lambda m: answer.epsilon(m, delta, tight=tight).epsilon, tight)
    return Calibrated(
        parameter=parameter, value=value, mechanism=reached, certificate=answer.epsilon(reached, delta, tight=tight)
    )


def scaled(mechanism: SplitMechanism, factor: float) -> SplitMechanism:
    """The same mechanism with so many times its noise, on smashed data and labels.

    Raises:
        ValueError: if the noise is randomized response, which has no scale.
    """
    noise = mechanism.noise
    if noise.law == "randomized_response":
        raise ValueError(
            "randomized response has no sigma: randomized_response.noise_for gives the noise_parameter of one answer"
        )
    labels = None if noise.labels is None else noise.labels * factor
    return replace(mechanism, noise=replace(noise, smashed=noise.smashed * factor, labels=labels))


def _sigma(
    mechanism: SplitMechanism, target: float, epsilon: Callable[[SplitMechanism], float], tight: bool
) -> tuple[float, SplitMechanism]:
    """Smallest factor on the noise that reaches the target."""
    low, high = 1.0, 1.0
    if epsilon(scaled(mechanism, 1.0)) > target:
        while epsilon(scaled(mechanism, high)) > target:
            low, high = high, 2 * high
            if high > _LARGEST:
                raise ValueError(
                    f"no noise reaches epsilon={target:g}: something else than the noised releases costs more"
                )
    else:
        while low > 1 / _LARGEST and epsilon(scaled(mechanism, low)) <= target:
            low, high = low / 2, low
    while high / low > 1 + (_NUMERICAL_TOLERANCE if tight and not _closed(mechanism) else _TOLERANCE / 1e4):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon(scaled(mechanism, middle)) > target else (low, middle)
    return mechanism.noise.smashed * high, scaled(mechanism, high)


def _rounds(
    mechanism: SplitMechanism, target: float, epsilon: Callable[[SplitMechanism], float], tight: bool
) -> tuple[float, SplitMechanism]:
    """Largest number of rounds within the target."""
    part = mechanism.participation
    unit = part.epoch_rounds if isinstance(part, RandomAllocation) else 1  # whole epochs
    if (one := epsilon(replace(mechanism, rounds=unit))) > target:
        first = "a single round" if unit == 1 else f"a single epoch of {unit:,} rounds"
        raise ValueError(f"{first} already costs epsilon={one:.4g}, more than the target {target:g}: add noise")
    low, high = 1, 2
    while high <= _LARGEST and epsilon(replace(mechanism, rounds=high * unit)) <= target:
        low, high = high, 2 * high
    while high - low > 1 and high <= _LARGEST:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(replace(mechanism, rounds=middle * unit)) <= target else (low, middle)
    return float(low * unit), replace(mechanism, rounds=low * unit)


def _group(
    mechanism: SplitMechanism, target: float, epsilon: Callable[[SplitMechanism], float], tight: bool
) -> tuple[float, SplitMechanism]:
    """Smallest group; ε need not fall with it under sampling, so every size is tried."""
    if isinstance(mechanism.mixing, NoMixing | HiddenMask):
        raise ValueError("group needs mixing: without it a larger group hides nobody (use dp_mixsl or dp_cutmixsl)")
    sampled = mechanism.participation if isinstance(mechanism.participation, WithoutReplacement) else None
    most = sampled.clients if sampled else 1000
    best: tuple[float, int] | None = None
    for group in range(1, most + 1):
        participation = replace(sampled, chosen=group) if sampled else mechanism.participation
        candidate = replace(mechanism, mixing=_regrouped(mechanism.mixing, group), participation=participation)
        if (cost := epsilon(candidate)) <= target:
            return float(group), candidate
        best = min(best or (cost, group), (cost, group))
    assert best is not None
    raise ValueError(f"no group of up to {most} clients reaches epsilon={target:g}; {best[1]} give {best[0]:.4g}")


def _regrouped(mixing: Mixup | CutMix, group: int) -> Mixup | CutMix:
    """The same law of ratios for another number of clients."""
    ratio = mixing.ratio
    if isinstance(ratio, DirichletRatio | DirichletCounts):
        regrouped: Any = replace(ratio, clients=group)  # of the mixing's own kind
        return replace(mixing, ratio=regrouped)
    if isinstance(ratio, FixedRatio) and len(set(ratio.ratios)) == 1:
        return replace(mixing, ratio=FixedRatio.equal(group))
    raise ValueError(f"group cannot be found for ratios of {ratio.kind}: use equal or Dirichlet ratios")


def _closed(mechanism: SplitMechanism) -> bool:
    """Whether ε has a closed form, so that bisection may go on to rounding."""
    return mechanism.participation.rate == 1 and isinstance(mechanism.mixing, NoMixing)
