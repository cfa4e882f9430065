"""The true ε of pairs of data sets under small specifications of mixing, by enumeration and integration.

Nothing here uses the accountants. A specification is JSON, which this file interprets by itself:

* In every round, client i sits on seat i. Sampled clients take the k seats uniformly at random and secretly. Seats are
  places in a mixture or, if clients are sampled, the places of anonymous messages.
* Masks that are not random lie one after the other, in the order of the seats, and are public. Random masks are uniform
  and secret. Ratios are public unless the specification says otherwise.
* Clients that collude reveal everything except the neighbor's release, also their own noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import factorial, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.special import gammaln, roots_jacobi

Array = NDArray[np.float64]
Spec = dict[str, Any]
Law = tuple[tuple[tuple[float, ...], float], ...]
"""Means and their probabilities."""
MOST_DIMENSIONS = 3
"""Largest number of dimensions in which densities are integrated."""
_BIN = 0.005
"""Width of a bin of privacy losses when rounds are composed."""


# What is drawn -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One outcome of all random choices of a round.

    Attributes:
        chance: the probability of this outcome.
        told: the part of the outcome that the server knows.
        seats: the client on each seat.
        ratios: the mixing ratio of each seat.
        masks: [k, D], the coordinates that each seat fills.
    """

    chance: float
    told: Any
    seats: tuple[int, ...]
    ratios: tuple[float, ...]
    masks: Array


def draws(m: Spec, number: int) -> list[Draw]:
    """All possible outcomes of round `number`."""
    mixing, taking, dimensions = m["mixing"], m["participation"], m["smashed"]["dimensions"]
    if mixing["kind"] == "hidden_mask":
        kept = list(combinations(range(dimensions), mixing["kept"]))
        each = [np.isin(np.arange(dimensions), one).astype(float)[None] for one in kept]
        return [Draw(chance=1 / len(kept), told=None, seats=(0,), ratios=(1.0,), masks=mask) for mask in each]
    drawn = taking["kind"] == "without_replacement"
    everybody = drawn and mixing["kind"] == "none" and taking["chosen"] == taking["clients"]
    group = taking["chosen"] if drawn else _group(mixing)
    seatings = list(permutations(range(taking["clients"]), group)) if drawn else [tuple(range(group))]
    found = []
    for ratios, likely, known in _ratios(mixing, group, number):
        for masks, chance, mask in _masks(m, ratios, group):
            for seats in seatings:
                told: Any = (known, mask, seats if not drawn or everybody else None)
                if mixing.get("colluding"):
                    told = (ratios, masks.tobytes(), seats)
                p = likely * chance / len(seatings)
                found.append(Draw(chance=p, told=told, seats=seats, ratios=ratios, masks=masks))
    return found


def _group(mixing: Spec) -> int:
    """The number of seats in a message."""
    ratio = mixing.get("ratio", {"clients": 1})
    if "clients" in ratio:
        return int(ratio["clients"])
    listed = ratio.get("ratios") or ratio["counts"]
    return len(listed[0] if ratio["kind"] == "realized" else listed)


def _ratios(mixing: Spec, group: int, number: int) -> Iterator[tuple[tuple[float, ...], float, Any]]:
    """Yield ratios of the seats, their probability, and what the server knows of them."""
    ratio = mixing.get("ratio")
    if ratio is None:
        yield (1.0,) * group, 1.0, None
    elif ratio["kind"] in ("fixed", "counts", "realized"):
        values = ratio.get("ratios") or [count / sum(ratio["counts"]) for count in ratio["counts"]]
        yield tuple(values[number] if ratio["kind"] == "realized" else values), 1.0, None
    else:
        law = _counts(ratio, mixing["patches"]) if ratio["kind"] == "dirichlet_counts" else _dirichlet(ratio)
        for values, chance in law:
            yield values, chance, values if ratio["published"] else None


def _counts(ratio: Spec, patches: int) -> Iterator[tuple[tuple[float, ...], float]]:
    """The Dirichlet-multinomial law."""
    a, k = ratio["concentration"], ratio["clients"]
    for counts in product(range(patches + 1), repeat=k):
        if sum(counts) == patches:
            log = gammaln(k * a) - gammaln(k * a + patches) + gammaln(patches + 1)
            log += sum(gammaln(a + count) - gammaln(a) - gammaln(count + 1) for count in counts)
            yield tuple(count / patches for count in counts), float(np.exp(log))


def _dirichlet(ratio: Spec) -> Iterator[tuple[tuple[float, ...], float]]:
    """Nodes of a Gauss rule."""
    a, k = ratio["concentration"], ratio["clients"]
    if k == 2:
        for x, weight in zip(*_beta(a, a, 25), strict=True):
            yield (x, 1 - x), weight
        return
    for x, weight in zip(*_beta(a, 2 * a, 11), strict=True):
        for y, second in zip(*_beta(a, a, 11), strict=True):
            yield (x, (1 - x) * y, (1 - x) * (1 - y)), weight * second


def _beta(a: float, b: float, nodes: int) -> tuple[list[float], list[float]]:
    x, weight = roots_jacobi(nodes, b - 1, a - 1)
    return ((1 + x) / 2).tolist(), (weight / weight.sum()).tolist()


def _masks(m: Spec, ratios: tuple[float, ...], group: int) -> Iterator[tuple[Array, float, Any]]:
    """[k, D] masks with one coordinate a patch, their probability, and what is told of them."""
    dimensions = m["smashed"]["dimensions"]
    if m["mixing"]["kind"] != "cutmix":
        yield np.ones((group, dimensions)), 1.0, None
        return
    counts = [round(ratio * dimensions) for ratio in ratios]
    owners = np.repeat(np.arange(group), counts)
    orders = sorted(set(permutations(owners.tolist()))) if m["random_masks"] else [tuple(owners.tolist())]
    assert not m["random_masks"] or len(orders) == factorial(dimensions) // prod(map(factorial, counts))
    for order in orders:
        mask = (np.array(order) == np.arange(group)[:, None]).astype(float)
        yield mask, 1 / len(orders), None if m["random_masks"] else order


# Data sets -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Neighboring data sets.

    Attributes:
        neighbor: the client that is replaced.
        data: [n, D] smashed data of all clients.
        labels: [n] 0 or 1.
        other: [D] what the neighbor has in the other data set; None where it is absent there.
        other_label: likewise.
    """

    neighbor: int
    data: Array
    labels: NDArray[np.int_]
    other: Array | None
    other_label: int = 1


def means(m: Spec, one: Draw, pair: Pair, second: bool) -> Array:
    """[R] mean of what the server sees that is not known to it, over the standard deviation of its noise."""
    noise, mixing = m["noise"], m["mixing"]
    data, labels = pair.data.copy(), pair.labels.copy()
    if second:
        data[pair.neighbor] = 0.0 if pair.other is None else pair.other
        labels[pair.neighbor] = pair.other_label
    seats = list(one.seats)
    sent, ratio = data[seats], np.array(one.ratios)[:, None]
    label = np.eye(2)[labels[seats]]
    if mixing["kind"] in ("none", "hidden_mask"):
        return np.asarray((one.masks * sent / noise["smashed"]).ravel())
    weight = one.masks if mixing["kind"] == "cutmix" else ratio * one.masks
    scale, label_scale = noise["smashed"], noise["labels"] or 1.0
    if noise["site"] == "client" and mixing["colluding"]:  # all that is left is the neighbor's own message
        own = [seat for seat, client in enumerate(seats) if client == pair.neighbor and ratio[seat] > 0]
        parts = [(one.masks[own] * sent[own] / scale).ravel(), (label[own] / label_scale).ravel()]
    else:
        spread = float(np.sqrt((ratio**2).sum())) if noise["site"] == "client" else 1.0
        mixed = (weight * sent).sum(0) / (scale * (1.0 if mixing["kind"] == "cutmix" else spread))
        parts = [mixed, (ratio * label).sum(0) / (label_scale * spread)]
    return np.concatenate(parts[: 1 if m["labels"] is None else 2])


# Losses --------------------------------------------------------------------------------------------------------------


def epsilon(m: Spec, pair: Pair, delta: float, fine: bool = True) -> float:
    """ε of a pair at δ, in the worse direction."""
    rounds = [_round(m, number, pair, fine) for number in range(m["rounds"])]
    found = 0.0
    for side in (0, 1):
        losses, masses = rounds[0][side]
        for one in rounds[1:]:
            losses, masses = _sum((losses, masses), one[side])
        found = max(found, _solved(losses, masses, delta))
    return found


def _round(m: Spec, number: int, pair: Pair, fine: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Losses and masses of one round, in both directions; what is told is told to both."""
    told: dict[Any, tuple[dict[bytes, float], dict[bytes, float]]] = {}
    for one in draws(m, number):
        for second, law in enumerate(told.setdefault(one.told, ({}, {}))):
            mean = (means(m, one, pair, bool(second)).round(10) + 0.0).tobytes()
            law[mean] = law.get(mean, 0.0) + one.chance
    alike: dict[tuple[Law, Law], float] = {}
    for first, other in told.values():
        chance, origin = sum(first.values()), np.frombuffer(min(first))
        laws = _moved(first, origin, chance), _moved(other, origin, chance)
        alike[laws] = alike.get(laws, 0.0) + chance
    found = [(_integrated(m["noise"]["law"], *laws, fine), chance) for laws, chance in alike.items()]
    there, back = (
        (
            np.concatenate([both[side][0] for both, _ in found]),
            np.concatenate([chance * both[side][1] for both, chance in found]),
        )
        for side in (0, 1)
    )
    return there, back


def _moved(law: dict[bytes, float], origin: Array, chance: float) -> Law:
    """A law given what is told, about another origin."""
    centers = [tuple(((np.frombuffer(mean) - origin).round(9) + 0.0).tolist()) for mean in law]
    return tuple(sorted(zip(centers, [round(p / chance, 12) for p in law.values()], strict=True)))


def _integrated(law: str, first: Law, second: Law, fine: bool) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Losses and masses of both directions, on a grid over the space that the means span."""
    if first == second:
        return ((np.zeros(1), np.ones(1)),) * 2
    centers = np.array([mean for mean, _ in first + second])
    if law == "gaussian":
        _, values, axes = np.linalg.svd(centers - centers[0], full_matrices=False)
        centers = (centers - centers[0]) @ axes[values > 1e-6].T
    width = centers.shape[1]
    assert width <= MOST_DIMENSIONS
    reach = 6.5 if law == "gaussian" else 13.0
    step = {1: (0.1, 0.02), 2: (0.3, 0.08), 3: (0.5, 0.25)}[width][fine]
    ends = zip(centers.min(0), centers.max(0), strict=True)
    lines = [np.arange(low - reach, high + reach + step, step) for low, high in ends]
    density = [np.zeros(tuple(line.size for line in lines)) for _ in range(2)]
    for number, (center, (_, chance)) in enumerate(zip(centers.tolist(), first + second, strict=True)):
        term = np.array(chance)
        for line, middle in zip(lines, center, strict=True):
            term = term[..., None] * _density(law, line - middle) * step
        density[number >= len(first)] += term
    one, other = (np.maximum(part.ravel(), 1e-300) for part in density)
    losses = np.log(one) - np.log(other)
    return (losses, one), (-losses, other)


def _density(law: str, x: Array) -> Array:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi) if law == "gaussian" else np.exp(-np.abs(x)) / 2


def _sum(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Sum of two independent losses, each rounded to a bin."""
    arrays, least = [], 0
    for losses, masses in (one, other):
        likely = masses > 1e-16
        index = np.round(losses[likely] / _BIN).astype(int)
        least += index.min()
        arrays.append(np.bincount(index - index.min(), masses[likely]))
    masses = np.maximum(fftconvolve(*arrays), 0.0)
    return (least + np.arange(masses.size)) * _BIN, masses


def _solved(losses: Array, masses: Array, delta: float) -> float:
    """The ε at which Σ masses·(1 − e^{ε − loss}) over larger losses is δ."""
    order = np.argsort(-losses)
    losses, masses = losses[order], masses[order]
    above = np.cumsum(masses)
    below = np.cumsum(masses * np.exp(np.minimum(-losses, 600.0)))
    following = np.append(losses[1:], -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        solved = np.log(np.maximum(above - delta, 0.0) / below)
    found = np.flatnonzero((above > delta) & (solved >= following))
    return max(0.0, float(solved[found[0]])) if found.size else 0.0


# The search ----------------------------------------------------------------------------------------------------------


def searched(m: Spec, delta: float, seed: int = 0, tries: int = 4, moves: int = 16) -> float:
    """The largest ε of any pair that was found: corners of the clamp, climbed one entry at a time."""
    random = np.random.default_rng([11, seed])
    dimensions, mixing = m["smashed"]["dimensions"], m["mixing"]
    drawn = m["participation"]["kind"] == "without_replacement"
    clients = m["participation"]["clients"] if drawn else 1 if mixing["kind"] == "hidden_mask" else _group(mixing)
    absent = m["relation"] == "add_or_remove_one"
    ones = np.ones(dimensions)
    starts = []
    for neighbor in range(1 if drawn else clients):
        for rest, label in ((-ones, 1), (ones, 0), (0 * ones, 1)):
            data = np.tile(rest, (clients, 1))
            data[neighbor] = ones
            labels = np.full(clients, label)
            labels[neighbor] = 0
            starts.append(Pair(neighbor=neighbor, data=data, labels=labels, other=None if absent else -ones))
        for _ in range(tries if clients > 1 else 0):
            data = random.choice([-1.0, 1.0], (clients, dimensions))
            labels = random.integers(0, 2, clients)
            labels[neighbor] = 0
            starts.append(Pair(neighbor=neighbor, data=data, labels=labels, other=None if absent else -data[neighbor]))
    ranked = sorted(((epsilon(m, pair, delta, False), number) for number, pair in enumerate(starts)), reverse=True)
    best, top = ranked[0][0], starts[ranked[0][1]]
    for _ in range(moves if clients > 1 or dimensions > 1 else 0):
        data, other = top.data.copy(), None if top.other is None else top.other.copy()
        row, column = int(random.integers(clients)), int(random.integers(dimensions))
        data[row, column] = random.choice([-1.0, 0.0, 1.0])
        if other is not None and random.random() < 0.2:
            other[column] = random.choice([-1.0, 1.0])
        moved = Pair(neighbor=top.neighbor, data=data, labels=top.labels, other=other)
        if (value := epsilon(m, moved, delta, False)) > best:
            best, top = value, moved
    finalists = [top, *(starts[number] for _, number in ranked[:2])]
    return max(epsilon(m, pair, delta) for pair in finalists)
