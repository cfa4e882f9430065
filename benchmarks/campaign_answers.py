"""Lower bounds on a specification's ε, δ and Rényi divergence, from the worst of its worlds (pairs of datasets)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import expm1, inf, log, log1p, sqrt

import campaign_secrets
import numpy as np
from campaign_composed import Bounds, TooLarge, composed
from campaign_truth import (
    Part,
    invert,
    log_delta_hidden,
    log_delta_once,
    log_profile,
    part,
    renyi,
)
from campaign_worlds import (
    Array,
    Points,
    Spec,
    World,
    distance,
    drawn_once,
    kept,
    length_of,
    own_shifts,
    ratio_of,
    scales_of,
    taking_part,
    worlds,
)
from scipy.special import expit, logsumexp


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Bounds on the ε of the worst world, and its name; `deep` says whether a numerical composition was used."""

    low: float
    high: float
    world: str
    deep: bool


def truth(m: Spec, delta: float, deep: bool = True, *, most: bool = False) -> Truth:
    """Bounds on the ε of the worst world at δ. For continuous ratios, `high` is infinite if `most` is False."""
    cells = 25
    best, high, name, used = 0.0, 0.0, "", False
    for world in worlds(m, "low", cells):
        bounds, how = _bounds(world, delta, deep)
        used |= how
        high = max(high, bounds.high)
        if bounds.low >= best:
            best, name = bounds.low, world.name
    if ratio_of(m).get("kind") == "dirichlet" and high < inf:
        high = inf if not most else max(_bounds(world, delta, deep)[0].high for world in worlds(m, "high", cells))
    if not name:
        high = inf
    return Truth(low=best, high=high, world=name, deep=used)


def together(first: Spec, second: Spec, delta: float, deep: bool) -> float:
    """Lower bound on ε at δ if both mechanisms run on the same data, from the first three worlds of each."""
    pairs = [[world for world in worlds(m) if world.parts and not world.hidden] for m in (first, second)]
    best = 0.0
    for one in pairs[0][:3]:
        for other in pairs[1][:3]:
            if min(one.sampled_once, other.sampled_once) == 1:
                both = World(name="both", parts=one.parts + other.parts)
                best = max(best, _bounds(both, delta, deep)[0].low)
    return best


def _bounds(world: World, delta: float, deep: bool) -> tuple[Bounds, bool]:
    """Bounds on the ε of one world, and whether a composition gave them.

    The bounds are weak if the world needs a composition that `deep` forbids or that is too large.
    """
    if world.test is not None:
        low = invert(world.test, delta)
        return Bounds(low=low, high=low if world.exact else inf), False
    if world.sampled_once < 1:
        g = world.sampled_once
        if delta >= g:
            return Bounds(low=0.0, high=inf), False
        base, used = _bounds(replace(world, sampled_once=1.0), delta / g, deep)
        return Bounds(low=_amplify(base.low, g), high=inf), used
    if world.hidden:
        low = invert(lambda e: log_delta_hidden(world.parts[0], e), delta)
        alone = len(world.parts) == 1 and world.parts[0].rounds == 1
        return Bounds(low=low, high=low if alone else inf), False
    closed = closed_form(world)
    if closed is not None:
        value = invert(lambda e: log_delta_once(closed, e), delta)
        return Bounds(low=value, high=value), False
    if deep and sum(one.rounds for one in world.parts) <= 10**7:
        try:
            return composed(world.parts, delta), True
        except TooLarge:
            pass
    return Bounds(low=invert(lambda e: weak_log_delta(world, e), delta), high=inf), False


def closed_form(world: World) -> Part | None:
    """One release with the privacy loss of the whole world; None if its parts must be composed numerically."""
    live = [one for one in world.parts if one.shift.max() > 0] or [world.parts[0]]
    if all(one.rate == 1 and one.shift.size == 1 and one.law == "gaussian" for one in live):
        return part(sqrt(sum(one.rounds * float(one.shift[0]) ** 2 for one in live)))
    if len(live) == 1 and live[0].rounds == 1 and live[0].pair == "up":
        return live[0]
    return None


def weak_log_delta(world: World, epsilon: float) -> float:
    """Lower bound on ln δ(ε), from one round alone or from the event that every round draws the record."""
    best = -inf
    for one in world.parts:
        if one.pair == "up":
            best = max(best, log_delta_once(one, epsilon))
    if any(one.law == "laplace" or one.pair != "up" for one in world.parts):
        return best
    live = [one for one in world.parts if one.shift.max() > 0]
    parts = live[:1] + [one for one in live[1:] if one.shift.size == 1]  # only the first part may have coins
    if not parts:
        return best
    order = np.argsort(-parts[0].shift)
    chance = np.log(np.minimum(np.cumsum(parts[0].weight[order]), 1.0))
    others = sum(one.rounds * float(one.shift[0]) ** 2 for one in parts[1:])
    log_rate = sum(one.rounds * log(one.rate) for one in parts)
    # All T rounds draw the record, with public ratios λ ≥ x, with probability γ^T·P(λ ≥ x)^T. So δ(ε) is at least this
    # probability times δ_G(ε − T·ln γ).
    total = np.sqrt(parts[0].rounds * parts[0].shift[order] ** 2 + others)
    given = log_rate + parts[0].rounds * chance
    return max(best, float(np.max(given + log_profile(epsilon - log_rate, total))))


def log_delta(m: Spec, epsilon: float) -> float:
    """Lower bound on ln δ at ε over all worlds, without numerical composition."""
    logs = []
    for world in worlds(m, "low", 40):
        if world.sampled_once < 1:
            continue
        if world.test is not None:
            logs.append(world.test(epsilon))
            continue
        closed = closed_form(world)
        if world.hidden:
            logs.append(log_delta_hidden(world.parts[0], epsilon))
        elif closed is not None:
            logs.append(log_delta_once(closed, epsilon))
        else:
            logs.append(weak_log_delta(world, epsilon))
    return max(logs, default=-inf)


def renyi_curve(m: Spec, orders: Array) -> Array:
    """[A] Lower bound on the Rényi divergence of a whole run, at each of A orders."""
    best = np.zeros(orders.size)
    if campaign_secrets.applies(m):
        return np.array([campaign_secrets.curve(m, length_of(m), order) for order in orders.tolist()])
    continuous = ratio_of(m).get("kind") == "dirichlet" and ratio_of(m)["clients"] > 1 and taking_part(m) == 1
    for world in worlds(m, "low", 40):
        if world.hidden or world.sampled_once < 1:
            continue
        for index, order in enumerate(orders.tolist()):
            first, *others = world.parts
            once = _dirichlet_renyi(m, order) if continuous else renyi(first, order)
            value = (m["rounds"] if continuous and not drawn_once(m) else first.rounds) * once + sum(
                one.rounds * renyi(one, order) for one in others
            )
            best[index] = max(best[index], value)
    return best


def _dirichlet_renyi(m: Spec, order: float) -> float:
    """Rényi divergence ln E exp(α(α−1)μ(λ)²/2)/(α − 1) for a Dirichlet ratio λ, by the trapezoidal rule in logit λ."""
    mixing, a = m["mixing"], ratio_of(m)["concentration"]
    b, patches = a * (mixing["ratio"]["clients"] - 1), mixing.get("patches")

    def logs(x: Array, below: float) -> tuple[Array, Array]:
        """Log density at x = logit λ, and the exponent at x − `below`, since it jumps where a patch is added."""
        ratio = expit(x - below)
        count = np.zeros(x.size) if patches is None else np.ceil(ratio * patches * (1 - 1e-14))
        law = Points(weight=np.ones(x.size), ratio=ratio, count=count, norm=ratio**2 + (1 - ratio) ** 2)
        squared = _squared(m, law) * (m["rounds"] if drawn_once(m) else 1)
        return -a * np.logaddexp(0, -x) - b * np.logaddexp(0, x), order * (order - 1) / 2 * squared

    x = np.linspace(-900, 900, 36_001)
    density, exponent = logs(x, 0.0)
    near = x[(density > density.max() - 60) | (density + exponent > (density + exponent).max() - 60)]
    x = np.linspace(near[0] - 0.1, near[-1] + 0.1, 40_001)
    density, exponent = logs(x, 0.0 if patches is None else float(x[1] - x[0]))
    density -= logsumexp(density)
    if exponent.max() < 1:
        return log1p(float(np.exp(density) @ np.expm1(exponent))) / (order - 1)
    return max(0.0, float(logsumexp(density + exponent))) / (order - 1)


def _squared(m: Spec, law: Points) -> Array:
    """[J] Squared shift of one round at each ratio: squared distance of the two means over the noise's variance."""
    (label, variance), mixing = scales_of(m), m["mixing"]
    own = own_shifts(m, law.ratio, law.norm)
    if mixing["kind"] == "mixup":
        return m["releases"] * own * (distance(m["smashed"], m["relation"]) / variance + label)
    if m["smashed"]["kind"] not in ("clamp", "patch_ball") and m["random_masks"]:
        held = distance(m["smashed"], m["relation"]) * law.count / mixing["patches"]
    elif m["smashed"]["kind"] == "clamp" and m["random_masks"]:
        held = distance(m["smashed"], m["relation"]) * law.count / mixing["patches"]  # a lower bound, by convexity
    else:
        held = kept(m["smashed"], m["relation"], mixing["patches"], law.count)
    return m["releases"] * (held / variance + own * label)


def _amplify(epsilon: float, rate: float) -> float:
    return log1p(rate * expm1(epsilon)) if epsilon < 30 else epsilon + log(rate)
