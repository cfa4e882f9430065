"""Upper bounds on the entropy of a patch order, given an attack's success; `distinguish` shows that shuffling has ε =
∞.

Every function with an argument `success` or `accuracy` gives an upper bound on the remaining entropy in bits, in the
shape of this argument. A failed attack proves nothing: for a success at or below chance, the result is log2 N!, the
entropy of a uniform order.

N ≥ 1 is the number of patches (`tokens`). `multiplicities` says how often each different patch occurs; None means that
all patches differ. Successes and accuracies lie in [0, 1], confidences in (0, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lgamma, log, log1p, log2
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, entr, gammaln, logsumexp, rel_entr

from privkit.accountants import validate
from privkit.accountants.search import narrowed
from privkit.accountants.shuffles.permutations import log10_distinct_orderings
from privkit.shared.array import Array
from privkit.shared.certificate import Certificate


def orderings_bits(tokens: int, multiplicities: Sequence[int] | None = None) -> float:
    """The entropy in bits of a uniform order of N = `tokens` patches: log2 N!, or log2(N!/∏m!) if different patches
    occur m times each (`multiplicities`).
    """
    tokens = validate.whole("tokens", tokens)
    if multiplicities is None:
        return lgamma(tokens + 1) / log(2)
    bits = log10_distinct_orderings(multiplicities) * log2(10)
    if sum(multiplicities) != tokens:
        raise ValueError(f"multiplicities must sum to tokens ({tokens}), got {sum(multiplicities)}")
    return bits


def fano_bits(tokens: int, success: ArrayLike, multiplicities: Sequence[int] | None = None) -> Any:
    """The largest entropy H(π|Z), in bits, of an image's patch order π given the release Z, if an attack finds π with
    probability at least p = `success`.

    The result is h(p) + (1−p)·log2(M−1) with the binary entropy h and the number M of orders: N! for N patches, or
    N!/∏m! if different patches occur m times each. (Orders that give the same image count as one.)

    Source: Fano's inequality. The bound is attained if the guess has probability p and all other orders are equally
    likely.

    >>> round(fano_bits(9, 0.5), 4)
    10.2346
    """
    p, most = _share("success", success), orderings_bits(tokens, multiplicities)
    others = most + np.log1p(-(0.5**most)) / log(2) if most > 0 else 0.0  # log2(M − 1); M may exceed a float
    bits = (entr(p) + entr(1 - p)) / log(2) + (1 - p) * others
    return _like(success, np.where(_log2(p) <= -most, most, np.clip(bits, 0, most)))


def min_entropy_bits(tokens: int, success: ArrayLike, multiplicities: Sequence[int] | None = None) -> Any:
    """The largest min-entropy H_∞(π|Z), in bits, of an image's patch order π given the release Z, if an attack finds
    the whole order with probability at least p = `success`: −log2 p.

    Source: by definition: the best guess succeeds with probability 2^−H_∞, and no attack is better than the best guess.
    """
    most = orderings_bits(tokens, multiplicities)
    return _like(success, np.clip(-_log2(_share("success", success)), 0, most))


def patch_entropy_bits(tokens: int, accuracy: ArrayLike) -> Any:
    """The largest entropy H(π|Z), in bits, of the order π of N patches given the release Z, if an attack puts at least
    the share a = `accuracy` of all patches in their place. The bound is tight.

    The correct places of a guess are the fixed points of a random permutation. Exactly C(N,d)·D_d permutations move d
    patches and fix N − d; D_d is the number of permutations of d elements without a fixed point. By duality, the
    largest entropy with a mean of aN fixed points is min_θ≥0 [ln Σ_d C(N,d)·D_d·e^{−θd} + θ(1−a)N]. Every θ gives a
    bound, so the minimum may be inexact.

    N is at most 10⁶, all patches must differ, and the attack must answer with an order that has each patch once.

    Source: derived (maximum entropy). A law ∝ e^{−θd} attains the bound.

    >>> round(patch_entropy_bits(196, 0.9), 4)
    151.3755
    """
    n = validate.whole("tokens", tokens, most=1_000_000)
    a, most = _share("accuracy", accuracy), orderings_bits(n)
    wrong, target = np.arange(n + 1.0), (n * (1 - a.ravel()))[:, None]
    ln_count = _ln_rencontres(n)
    low, high = np.zeros_like(target), np.full_like(target, 60 + log(n))  # at the end, a mean below e^−100 is wrong
    for _ in range(64):
        middle = (low + high) / 2
        weight = ln_count - middle * wrong
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        too_many = (weight @ wrong)[:, None] > target * weight.sum(axis=1, keepdims=True)
        low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
    bits = (logsumexp(ln_count - high * wrong, axis=1) + (high * target)[:, 0]) / log(2)
    bits = np.where(a == 1, 0.0, np.where(a * n <= 1, most, np.clip(bits.reshape(a.shape), 0, most)))
    return _like(accuracy, bits)


def per_patch_fano_bits(tokens: int, accuracy: ArrayLike) -> Any:
    """Fano's bound for each patch's place, summed over N patches, in bits: N·[h(a) + (1−a)·log2(N−1)] with a =
    `accuracy` and the binary entropy h. It serves for comparison, and is never below `patch_entropy_bits`.

    Source: Fano's inequality. The sum ignores that no two patches share a place.
    """
    a, most = _share("accuracy", accuracy), orderings_bits(tokens)
    others = log2(tokens - 1) if tokens > 1 else 0.0
    bits = tokens * ((entr(a) + entr(1 - a)) / log(2) + (1 - a) * others)
    return _like(accuracy, np.where(a * tokens <= 1, most, np.clip(bits, 0, most)))


def success_lower_limit(hits: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided lower confidence limit of a success probability, from `hits` successes in `trials` ≥ 1 trials.

    Trials must be independent: count whole orders, or *one* patch of each image. The limit is 0 without a success.

    Source: Clopper and Pearson 1934.

    >>> round(success_lower_limit(90, 100), 4), success_lower_limit(0, 100)
    (0.8363, 0.0)
    """
    trials = validate.whole("trials", trials)
    hits = validate.whole("hits", hits, least=0, most=trials)
    confidence = validate.real("confidence", confidence, above=0, below=1)
    return float(betaincinv(hits, trials - hits + 1, 1 - confidence)) if hits else 0.0


def accuracy_lower_limit(accuracy: float, images: int, confidence: float = 0.95) -> float:
    """One-sided lower confidence limit of a mean patch accuracy over images. Patches of one image may be dependent.

    The limit is the smallest a in [0, accuracy] with images·KL(accuracy ‖ a) ≤ ln(1/(1 − confidence)), where KL is the
    relative entropy of two coins.

    Source: Hoeffding 1963, Theorem 1 (Eq. 2.1), inverted.

    >>> round(accuracy_lower_limit(0.9, 100), 4)
    0.8112
    """
    mean = validate.real("accuracy", accuracy, least=0, most=1)
    images = validate.whole("images", images)
    room = -log1p(-validate.real("confidence", confidence, above=0, below=1)) / images
    return narrowed(lambda a: bool(rel_entr(mean, a) + rel_entr(1 - mean, 1 - a) > room), 0.0, mean)[0]


def entropy_after_attack(
    *,
    tokens: int,
    hits: int,
    trials: int,
    confidence: float = 0.95,
    counted: Literal["orders", "patches"] = "orders",
    multiplicities: Sequence[int] | None = None,
) -> Certificate:
    """Certificate of the largest entropy of a patch order that an attack's measured success allows.

    It proves no privacy, since another attack may succeed more often.

    Args:
        tokens: number of patches of an image.
        hits, trials: number of successes; number ≥ 1 of independent trials.
        confidence: confidence of the Clopper–Pearson lower limit on the success probability, in (0, 1).
        counted: "orders": a trial is an image, and a success finds its whole order. "patches": a trial is one patch of
            each image, and a success finds its place.
        multiplicities: how often each different patch occurs; None if all differ.

    The quantities are `success_at_least`, `entropy_bits_at_most` (by Fano's inequality, or the tight bound for
    patches), `min_entropy_bits_at_most` ("orders") or `per_patch_fano_bits` ("patches"), and `orderings_bits`.

    Source: `fano_bits`, `min_entropy_bits`, `patch_entropy_bits`, `success_lower_limit`.

    >>> found = entropy_after_attack(tokens=196, hits=950, trials=1000, counted="patches")
    >>> round(found.quantities["success_at_least"], 3), round(found.quantities["entropy_bits_at_most"], 1)
    (0.937, 96.6)
    """
    validate.choice("counted", counted, ("orders", "patches"))
    if counted == "patches" and multiplicities is not None:
        raise ValueError("multiplicities need counted='orders': if patches are equal, a place identifies no patch")
    p, most = success_lower_limit(hits, trials, confidence), orderings_bits(tokens, multiplicities)
    if counted == "orders":
        bits = fano_bits(tokens, p, multiplicities)
        second = {"min_entropy_bits_at_most": min_entropy_bits(tokens, p, multiplicities)}
    else:
        bits = patch_entropy_bits(tokens, p)
        second = {"per_patch_fano_bits": per_patch_fano_bits(tokens, p)}
    verdict = (
        f"the order keeps at most {bits:.4g} of {most:.4g} bits at confidence {confidence:g}"
        if bits < most
        else f"success is not shown to exceed chance, so the order may keep all {most:.4g} bits: this proves nothing"
    )
    return Certificate(
        kind="nothing",
        statement=f"{verdict}; an upper bound for this attack, no guarantee against a better one",
        method="Fano, exact success" if counted == "orders" else "maximum entropy with rencontres numbers",
        quantities={"success_at_least": p, "entropy_bits_at_most": bits, "orderings_bits": most} | second,
        assumptions=(
            "trials are independent: whole orders, or one patch drawn from each image",
            "the attack answers with an order, each patch once, and the true order is uniform before the release",
        ),
        source="Fano's inequality; Clopper and Pearson 1934; maximum entropy with rencontres numbers (derived)",
    )


def distinguish(
    released_tokens: ArrayLike, candidate_a: ArrayLike, candidate_b: ArrayLike
) -> Literal["a", "b", "both", "neither"]:
    """Decide which of two candidate images was released after shuffling: "a", "b", "both" or "neither". Sorted patches
    are compared, since a shuffle does not change them.

    Each argument holds finite numbers [..., D]: patches of D numbers, along all leading axes. "both" means that one
    candidate is a rearrangement of the other. If the candidates differ in one patch, the answer is always right; (ε,
    δ)-DP allows this only for δ = 1.

    Source: derived. This attack shows that σ-privacy is no differential privacy.

    >>> rng = np.random.default_rng(0)
    >>> a = rng.normal(size=(16, 8))
    >>> b = np.concatenate([a[:15], rng.normal(size=(1, 8))])  # one patch differs
    >>> distinguish(rng.permutation(a), a, b), distinguish(rng.permutation(b), a, b)
    ('a', 'b')
    """
    released = _sorted_rows(_patches("released_tokens", released_tokens))
    is_a, is_b = (
        np.array_equal(released, _sorted_rows(_patches(name, candidate)))
        for name, candidate in (("candidate_a", candidate_a), ("candidate_b", candidate_b))
    )
    if is_a and is_b:
        return "both"
    return "a" if is_a else "b" if is_b else "neither"


def _ln_rencontres(n: int) -> Array:
    """ln of C(n, d)·D_d for d = 0..n, the number of permutations that move exactly d of n elements."""
    d = np.arange(n + 1)
    shares = np.cumsum((-1.0) ** d * np.exp(-gammaln(d + 1.0)))  # D_d / d!; the series is alternating and short
    shares[1:2] = 0
    with np.errstate(divide="ignore"):
        return np.asarray(gammaln(n + 1.0) - gammaln(n - d + 1.0) + np.log(shares))


def _share(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name} must hold numbers in [0, 1], got {values!r}")
    return array.astype(np.float64)


def _log2(p: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log2(p)


def _like(asked: ArrayLike, bits: Array) -> Any:
    return float(bits) if np.ndim(asked) == 0 else bits


def _patches(name: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.ndim < 2 or array.size == 0 or not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must hold finite numbers [..., D] with at least one patch, got shape {array.shape}")
    return array.reshape(-1, array.shape[-1])


def _sorted_rows(patches: NDArray[Any]) -> NDArray[Any]:
    return patches[np.lexsort(patches.T)]
