"""Find the noise, number of rounds or group size with which a mechanism reaches a privacy target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from privkit.accountants import answer, validate
from privkit.accountants.region import region
from privkit.accountants.search import doubled, narrowed
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, NoMixing, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, ShuffledEpochs
from privkit.shared.certificate import Certificate

Parameter = Literal["sigma", "noise_parameter", "rounds", "group"]
_TOLERANCE = 1e-6
_NUMERICAL_TOLERANCE = 1e-4
_LARGEST, _LOUDEST = 2**40, 2.0**120
"""Largest number of rounds, and largest factor on the noise; ε = 1e-12 at δ = 1e-30 needs only σ = 8e12
sensitivities."""
_QUIET, _QUIETEST = 2.0**-8, 2.0**-120
"""Two factors on the noise. If the first meets the target, the second is tried next, since factors between them take
seconds."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The result of a calibration: a mechanism that reaches the target, with its certificate.

    Attributes:
        parameter: the parameter that was searched.
        value: the smallest σ of smashed data (the σ of labels is scaled by the same factor), the smallest noise
            parameter of randomized response, the largest number of rounds, or the smallest group.
        mechanism: the given mechanism with this value.
        certificate: the mechanism's certificate. If the target is an ε, the certificate's ε is at most this target.
    """

    parameter: Parameter
    value: float
    mechanism: SplitMechanism
    certificate: Certificate


@dataclass(frozen=True, kw_only=True)
class Target:
    """The quantity that a mechanism must reach: its name, the target value, and a function that computes it."""

    name: str  # name of the quantity
    value: float  # the largest allowed value
    cost: Callable[[SplitMechanism], float]  # mechanism -> quantity, which falls with noise and grows with rounds

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"


def calibrate(
    mechanism: SplitMechanism, parameter: Parameter, *, epsilon: float, delta: float, tight: bool = True
) -> Calibrated:
    """Find the noise, number of rounds or group size with which a mechanism meets a target ε at δ.

    Args:
        mechanism: the mechanism, whose value of the parameter is replaced. The search for σ starts at its σ.
        parameter: the parameter to find. "sigma" is the noise's standard deviation or scale, "noise_parameter" is the
            probability of a uniform answer in randomized response, "group" is the number of mixed clients.
        epsilon: target ε > 0, in nats.
        delta: δ in (0, 1).
        tight: whether to compose privacy loss distributions numerically. If so, and with sampling or mixing, σ is
            precise to a relative 1e-4, otherwise to 1e-10. A noise parameter is precise to a relative 1e-6.

    Raises:
        ValueError: if no value reaches the target, if even the least noise or the largest number of rounds reaches it,
            or if an argument is out of range.

    Source: bisection on `answer.epsilon`, which falls with noise and grows with rounds. Group sizes are tried in turn.

    >>> from privkit.accountants.table import mechanism_of
    >>> start = mechanism_of({"mechanism": "gaussian", "sigma": 1, "sensitivity": 1})
    >>> round(calibrate(start, "sigma", epsilon=1, delta=1e-5).value, 4)
    3.7306
    """
    value, at = validate.real("epsilon", epsilon, above=0), validate.delta(delta)

    def certified(candidate: SplitMechanism) -> Certificate:
        return answer.epsilon(candidate, at, tight=tight)

    target = Target(name="epsilon", value=value, cost=lambda one: certified(one).epsilon)
    return _calibrated(mechanism, parameter, target, tight, certified)


def calibrate_advantage(
    mechanism: SplitMechanism, parameter: Parameter, *, advantage: float, tight: bool = True
) -> Calibrated:
    """Find the noise, rounds or group size for which no attack's TPR minus FPR exceeds `advantage`, in (0, 1).

    TPR and FPR are the true and false positive rates. The other arguments, the result and the errors are as in
    `calibrate`. The certificate states δ at ε = 0, which bounds TPR − FPR.

    Source: Kulynych et al. 2024, "Attack-aware noise calibration for differential privacy".

    >>> from privkit.accountants.table import mechanism_of
    >>> start = mechanism_of({"mechanism": "gaussian", "sigma": 1, "sensitivity": 1})
    >>> round(calibrate_advantage(start, "sigma", advantage=0.1).value, 4)
    3.9789
    """
    value = validate.real("advantage", advantage, above=0, below=1)

    def cost(candidate: SplitMechanism) -> float:
        least = answer.delta(candidate, 0.0, tight=tight).delta
        return 1.0 if least is None else least

    return _calibrated(mechanism, parameter, Target(name="advantage", value=value, cost=cost), tight)


def calibrate_rates(
    mechanism: SplitMechanism,
    parameter: Parameter,
    *,
    true_positives: float,
    false_positives: float,
    tight: bool = True,
) -> Calibrated:
    """Find the noise, rounds or group size for which every attack has a true positive rate of at most `true_positives`
    if its false positive rate is `false_positives`.

    Both rates lie in (0, 1), and the true positive rate is the larger one. The other arguments, the result and the
    errors are as in `calibrate`. The certificate states δ at ε = 0.

    Source: Kulynych et al. 2024, "Attack-aware noise calibration for differential privacy".

    >>> from privkit.accountants.table import mechanism_of
    >>> start = mechanism_of({"mechanism": "gaussian", "sigma": 1, "sensitivity": 1})
    >>> round(calibrate_rates(start, "sigma", true_positives=0.05, false_positives=0.01).value, 3)
    1.467
    """
    false = validate.real("false positive rate", false_positives, above=0, below=1)
    value = validate.real("true positive rate", true_positives, above=0, below=1)
    if value <= false:
        raise ValueError(
            f"a true positive rate of {value:g} at a false positive rate of {false:g} is less than guessing gives; the "
            "target must be above the false positive rate"
        )
    target = Target(
        name=f"TPR at FPR {false:g}",
        value=value,
        cost=lambda candidate: float(region(candidate, tight=tight).true_positives(false)),
    )
    return _calibrated(mechanism, parameter, target, tight)


def _calibrated(
    mechanism: SplitMechanism,
    parameter: Parameter,
    target: Target,
    tight: bool,
    certified: Callable[[SplitMechanism], Certificate] | None = None,
) -> Calibrated:
    search = {"sigma": _sigma, "noise_parameter": _noise_parameter, "rounds": _rounds, "group": _group}
    value, reached = search[validate.choice("parameter", parameter, tuple(search))](mechanism, target, tight)
    certificate = certified(reached) if certified else answer.delta(reached, 0.0, tight=tight)
    return Calibrated(parameter=parameter, value=value, mechanism=reached, certificate=certificate)


def scaled(mechanism: SplitMechanism, factor: float) -> SplitMechanism:
    """Multiply the noise on smashed data and labels by `factor`. Raises ValueError for randomized response."""
    noise = mechanism.noise
    if noise.distribution.answers:
        raise ValueError(
            "randomized response has no sigma: its noise is the noise_parameter, so calibrate noise_parameter instead "
            "(randomized_response.noise_for gives it for one answer)"
        )
    labels = None if noise.labels is None else noise.labels * factor
    return replace(mechanism, noise=replace(noise, smashed=noise.smashed * factor, labels=labels))


def _sigma(mechanism: SplitMechanism, target: Target, tight: bool) -> tuple[float, SplitMechanism]:
    closed = mechanism.participation.rate == 1 and isinstance(mechanism.mixing, NoMixing)
    tolerance = _NUMERICAL_TOLERANCE if tight and not closed else _TOLERANCE / 1e4

    def misses(factor: float) -> bool:
        return target.cost(scaled(mechanism, factor)) > target.value

    if misses(1.0):
        low, high = doubled(misses, 1.0, 2.0, most=_LOUDEST)
        if high > _LOUDEST:
            most = mechanism.noise.smashed * _LOUDEST
            raise ValueError(
                f"no noise up to {most:.0e} reaches {target}: something other than the noisy releases exceeds the "
                f"target"
            )
        _, high = _halved(misses, low, high, tolerance)
    else:
        high = _least_noise(misses, target, "sigma", mechanism.noise.smashed, tolerance)
    return mechanism.noise.smashed * high, scaled(mechanism, high)


def _noise_parameter(mechanism: SplitMechanism, target: Target, tight: bool) -> tuple[float, SplitMechanism]:
    """Find the smallest probability of a uniform answer. At 1, an answer reveals nothing, so every target is met."""
    if not mechanism.noise.distribution.answers:
        raise ValueError("noise_parameter belongs to randomized response: for other noise calibrate sigma")

    def of(parameter: float) -> SplitMechanism:
        return replace(mechanism, noise=replace(mechanism.noise, smashed=parameter))

    def misses(parameter: float) -> bool:
        return target.cost(of(parameter)) > target.value

    least = _least_noise(misses, target, "noise_parameter", 1.0, _TOLERANCE)
    return least, of(least)


def _least_noise(misses: Callable[[float], bool], target: Target, name: str, start: float, tolerance: float) -> float:
    """The smallest factor ≤ 1, up to a relative `tolerance`, such that the factor times the noise `start` meets the
    target. Raises ValueError if even 2⁻¹²⁰ times `start` meets the target."""
    low, high = 0.5, 1.0
    while low > _QUIETEST and not misses(low):
        if low == _QUIET and _meets_quietest(misses):
            raise ValueError(
                f"even very little noise, {name}={start * _QUIETEST:.1g}, meets {target}: no smallest value was "
                f"found; give a smaller target"
            )
        low, high = low / 2, low
    return _halved(misses, low, high, tolerance)[1]


def _meets_quietest(misses: Callable[[float], bool]) -> bool:
    try:
        return not misses(_QUIETEST)
    except ValueError:  # the accountant refuses so little noise
        return False


def _halved(misses: Callable[[float], bool], low: float, high: float, tolerance: float) -> tuple[float, float]:
    return narrowed(misses, low, high, near=lambda a, b: b / a <= 1 + tolerance, middle=lambda a, b: (a * b) ** 0.5)


def _rounds(mechanism: SplitMechanism, target: Target, tight: bool) -> tuple[float, SplitMechanism]:
    part = mechanism.participation
    unit = part.epoch_rounds if isinstance(part, RandomAllocation | ShuffledEpochs) else 1  # whole epochs
    if (one := target.cost(replace(mechanism, rounds=unit))) > target.value:
        first = "a single round" if unit == 1 else f"a single epoch of {unit:,} rounds"
        raise ValueError(
            f"{first} already costs {target.name}={one:.4g}, more than the target {target.value:g}: add noise"
        )

    def within(times: int) -> bool:
        return target.cost(replace(mechanism, rounds=times * unit)) <= target.value

    most = max(1, _LARGEST // unit)
    low, high = doubled(within, 1, 2, most=most)
    if high > most:
        raise ValueError(
            f"every number of rounds up to {low * unit:,} meets {target}: no largest one was found; give a smaller "
            f"target, or less noise"
        )
    low, _ = narrowed(within, low, high)
    return float(low * unit), replace(mechanism, rounds=low * unit)


def _group(mechanism: SplitMechanism, target: Target, tight: bool) -> tuple[float, SplitMechanism]:
    """Find the smallest number of mixed clients that meets the target, and the mechanism with this number.

    Sizes are tried one by one from 1, since a larger group does not always lower ε if clients are sampled.
    """
    if isinstance(mechanism.mixing, NoMixing | HiddenMask):
        raise ValueError("group needs mixing: without it a larger group hides nobody (use dp_mixsl or dp_cutmixsl)")
    sampled = mechanism.participation if isinstance(mechanism.participation, WithoutReplacement) else None
    most = sampled.clients if sampled else 1000
    best: tuple[float, int] | None = None
    for group in range(1, most + 1):
        participation = replace(sampled, chosen=group) if sampled else mechanism.participation
        candidate = replace(mechanism, mixing=_regrouped(mechanism.mixing, group), participation=participation)
        if (cost := target.cost(candidate)) <= target.value:
            return float(group), candidate
        best = min(best or (cost, group), (cost, group))
    assert best is not None
    raise ValueError(f"no group of up to {most} clients reaches {target}; {best[1]} give {best[0]:.4g}")


def _regrouped(mixing: Mixup | CutMix, group: int) -> Mixup | CutMix:
    ratio = mixing.ratio
    if isinstance(ratio, DirichletRatio | DirichletCounts):
        regrouped: Any = replace(ratio, clients=group)  # of the same kind as `ratio`
        return replace(mixing, ratio=regrouped)
    if isinstance(ratio, FixedRatio) and len(set(ratio.ratios)) == 1:
        return replace(mixing, ratio=FixedRatio.equal(group))
    raise ValueError(f"group cannot be found for ratios of {ratio.kind}: use equal or Dirichlet ratios")
