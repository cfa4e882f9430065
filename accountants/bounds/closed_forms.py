"""Bounds of one mechanism that have a closed form or one integral: δ at an ε, and ε at a δ, by the same profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt

from privkit.accountants.bounds import gaussian, independent_steps, laplace, profiles, randomized_response
from privkit.accountants.bounds.subsampling import amplify
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import PrivateUpdates

BALLE_WANG = "Balle and Wang 2018, Theorem 8"
BALLE_BARTHE_GABOARDI = "Balle, Barthe and Gaboardi 2018, Theorem 9, attained"
LARGEST = "exact Gaussian profile at the largest shift"
MIXTURE = "derived: mean of the exact Gaussian profile over the public coins"


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """A valid bound, both ways round.

    Attributes:
        method: its name.
        source: its theorem.
        epsilon: ε at δ in (0, 1).
        log_delta: ln δ at ε ≥ 0.
        exact: whether it is a lower bound, too, where the mechanism attains its shift.
    """

    method: str
    source: str
    epsilon: Callable[[float], float]
    log_delta: Callable[[float], float]
    exact: bool = False


def closed_forms(mechanism: SplitMechanism) -> list[ClosedForm]:
    """Those that hold for a mechanism; none where shifts are random, sampled or Laplace and updates come on top.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2), lower_model="frozen")
    >>> [round(form.epsilon(1e-5), 4) for form in closed_forms(one)]
    [4.3772]
    """
    if (steps := independent_steps.of(mechanism)) is not None:
        return _of_steps(steps)
    if mechanism.noise.law == "laplace":
        return [] if isinstance(mechanism.lower_model, PrivateUpdates) else _laplace(mechanism)
    law, updates = mechanism.shift(), mechanism.lower_model
    full = mechanism.sampling.rate == 1 and mechanism.update_shift is not None
    exact = full and law.constant is not None
    more = updates.steps / updates.noise_multiplier**2 if isinstance(updates, PrivateUpdates) else 0.0
    method = "exact Gaussian profile" if law.constant is not None else LARGEST  # as if every coin fell worst
    found = [
        _gaussian(
            method + ("" if full else ", nothing credited to sampling"),
            sqrt(float(law.mu.max()) ** 2 * mechanism.composed_rounds + more),
            exact=exact,
        )
    ]
    profile = None if isinstance(mechanism.lower_model, PrivateUpdates) else profiles.one_round(mechanism)
    if profile is not None and mechanism.composed_rounds == 1 and not exact:
        sampled = mechanism.sampling.rate < 1
        found.append(
            ClosedForm(
                method="exact sampled profile" if sampled else "exact mixture over the public coins",
                source=BALLE_BARTHE_GABOARDI if sampled else MIXTURE,
                epsilon=lambda delta: profiles.invert(profile, delta),
                log_delta=lambda epsilon: _log(float(profile(epsilon))),
                exact=True,
            )
        )
    return found


def _laplace(mechanism: SplitMechanism) -> list[ClosedForm]:
    """Pure ε, and the exact profile of a single coordinate."""
    parts, rounds = mechanism.laplace_parts(), mechanism.composed_rounds
    once = sum(shift * count for shift, count in parts)
    pure = rounds * float(amplify(once, mechanism.sampling.rate))
    found = [_pure(pure, "Dwork et al. 2006")]
    if mechanism.laplace_shift()[1] and rounds == 1 and mechanism.sampling.rate == 1:
        found.append(
            ClosedForm(
                method="exact Laplace profile",
                source="derived",
                epsilon=lambda delta: laplace.epsilon(delta, once),
                log_delta=lambda epsilon: _log(laplace.delta(epsilon, once)),
                exact=True,
            )
        )
    return found


def _of_steps(steps: independent_steps.Steps) -> list[ClosedForm]:
    """What holds with all secrets told, and for randomized answers."""
    found = [] if steps.told is None else [_gaussian("exact Gaussian profile, all secrets told", steps.told)]
    if steps.response is None:
        return found
    noise, classes, answers = steps.response
    found.append(_pure(answers * randomized_response.pure_epsilon(noise, classes), steps.source))
    if answers <= randomized_response.MOST_ANSWERS:
        found.append(
            ClosedForm(
                method="exact profile of all answers",
                source=steps.source,
                epsilon=lambda delta: randomized_response.epsilon(delta, noise, classes, answers),
                log_delta=lambda epsilon: _log(float(randomized_response.delta(epsilon, noise, classes, answers))),
                exact=True,
            )
        )
    return found


def _gaussian(method: str, mu: float, *, exact: bool = False) -> ClosedForm:
    """One Gaussian release of shift μ."""
    return ClosedForm(
        method=method,
        source=BALLE_WANG,
        epsilon=lambda delta: gaussian.epsilon(delta, mu),
        log_delta=lambda epsilon: float(gaussian.log_delta(epsilon, mu)),
        exact=exact,
    )


def _pure(most: float, source: str) -> ClosedForm:
    """A loss that never exceeds ε."""
    return ClosedForm(
        method="pure ε, δ not used",
        source=source,
        epsilon=lambda delta: most,
        log_delta=lambda epsilon: -inf if epsilon >= most else 0.0,
    )


def _log(value: float) -> float:
    """ln of a probability."""
    return log(value) if value > 0 else -inf
