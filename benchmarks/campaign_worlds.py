"""Build the worst known pairs of neighboring datasets for a mechanism, and the bounds on its privacy that they prove.

The mechanism's specification in JSON is interpreted here independently, as plain dicts, so that a fault in privkit's
interpretation shows. Each world is one pair of datasets (and one way to divide coordinates into patches, if the
specification leaves this open). The privacy loss in a world is a lower bound on the mechanism's privacy loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, comb, sqrt
from typing import Any, Literal

import campaign_secrets
import numpy as np
from campaign_secrets import Spec
from campaign_truth import Array, Part, part
from scipy.special import betainc, betaincc, betaincinv, betaln, expit, gammaln
from scipy.stats import binom

Side = Literal["low", "high"]
"""The end of an interval of ratios that replaces them: "low" bounds the privacy loss from below, "high" from above."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What a pair of neighboring datasets sends, as independent parts; `hidden` says whether the coins are secret."""

    name: str
    parts: tuple[Part, ...]
    hidden: bool = False
    sampled_once: float = 1.0
    """Probability of one secret draw, which decides for all parts whether they depend on the changed record."""
    test: Callable[[float], float] | None = None
    """Lower bound on ln δ(ε), if no parts describe the pair; `exact` says whether it is the exact value."""
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class Points:
    """[J] values of a client's ratio λ, number of patches and squared norm of its group's ratios; and probabilities."""

    weight: Array
    ratio: Array
    count: Array
    norm: Array


# Geometry ------------------------------------------------------------------------------------------------------------


def distance(clip: Spec, relation: str, norm: int = 2) -> float:
    """Largest squared L2 distance (`norm=2`) or L1 distance (1) of two points of a clip set, or of one from zero."""
    replaced, kind = relation == "replace_one", clip["kind"]
    if kind == "clamp":
        reach = clip["high"] - clip["low"] if replaced else max(abs(clip["low"]), abs(clip["high"]))
        return float(clip["dimensions"] * reach**norm)
    if kind == "one_hot":
        return 2.0 if replaced else 1.0
    if kind == "box_labels":
        return float(clip["classes"])
    if kind == "known":
        return float(clip["value"] ** norm)
    squared = clip["radius"] ** 2 * ((2 if clip["nonnegative"] else 4) if replaced else 1)
    return float(squared * clip.get("patches", 1))


def patch_sizes(dimensions: int, patches: int) -> Array:
    """Number of coordinates of each patch, as equal as possible, the largest first."""
    return dimensions // patches + (np.arange(patches) < dimensions % patches).astype(float)


def kept(clip: Spec, relation: str, patches: int, counts: Array, norm: int = 2) -> Array:
    """[J] Largest `distance` within `counts` of the patches."""
    whole = distance(clip, relation, norm)
    if clip["kind"] == "clamp":
        held = np.concatenate([[0.0], np.cumsum(patch_sizes(clip["dimensions"], patches))])
        return whole / clip["dimensions"] * held[counts.astype(int)]
    if clip["kind"] == "patch_ball":
        return whole * counts / patches
    return np.where(counts > 0, whole, 0.0)


# Ratios --------------------------------------------------------------------------------------------------------------


def points(mixing: Spec, side: Side, cells: int, seated: bool = False) -> Points:
    """Distribution of the ratio of the client that loses most or, if `seated`, of a random place in the mixture."""
    ratio, patches = mixing["ratio"], mixing.get("patches")
    kind = ratio["kind"]
    if kind in ("fixed", "counts"):
        ratios = ratio["ratios"] if kind == "fixed" else [count / sum(ratio["counts"]) for count in ratio["counts"]]
        values = ratios if seated else [max(ratios)]
        counts = [0 if patches is None else _patches(one, patches) for one in values]
        each = 1 / len(values)
        return _points([each] * len(values), values, counts, [sum(one**2 for one in ratios)] * len(values))
    if ratio["clients"] == 1:
        return _points([1.0], [1.0], [patches or 0], [1.0])
    a, b = ratio["concentration"], (ratio["clients"] - 1) * ratio["concentration"]
    if kind == "dirichlet_counts":
        j = np.arange(patches + 1.0)
        choose = gammaln(patches + 1) - gammaln(j + 1) - gammaln(patches - j + 1)
        weight = np.exp(choose + betaln(j + a, patches - j + b) - betaln(a, b))
        value, count, weight = j / patches, j, weight / weight.sum()
    else:
        even = np.linspace(0, 1, cells)
        edges = [even, expit(np.linspace(-14, 14, cells)), betaincinv(a, b, even)]
        edges += [] if patches is None else [np.arange(1, patches) / patches]
        inside = np.unique(np.clip(np.concatenate(edges), 0, 1))
        below, above = betainc(a, b, inside), betaincc(a, b, inside)
        weight = np.maximum(np.where(below[1:] < 0.5, np.diff(below), -np.diff(above)), 0)
        weight /= weight.sum()
        value = inside[:-1] if side == "low" else inside[1:]
        count = np.zeros(value.size) if patches is None else np.ceil((inside[1:] + inside[:-1]) / 2 * patches)
    rest = (1 - value) ** 2  # bounds the sum of the k − 1 other squares; the least is 1/(k − 1) of it
    norm = value**2 + (rest if side == "low" else rest / (ratio["clients"] - 1))
    return _points(weight, value, count, norm)


def _patches(ratio: float, patches: int) -> int:
    """Number of patches ⌈λN⌉, up to rounding errors in the last digits of λ."""
    return ceil(ratio * patches * (1 - 1e-14) - 1e-14)


def _points(weight: Any, ratio: Any, count: Any, norm: Any) -> Points:
    return Points(
        **{
            name: np.asarray(value, float)
            for name, value in zip(("weight", "ratio", "count", "norm"), (weight, ratio, count, norm), strict=True)
        }
    )


# Worlds --------------------------------------------------------------------------------------------------------------


def worlds(m: Spec, side: Side = "low", cells: int = 80) -> Iterator[World]:
    """Pairs of neighboring datasets; the mechanism's privacy loss is at least that of each pair."""
    if campaign_secrets.applies(m):
        bounds, exact = campaign_secrets.tests(m, length_of(m))
        yield from (World(name=name, parts=(), test=test, exact=exact) for name, test in bounds)
        return
    rate = _rate(m)
    if m["noise"]["law"] == "laplace":
        yield from _laplace_worlds(m, rate)
        return
    for name, shift, weight, hidden in _shifts(m, side, cells):
        rounds = 1 if ratio_of(m).get("kind") == "realized" else m["rounds"]
        if drawn_once(m):
            shift, rounds = sqrt(rounds) * shift, 1
        coin = rate if hidden else _told_rate(m)
        if coin < 1:  # sampling as another coin: public if clients collude, else as secret as the ratios
            shift, weight = np.append(shift, 0.0), np.append(coin * weight, 1 - coin)
        secret = 1.0 if hidden else rate
        for pair in ("up", "down", "middle"):
            parts = [Part(shift=shift, weight=weight, rounds=rounds, rate=secret, pair=pair if secret < 1 else "up")]
            lower, sampled = m["lower_model"], secret < 1
            if isinstance(lower, dict):
                drawn = 1.0 if lower["chosen"] is None else lower["chosen"] / lower["records"]
                sampled = sampled or drawn < 1
                parts.append(
                    part(1 / lower["noise_multiplier"], lower["steps"], rate=drawn, pair=pair if drawn < 1 else "up")
                )
            if pair == "up" or (sampled and (pair == "down" or (m["relation"] == "replace_one" and shift.size == 1))):
                yield World(name=f"{name}, {pair}", parts=tuple(parts), hidden=hidden)


def length_of(m: Spec) -> float:
    return 0.0 if m["smashed"]["kind"] == "categories" else distance(m["smashed"], m["relation"])


def _rate(m: Spec) -> float:
    """Sampling rate that stays secret: 1 if clients collude with the server, since they tell it who took part."""
    return 1.0 if m["mixing"].get("colluding") else taking_part(m)


def _told_rate(m: Spec) -> float:
    """Sampling rate of a draw that colluding clients make public; 1 if none collude."""
    return taking_part(m) if m["mixing"].get("colluding") else 1.0


def taking_part(m: Spec) -> float:
    taking = m["participation"]
    return float(taking["rate"] if taking["kind"] == "poisson" else taking.get("chosen", 1) / taking.get("clients", 1))


def drawn_once(m: Spec) -> bool:
    """Whether random ratios are drawn once for all rounds."""
    return ratio_of(m).get("drawn") == "once"


def ratio_of(m: Spec) -> Spec:
    return m["mixing"].get("ratio", {})


def scales_of(m: Spec) -> tuple[float, float]:
    """The label's squared distance over the variance of its noise; the variance of the noise on smashed data."""
    labels = 0.0 if m["labels"] is None else distance(m["labels"], m["relation"]) / m["noise"]["labels"] ** 2
    return labels, m["noise"]["smashed"] ** 2


def _shifts(m: Spec, side: Side, cells: int) -> Iterator[tuple[str, Array, Array, bool]]:
    """For each pair: name, [J] Gaussian shifts of a round, their probabilities, and whether the coins are secret."""
    (label, variance), mixing, releases = scales_of(m), m["mixing"], m["releases"]
    clip, relation, one = m["smashed"], m["relation"], np.ones(1)
    if mixing["kind"] == "none":
        yield "corners", np.sqrt(releases * (distance(clip, relation) / variance + label)) * one, one, False
        return
    if mixing["ratio"]["kind"] == "realized":
        yield "realized", _realized(m) * one, one, False
        if _one_patch(m) and m["rounds"] == 1:
            row = np.array([max(mixing["ratio"]["ratios"][0])])
            norm = np.array([sum(ratio**2 for ratio in mixing["ratio"]["ratios"][0])])
            count = np.array([_patches(float(row[0]), mixing["patches"])])
            yield "all in one patch", *_in_one_patch(m, count, own_shifts(m, row, norm) * label, one), False
        return
    seated = m["participation"]["kind"] == "without_replacement" and mixing["ratio"]["kind"] in ("fixed", "counts")
    law = points(mixing, side, cells, seated)
    own = own_shifts(m, law.ratio, law.norm)
    hidden = (seated or not mixing["ratio"].get("published", True)) and not mixing["colluding"]
    if hidden and seated and mixing["kind"] == "cutmix":
        yield "secret seats, along one line", _along(m, law, own * label), law.weight, True
        return
    if mixing["kind"] == "mixup":
        yield "corners", np.sqrt(releases * own * (distance(clip, relation) / variance + label)), law.weight, hidden
        return
    if hidden:
        return  # another client's data may or may not reveal the mask
    patches = mixing["patches"]
    whole = distance(clip, relation) / variance
    if _one_patch(m):
        yield "spread over patches", np.sqrt(releases * (whole * law.count / patches + own * label)), law.weight, False
        if not drawn_once(m):
            yield "all in one patch", *_in_one_patch(m, law.count, own * label, law.weight), False
        return
    if clip["kind"] == "clamp" and m["random_masks"] and clip["dimensions"] % patches:
        yield from _dealt(m, law, own, label, releases)
        return
    held = kept(clip, relation, patches, law.count) / variance
    yield "worst mask", np.sqrt(releases * (held + own * label)), law.weight, False


def _along(m: Spec, law: Points, label: Array) -> Array:
    """[J] Shifts if places in the mixture are secret, along the line on which all patches and the label move."""
    clip, patches, relation = m["smashed"], m["mixing"]["patches"], m["relation"]
    whole, variance = distance(clip, relation), m["noise"]["smashed"] ** 2
    held = whole * law.count / patches
    if clip["kind"] == "clamp":  # the other clients get the largest patches
        held = whole - kept(clip, relation, patches, patches - law.count)
    full, ratio = whole / variance, np.maximum(law.ratio, 1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        line = np.sqrt(label) / ratio * (law.ratio > 0)  # the label's shift at ratio 1, equal for all places
    most = float(line.max(initial=0.0))
    along = (held / variance + np.sqrt(label) * most) / np.sqrt(full + most**2)
    return np.sqrt(m["releases"]) * along


def _one_patch(m: Spec) -> bool:
    """Whether a pair of datasets may differ in a single patch, which uniform masks keep at random."""
    return m["mixing"]["kind"] == "cutmix" and m["random_masks"] and m["smashed"]["kind"] not in ("clamp", "patch_ball")


def _in_one_patch(m: Spec, count: Array, label: Array, weight: Array) -> tuple[Array, Array]:
    """Shifts and weights if the pair differs in a single patch, which each release's mask keeps at random."""
    releases, kept_one = m["releases"], count / m["mixing"]["patches"]
    whole = distance(m["smashed"], m["relation"]) / m["noise"]["smashed"] ** 2
    j = np.arange(releases + 1)
    chance = binom.pmf(j[:, None], releases, kept_one[None])
    return np.sqrt(j[:, None] * whole + releases * label[None]).ravel(), (chance * weight).ravel()


def own_shifts(m: Spec, ratio: Array, norm: Array) -> Array:
    """λ² over the relative variance of the mixture's noise: 1 (of the mixer), Σλ² (all clients) or λ² (one client)."""
    if m["noise"]["site"] == "mixer":
        return ratio**2
    if m["mixing"]["colluding"]:
        return np.where(ratio > 0, 1.0, 0.0)
    return np.divide(ratio**2, norm, out=np.zeros_like(ratio), where=norm > 0)


def _realized(m: Spec) -> float:
    """Shift over all rounds with recorded ratios, for the client that loses most."""
    ratio, mixing, (label, variance) = np.array(ratio_of(m)["ratios"]), m["mixing"], scales_of(m)
    own = own_shifts(m, ratio, np.broadcast_to((ratio**2).sum(1, keepdims=True), ratio.shape))
    if mixing["kind"] == "mixup":
        squared = own * (distance(m["smashed"], m["relation"]) / variance + label)
    else:
        counts = np.array([[_patches(one, mixing["patches"]) for one in row] for row in ratio])
        squared = kept(m["smashed"], m["relation"], mixing["patches"], counts) / variance + own * label
        if m["random_masks"] and m["smashed"]["kind"] not in ("clamp", "patch_ball"):
            squared = distance(m["smashed"], m["relation"]) / variance * counts / mixing["patches"] + own * label
    return float(sqrt(m["releases"] * squared.sum(0).max()))


def _dealt(m: Spec, law: Points, own: Array, label: float, releases: int) -> Iterator[tuple[str, Array, Array, bool]]:
    """Shifts under uniform public masks over patches of two sizes; a mask's number of larger ones is hypergeometric."""
    clip, patches = m["smashed"], m["mixing"]["patches"]
    floor, larger = divmod(clip["dimensions"], patches)
    each = distance(clip, m["relation"]) / clip["dimensions"] / m["noise"]["smashed"] ** 2
    shifts, weights = [], []
    for weight, count, share in zip(law.weight.tolist(), law.count.astype(int).tolist(), own.tolist(), strict=True):
        least = max(0, count - (patches - larger))
        fresh = releases == 1 and not drawn_once(m) and law.weight.size < 2000
        drawn = range(least, min(count, larger) + 1) if fresh else (least,)
        for j in drawn:
            chance = (
                comb(larger, j) * comb(patches - larger, count - j) / comb(patches, count) if releases == 1 else 1.0
            )
            shifts.append(sqrt(releases * (each * (floor * count + j) + share * label)))
            weights.append(weight * chance)
    yield "uniform masks", np.array(shifts), np.array(weights), False


def _laplace_worlds(m: Spec, rate: float) -> Iterator[World]:
    """Pairs under Laplace noise: all coordinates change or, in sampled rounds, all in one round, or one coordinate."""
    clip, relation, mixing, noise = m["smashed"], m["relation"], m["mixing"], m["noise"]
    ratio, count, patches = 1.0, 0, 1
    if mixing["kind"] != "none":
        law = points(mixing, "low", 2)
        ratio, count, patches = float(law.ratio[0]), int(law.count[0]), mixing.get("patches", 1)
    each, number = distance(clip, relation, 1), 1
    if clip["kind"] == "clamp":
        each, number = each / clip["dimensions"], clip["dimensions"]
        if mixing["kind"] == "cutmix":
            number = round(float(kept(clip, relation, patches, np.array([count]), 1)[0]) / each)
    elif clip["kind"] in ("one_hot", "box_labels"):
        number = round(each)
        each = 1.0
    keeps = ratio if mixing["kind"] == "mixup" else float(count > 0 or mixing["kind"] == "none")
    parts = [part(keeps * each / noise["smashed"], m["releases"] * number, law="laplace")] if number else []
    if m["labels"] is not None:
        total = distance(m["labels"], relation, 1)
        number = 1 if m["labels"]["kind"] == "known" else round(total)
        parts.append(part(ratio * total / number / noise["labels"], m["releases"] * number, law="laplace"))
    if rate == 1:
        yield World(name="corners", parts=tuple(replace(one, rounds=one.rounds * m["rounds"]) for one in parts))
        return
    yield World(name="corners, once", parts=tuple(parts), sampled_once=rate)
    if parts:
        yield World(name="one coordinate", parts=(replace(parts[0], rounds=m["rounds"], rate=rate),))
