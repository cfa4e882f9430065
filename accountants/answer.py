"""Compute ε, δ, the Rényi curve and the trade-off curve of a mechanism, each by the smallest proven bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import compile as compiled
from privkit.accountants import validate
from privkit.accountants.bounds import bound
from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.gdp import gdp, zcdp
from privkit.accountants.bounds.numerical_composition import tight_bounds
from privkit.accountants.bounds.renyi_composition import renyi_bound
from privkit.accountants.bounds.step import Steps
from privkit.accountants.region import region
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.wording import assumptions, library_versions, statement, warnings
from privkit.shared.array import Array
from privkit.shared.certificate import Certificate, Relation, Unit


@dataclass(frozen=True, kw_only=True)
class RenyiCurve:
    """Rényi differential privacy of a whole run at A orders. The fields after `values` are as in `Certificate`.

    Attributes:
        orders: the A orders, each > 1.
        values: for each order, an upper bound ≥ 0, in nats, on the Rényi divergence of the run.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]
    method: str
    relation: Relation
    unit: Unit
    assumptions: tuple[str, ...]
    source: str
    versions: dict[str, str]


def rdp(mechanism: SplitMechanism, orders: Sequence[float]) -> RenyiCurve:
    """Bound from above the Rényi divergence of a run at the given `orders` α > 1.

    A run consists of all releases of the `mechanism`. The `values` of the result hold one bound ≥ 0, in nats, for each
    order. No value exceeds the bound for the same mechanism without sampling.

    Source: Mironov 2017. Derived for random mixing ratios λ: ε(α) = ln E exp((α−1)αμ²(λ)/2)/(α−1). Here μ(λ) is the
    distance of neighboring releases, divided by the noise's standard deviation. DP-CutMixSL's Theorem 1 treats fixed λ.
    For a secret sample of k of n clients, the bound follows from the tight privacy profile if μ(λ) has at most 256
    values and its law determines the (ε, δ) profile, and otherwise from Wang, Balle and Kasiviswanathan 2019.

    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> rdp(one, [2, 8]).values
    (1.0, 4.0)
    """
    wanted, run = np.array([validate.real("order", order, above=1) for order in orders]), compiled.steps(mechanism)
    if not wanted.size:
        raise ValueError("orders must hold at least one order > 1, got none")
    named = renyi_bound(run)
    return RenyiCurve(
        orders=tuple(wanted.tolist()),
        values=tuple(np.sum([step.fine_rdp(wanted, count) for step, count in run], axis=0).tolist()),
        method=named.method,
        relation=mechanism.relation,
        unit=mechanism.unit,
        assumptions=assumptions(mechanism),
        source=named.source,
        versions=library_versions(),
    )


def epsilon(mechanism: SplitMechanism, delta: float, *, tight: bool = True) -> Certificate:
    """Compute the smallest ε for which the mechanism is proven (ε, δ)-DP, and return its certificate.

    Args:
        mechanism: all releases of a run: sensitivity, noise, mixing, sampling and number of rounds.
        delta: δ in (0, 1). If it is above 1e-3 or above 1/(number of clients), the certificate contains a warning.
        tight: whether to compose privacy loss distributions numerically if no closed form is exact. The composition
            takes tens of milliseconds, and up to a second for many rounds in which k of n clients are sampled.

    Source: docs/explanation/accounting.md lists the bounds. The certificate names the bound that gives the smallest ε.

    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> round(epsilon(one, 1e-5).epsilon, 4)
    4.3772
    """
    return next(epsilons([mechanism], [delta], tight=tight))


def epsilons(
    mechanisms: Sequence[SplitMechanism], deltas: Sequence[float], *, tight: bool = False
) -> Iterator[Certificate]:
    """Yield a certificate of the smallest proven ε for each of the `mechanisms`; `deltas` holds their δ in (0, 1).

    The bounds are those of `epsilon`. They are computed for all mechanisms in one vectorised pass, except for numerical
    composition (`tight`), which takes the mechanisms one by one.
    """
    checked = [validate.delta(delta) for delta in deltas]
    runs = [compiled.steps(mechanism) for mechanism in mechanisms]
    rows = [compiled.bounds(run, tight=False) for run in runs]
    every = [(one, delta) for bounds, delta in zip(rows, checked, strict=True) for one in bounds]
    limits = iter(bound.batched_epsilons([one for one, _ in every], np.array([delta for _, delta in every])))
    for mechanism, run, bounds, delta in zip(mechanisms, runs, rows, checked, strict=True):
        answered = [(one, next(limits)) for one in bounds]
        if tight and not bounds[0].exact:
            answered += [(composed, composed.epsilon(delta)) for composed in tight_bounds(run)]
        best, least = _least(answered)
        lower = least.value if best.exact else next((one.lower for _, one in answered if one.lower is not None), None)
        yield _certified(mechanism, run, best, least, least.value, delta, lower if mechanism.attained else None)


def delta(mechanism: SplitMechanism, epsilon: float, *, tight: bool = True) -> Certificate:
    """Compute the smallest δ for which the mechanism is proven (ε, δ)-DP at a given ε ≥ 0, and return its certificate.

    The bounds and the meaning of `mechanism` and `tight` are the same as in `epsilon`.

    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> round(delta(one, 1.0).delta, 6)
    0.126937
    """
    e = validate.real("epsilon", epsilon, least=0)
    run = compiled.steps(mechanism)
    best, least = _least([(one, one.log_delta(e)) for one in compiled.bounds(run, tight=tight)])
    value = delta_of(least.value, e, run)
    lower = e if best.exact and mechanism.attained and value != _SMALLEST else None
    return _certified(mechanism, run, best, least, e, value, lower)


def no_protection() -> Certificate:
    """The certificate of an unprotected release: ε is infinite, since nothing is proven.

    Source: the definition of DP; the smashed data (the activations at the cut layer) leave the client unchanged.

    >>> no_protection().epsilon
    inf
    """
    return Certificate(
        kind="nothing",
        statement="nothing is proven: the smashed data leave the client as they are; no differential privacy",
        source="by definition",
    )


_SMALLEST = 5e-324  # the smallest positive float, reported if δ underflows, since δ = 0 would be a stronger claim


def delta_of(log_delta: float, epsilon: float, run: Steps) -> float:
    """Convert ln δ into δ. The result is 0 only if the run is proven (ε, 0)-DP, and otherwise at least the smallest
    positive float."""
    value = exp(min(log_delta, 0.0))
    return value if value > 0 or epsilon >= sum(step.pure(count) for step, count in run) else _SMALLEST


def trade_off(mechanism: SplitMechanism, false_positive_rates: ArrayLike, *, tight: bool = True) -> Array:
    """Compute lower bounds on the false negative rate of any attack at A `false_positive_rates`: float [A].

    For a rate α in [0, 1] the bound is the maximum over ε of max(1 − δ − e^ε·α, e^{−ε}(1 − δ − α)). Here δ is the
    smallest proven δ at ε, which `region` computes at some values of ε. `mechanism` and `tight` are as in `epsilon`.

    Source: Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015, Theorem 2.1; Dong, Roth and Su 2022, Prop. 2.12.

    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> trade_off(one, [0.05, 0.5]).round(3).tolist()
    [0.74, 0.159]
    """
    return 1 - region(mechanism, tight=tight).true_positives(false_positive_rates)


def _least(answered: Sequence[tuple[Bound, Limit]]) -> tuple[Bound, Limit]:
    return min(answered, key=lambda one: one[1].value)


def _certified(
    mechanism: SplitMechanism, run: Steps, best: Bound, limit: Limit, epsilon: float, delta: float, lower: float | None
) -> Certificate:
    said = assumptions(mechanism)
    if not isfinite(epsilon) or delta >= 1:
        claim = "nothing is proven: no ε with δ < 1 follows from these parameters"
        return certificate(mechanism, run, best, Limit(value=inf), claim, said)
    said = (*said, *warnings(mechanism, delta))
    return certificate(mechanism, run, best, limit, statement(mechanism, epsilon, delta), said, (epsilon, delta, lower))


def certificate(
    mechanism: SplitMechanism,
    run: Steps,
    best: Bound,
    limit: Limit,
    claim: str,
    said: tuple[str, ...],
    proven: tuple[float, float, float | None] | None = None,
) -> Certificate:
    """Build the certificate of an ε or δ that the bound `best` gave for the steps `run`.

    `limit` holds the bound's value, and the Rényi order that proves it, if any. `claim` is the certificate's statement,
    and `said` lists its assumptions and warnings. `proven` is (ε, δ, lower bound on ε or None), or None if nothing is
    proven. The certificate's ρ (zCDP) and μ (Gaussian DP) follow from `run`.
    """
    epsilon, delta, lower = proven or (inf, None, None)
    return Certificate(
        kind="differential_privacy" if proven else "nothing",
        statement=claim,
        epsilon=epsilon,
        delta=delta,
        lower=lower,
        method=best.method,
        order=limit.order,
        at_grid_edge=limit.at_edge,
        relation=mechanism.relation,
        unit=mechanism.unit,
        quantities={"zcdp_rho": zcdp(run), "gdp_mu": gdp(run)} if proven else {},
        assumptions=said,
        source=best.source,
        versions=library_versions(),
    )
