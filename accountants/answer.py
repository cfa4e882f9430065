"""Answers about a split-learning mechanism: Rényi curve, ε, δ and calibration, by the best of the valid methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from privkit.accountants import validate
from privkit.accountants.base import Certificate, RenyiCurve
from privkit.accountants.bounds import (
    closed_forms,
    composition,
    gaussian,
    independent_steps,
    laplace,
    renyi,
    sampled_renyi,
    subsampled_rdp,
)
from privkit.accountants.bounds.closed_forms import BALLE_BARTHE_GABOARDI, BALLE_WANG
from privkit.accountants.bounds.subsampling import amplify
from privkit.accountants.spec.mechanism import ShiftLaw, SplitMechanism
from privkit.accountants.spec.parts import Poisson, PrivateUpdates
from privkit.accountants.wording import assumptions, library_versions, statement, warnings

Array = NDArray[np.float64]
SAMPLED_ORDERS = np.arange(2.0, 65.0)
"""Orders at which subsampled curves are tried."""

HIGH_ORDERS = np.array([64.0, 80.0, 112.0, 160.0, 224.0, 320.0, 448.0])
"""Orders at which rows are tried whose best one is the last of `SAMPLED_ORDERS`, as at small ε."""

BLOCK = 1 << 20
"""Orders × points of a law that are held at a time."""

SMALLEST = 5e-324
"""Smallest positive float."""

SAMPLED = {
    "poisson": "Mironov, Talwar and Zhang 2019",
    "without_replacement": "Balle, Barthe and Gaboardi 2018, Theorem 9; Wang, Balle and Kasiviswanathan 2019",
    "every_round": "Mironov 2017",
    "random_allocation": independent_steps.ALLOCATION,
}
CONVERSION = "Canonne, Kamath and Steinke 2020, Proposition 12"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One valid upper bound on ε (or on ln δ), and how it was found; `exact` where it is a lower bound, too."""

    value: float
    method: str
    source: str
    order: float | None = None
    at_edge: bool = False
    exact: bool = False


def rdp(mechanism: SplitMechanism, orders: Sequence[float]) -> RenyiCurve:
    """Rényi divergence of a run at the given orders, upper bounds.

    Args:
        mechanism: what is released.
        orders: α > 1, any real numbers.

    Raises:
        ValueError: if an order is out of range.

    Source: Mironov 2017; with random ratios ε(α) = ln E exp((α−1)αμ²(λ)/2)/(α−1) (derived; DP-CutMixSL's Theorem 1
    fixes λ); k of n by the tight profile, or by Wang, Balle and Kasiviswanathan 2019 for random ratios; never above the
    unsampled curve.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2), lower_model="frozen")
    >>> rdp(one, [2, 8]).values
    (1.0, 4.0)
    """
    wanted = np.array(validate.orders(orders))
    return RenyiCurve(
        orders=tuple(wanted.tolist()),
        values=tuple(np.minimum(curve(mechanism, wanted), _integrated(mechanism, wanted)).tolist()),
        method=_renyi(mechanism, 0.0, 2.0, False).method,
        relation=mechanism.relation,
        unit=mechanism.unit,
        assumptions=assumptions(mechanism),
        source=SAMPLED[mechanism.sampling.kind],
        versions=library_versions(),
    )


def curve(mechanism: SplitMechanism, orders: ArrayLike) -> Array:
    """The numbers of `rdp` alone, [A]."""
    found = releases_curve(mechanism, orders)
    lower = mechanism.lower_model
    return found + updates_curve(lower, orders) if isinstance(lower, PrivateUpdates) else found


def releases_curve(mechanism: SplitMechanism, orders: ArrayLike) -> Array:
    """What the releases of all rounds cost, [A], without the lower model's updates."""
    a = np.asarray(orders, float)
    if (steps := independent_steps.of(mechanism)) is not None:
        return np.asarray(steps.curve(a), float)
    rate = mechanism.sampling.rate
    if mechanism.noise.law == "laplace":
        parts = mechanism.laplace_parts()
        base: Callable[[Array], Array] = lambda order: laplace.vector_rdp(order, parts)  # noqa: E731
        once = base(a) if rate == 1 else subsampled_rdp.without_replacement_rdp(a, rate, base)
    else:
        law = mechanism.shift()
        if law.constant is None:
            base = lambda order: law_rdp(order, law)  # noqa: E731
            once = base(a) if rate == 1 else subsampled_rdp.without_replacement_rdp(a, rate, base)
        elif isinstance(mechanism.sampling, Poisson):
            once = subsampled_rdp.poisson_gaussian_rdp(a, rate, law.constant)
        elif rate < 1:
            once = subsampled_rdp.fixed_size_gaussian_rdp(a, rate, law.constant)
        else:
            once = gaussian.rdp(a, law.constant)
    return np.asarray(mechanism.composed_rounds * once, float)


def _integrated(mechanism: SplitMechanism, orders: Array) -> Array | float:
    """The curve by integration at every order, where sampled Gaussian releases have one shift; `inf` elsewhere."""
    if independent_steps.of(mechanism) is not None:
        return inf
    rate = mechanism.sampling.rate
    constant = mechanism.shift().constant if mechanism.noise.law == "gaussian" and rate < 1 else None
    if constant is None:
        return inf
    poisson = isinstance(mechanism.sampling, Poisson)
    sampled = sampled_renyi.poisson_gaussian if poisson else sampled_renyi.without_replacement_gaussian
    found = mechanism.composed_rounds * sampled(orders, rate, constant)
    lower = mechanism.lower_model
    return found + updates_curve(lower, orders) if isinstance(lower, PrivateUpdates) else found


def updates_curve(updates: PrivateUpdates, orders: ArrayLike) -> Array:
    """What noisy updates of the lower model cost, [A]."""
    step = subsampled_rdp.fixed_size_gaussian_rdp(orders, updates.rate, 1 / updates.noise_multiplier)
    return np.asarray(updates.steps * step, float)


def law_rdp(orders: ArrayLike, law: ShiftLaw) -> Array:
    """ε(α) = ln E exp((α−1)·α·μ²/2) / (α−1) over the law of μ.

    The marginal law of the neighbor's own ratio enters, never the largest ratio of the group.

    Source: derived for published coins; an upper bound for hidden ones by joint convexity.

    >>> law = ShiftLaw(mu=np.array([0.3, 0.7]), log_weight=np.log([0.5, 0.5]))
    >>> float(law_rdp(2, law).round(12))
    0.30986807184
    """
    a = np.asarray(orders, float)
    flat, found = a.ravel(), np.empty(a.size)
    squared, step = law.mu**2, max(1, BLOCK // law.mu.size)
    with np.errstate(under="ignore"):
        for start in range(0, flat.size, step):
            some = flat[start : start + step]
            found[start : start + step] = _log_mean_exp(((some - 1) * some / 2)[:, None] * squared, law.log_weight)
    return (found / (flat - 1)).reshape(a.shape)


def _log_mean_exp(exponents: Array, log_weight: Array) -> Array:
    """ln E e^y for y ≥ 0, [A, J] -> [A]: ln(1 + E(e^y − 1)), so that a tiny value keeps its digits."""
    if exponents.max() < 1:
        return np.log1p(np.einsum("aj,j->a", np.expm1(exponents), np.exp(log_weight)))
    with np.errstate(divide="ignore"):
        gains = np.where(exponents > 40, exponents, np.log(np.expm1(np.minimum(exponents, 40))))
    return np.logaddexp(0, logsumexp(gains + log_weight, axis=1))


def epsilon(
    mechanism: SplitMechanism,
    delta: float,
    *,
    tight: bool = True,
) -> Certificate:
    """Smallest ε that is proven at δ.

    Args:
        mechanism: what is released.
        delta: in (0, 1). Above 1e-3, or above one over the number of clients, the certificate warns.
        tight: whether numerical composition (PLD) may be used where no closed form is exact; tens of milliseconds.

    Returns:
        A certificate with the upper bound, the lower bound where one is known, the method and the assumptions.

    Raises:
        ValueError: if δ is out of range.

    Source: the smallest of the bounds in docs/accounting.md; the certificate names its own.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2), lower_model="frozen")
    >>> round(epsilon(one, 1e-5).epsilon, 4)
    4.3772
    """
    return _answer(mechanism, delta, _epsilon_bounds([mechanism], np.array([validate.delta(delta)]))[0], tight)


def epsilons(
    mechanisms: Sequence[SplitMechanism], deltas: Sequence[float], *, tight: bool = False
) -> Iterator[Certificate]:
    """ε of many mechanisms: everything but numerical composition is done in one vectorised pass.

    Args:
        mechanisms: [R].
        deltas: [R].
        tight: as in `epsilon`, row by row.

    Yields:
        One certificate a row, in order.

    Source: as `epsilon`.

    >>> list(epsilons([], []))
    []
    """
    bounds = _epsilon_bounds(mechanisms, np.array([validate.delta(delta) for delta in deltas]))
    for mechanism, delta, found in zip(mechanisms, deltas, bounds, strict=True):
        yield _answer(mechanism, delta, found, tight)


def delta(mechanism: SplitMechanism, epsilon: float, *, tight: bool = True) -> Certificate:
    """Smallest δ that is proven at ε.

    Raises:
        ValueError: if ε is not a finite number ≥ 0.

    Source: as `epsilon`.

    >>> from privkit.accountants.spec.parts import Noise
    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2), lower_model="frozen")
    >>> round(delta(one, 1.0).delta, 6)
    0.126937
    """
    e = validate.real("epsilon", epsilon, least=0)
    best = min(_log_deltas(mechanism, e, tight), key=lambda bound: bound.value)
    value, lower = exp(min(best.value, 0.0)), e if best.exact and mechanism.attained else None
    if value == 0 and mechanism.noise.law == "gaussian":  # no Gaussian has δ = 0: it is too small for a float
        value, lower = SMALLEST, None
    return _certificate(mechanism, best, e, value, lower)


def _answer(mechanism: SplitMechanism, delta: float, bounds: list[Bound], tight: bool) -> Certificate:
    """The best of the bounds, and of numerical composition where it is wanted and nothing else is exact."""
    lower = None
    if tight and not any(bound.exact for bound in bounds):
        composed = composition.epsilon(mechanism, delta)
        if composed is not None:
            bounds = [*bounds, Bound(value=composed.upper, method=composition.METHOD, source=composition.SOURCE)]
            lower = composed.lower
    best = min(bounds, key=lambda bound: bound.value)
    lower = best.value if best.exact else lower
    return _certificate(mechanism, best, best.value, delta, lower if mechanism.attained else None)


def _epsilon_bounds(mechanisms: Sequence[SplitMechanism], deltas: Array) -> list[list[Bound]]:
    """Valid bounds on ε for each row; rows with a constant Gaussian shift are computed together."""
    found: list[list[Bound]] = [[] for _ in mechanisms]
    groups: dict[str, list[tuple[int, float]]] = {}
    for row, mechanism in enumerate(mechanisms):
        constant = None
        if (
            independent_steps.of(mechanism) is None
            and mechanism.noise.law == "gaussian"
            and (mechanism.update_shift == 0 or _unsampled(mechanism))
        ):
            constant = mechanism.shift().constant
        if constant is None:
            found[row] = _single(mechanism, float(deltas[row]))
        else:
            groups.setdefault(mechanism.sampling.kind, []).append((row, constant))
    for kind, members in groups.items():
        rows = [row for row, _ in members]
        mu = np.array([shift for _, shift in members])
        bounds = _constant(kind, [mechanisms[row] for row in rows], mu, deltas[rows])
        for row, candidates in zip(rows, bounds, strict=True):
            found[row] = candidates
    return found


def _constant(kind: str, mechanisms: Sequence[SplitMechanism], mu: Array, deltas: Array) -> list[list[Bound]]:
    """Bounds for Gaussians of constant shift that share a way of participation, all rows at once."""
    rounds = np.array([mechanism.composed_rounds for mechanism in mechanisms], float)
    rate = np.array([mechanism.sampling.rate for mechanism in mechanisms])
    updates = np.array([mechanism.update_shift or 0.0 for mechanism in mechanisms])
    whole = gaussian.epsilon(deltas, np.sqrt(rounds * mu**2 + updates))
    found = [
        [Bound(value=value, method="exact Gaussian profile", source=BALLE_WANG, exact=full)]
        if full
        else [Bound(value=value, method="exact Gaussian profile, nothing credited to sampling", source=BALLE_WANG)]
        for value, full in zip(whole.tolist(), (rate == 1).tolist(), strict=True)
    ]
    sampled = np.flatnonzero(rate < 1)  # where everyone takes part, nothing is smaller than the exact profile
    if not sampled.size:
        return found
    rdp = subsampled_rdp.poisson_gaussian_rdp if kind == "poisson" else subsampled_rdp.fixed_size_gaussian_rdp
    values, orders = _converted(rdp, SAMPLED_ORDERS, rate[sampled], mu[sampled], rounds[sampled], deltas[sampled])
    edges = np.isin(orders, SAMPLED_ORDERS[[0, -1]])
    if far := np.flatnonzero(orders == SAMPLED_ORDERS[-1]).tolist():  # few rows, whose order is worth its time
        rows = sampled[far]
        values[far], orders[far] = _converted(rdp, HIGH_ORDERS, rate[rows], mu[rows], rounds[rows], deltas[rows])
        edges[far] = orders[far] == HIGH_ORDERS[-1]
    answers = zip(sampled.tolist(), np.maximum(values, 0.0).tolist(), orders.tolist(), edges.tolist(), strict=True)
    for row, value, order, edge in answers:
        found[row].append(_renyi(mechanisms[row], value, order, edge))
        if kind == "without_replacement" and rounds[row] == 1:
            found[row].append(_sampled_once(float(mu[row]), float(rate[row]), float(deltas[row])))
    return found


def _converted(
    rdp: Callable[[Array, Array, Array], Array], orders: Array, rate: Array, mu: Array, rounds: Array, deltas: Array
) -> tuple[Array, Array]:
    """Smallest ε of each row over the orders, and the order at which it is found, [R]."""
    values = renyi.canonne(orders, rdp(orders, rate, mu) * rounds[:, None], deltas[:, None])
    return values.min(1), orders[values.argmin(1)]


def _sampled_once(mu: float, rate: float, delta: float) -> Bound:
    """Exact ε of one release of k of n: ln(1 + γ(e^ε − 1)) where the unsampled ε has δ/γ."""
    value = 0.0 if delta >= rate else float(amplify(gaussian.epsilon(delta / rate, mu), rate))
    return Bound(value=value, method="exact sampled profile", source=BALLE_BARTHE_GABOARDI, exact=True)


def _single(mechanism: SplitMechanism, delta: float) -> list[Bound]:
    """Bounds on ε for one mechanism whose shift is random, Laplace, or composed with updates of the lower model."""
    found = [_by_curve(mechanism, lambda orders, rdp: renyi.best_epsilon(orders, rdp, delta))]
    return found + [_bound(form, form.epsilon(delta)) for form in closed_forms.closed_forms(mechanism)]


def _log_deltas(mechanism: SplitMechanism, epsilon: float, tight: bool) -> list[Bound]:
    """Bounds on ln δ at ε, of the same methods as those on ε."""
    found = [_by_curve(mechanism, lambda orders, rdp: renyi.best_delta(orders, rdp, epsilon))]
    found += [_bound(form, form.log_delta(epsilon)) for form in closed_forms.closed_forms(mechanism)]
    if tight and not any(bound.exact for bound in found):
        composed = composition.delta(mechanism, epsilon)
        if composed is not None:
            value = log(composed.upper) if composed.upper > 0 else -inf
            found.append(Bound(value=value, method=composition.METHOD, source=composition.SOURCE))
    return found


def _by_curve(mechanism: SplitMechanism, best: Callable[[Array, Array], renyi.Converted]) -> Bound:
    """The bound at the best order; at high ones, too, where the last of the usual ones is the best."""
    orders = _orders(mechanism)
    found = best(orders, curve(mechanism, orders))
    if orders is SAMPLED_ORDERS and found.order == orders[-1]:
        found = best(HIGH_ORDERS, curve(mechanism, HIGH_ORDERS))
    return _renyi(mechanism, found.value, found.order, bool(found.at_edge and found.order != HIGH_ORDERS[0]))


def _bound(form: closed_forms.ClosedForm, value: float) -> Bound:
    """One side of a closed form."""
    return Bound(value=value, method=form.method, source=form.source, exact=form.exact)


def _unsampled(mechanism: SplitMechanism) -> bool:
    """Whether neither releases nor updates of the lower model are sampled, so that constant shifts add up."""
    return mechanism.sampling.rate == 1 and mechanism.update_shift is not None


def _orders(mechanism: SplitMechanism) -> Array:
    """Orders worth trying: subsampled curves are known at whole ones."""
    if (steps := independent_steps.of(mechanism)) is not None:
        return steps.orders
    lower = mechanism.lower_model
    sampled = mechanism.sampling.rate < 1 or (isinstance(lower, PrivateUpdates) and lower.rate < 1)
    return SAMPLED_ORDERS if sampled else np.array(renyi.ORDERS)


def _renyi(mechanism: SplitMechanism, value: float, order: float, at_edge: bool) -> Bound:
    """A bound by Rényi composition and the tighter conversion."""
    kind = mechanism.sampling.kind
    sampled = {
        "poisson": ", Poisson-sampled",
        "without_replacement": ", sampled k of n",
        "random_allocation": ", random allocation",
    }.get(kind, "")
    return Bound(
        value=value,
        method=f"Rényi composition{sampled}",
        source=f"{SAMPLED[kind]}; {CONVERSION}",
        order=order,
        at_edge=at_edge,
    )


def _certificate(
    mechanism: SplitMechanism, best: Bound, epsilon: float, delta: float, lower: float | None
) -> Certificate:
    """The answer with everything that it rests on."""
    if not isfinite(epsilon) or delta >= 1:
        return Certificate(
            kind="nothing",
            statement="nothing is proven: no ε with δ < 1 follows from these parameters",
            method=best.method,
            relation=mechanism.relation,
            unit=mechanism.unit,
            assumptions=assumptions(mechanism),
            source=best.source,
            versions=library_versions(),
        )
    return Certificate(
        kind="differential_privacy",
        statement=statement(mechanism, epsilon, delta),
        epsilon=epsilon,
        delta=delta,
        lower=lower,
        method=best.method,
        order=best.order,
        at_grid_edge=best.at_edge,
        relation=mechanism.relation,
        unit=mechanism.unit,
        assumptions=(*assumptions(mechanism), *warnings(mechanism, delta)),
        source=best.source,
        versions=library_versions(),
    )
