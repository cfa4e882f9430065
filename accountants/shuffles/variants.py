"""Three variants of batch shuffling, and how many outcomes each has.

"algorithm_2": as in the paper's Algorithm 2, the patches that stay with their image come first, and the dealt patches
after them. "final_shuffle": in addition, every image is shuffled, as the paper's text says. "kept_in_place": patches
that stay keep their positions. All patches differ. A batch has B images of N patches; K patches of each image stay with
it (`kept`), and N′ = N − K are dealt out over the batch.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, exp, factorial, gcd, isqrt, lgamma, log, log10
from typing import Literal, get_args

from privkit.accountants import validate
from privkit.accountants.shuffles.permutations import ln_choose, log10_total_permutations, shape

Variant = Literal["algorithm_2", "final_shuffle", "kept_in_place"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_LOG_WORK = 300_000  # largest B·N′² for which outcomes are counted exactly if integration fails, within seconds
_MOST_TOKENS = 4096  # largest number of tokens per image whose outcomes are counted
READ_AS: dict[Variant, str] = {
    "algorithm_2": "as written, the first K tokens of an output are known to be its own image's; permutations inside "
    "an image are σ-private",
    "final_shuffle": "a final shuffle inside each image, as the text adds it; permutations inside an image are "
    "σ-private; Eq. 7 counts the outcomes without that shuffle",
    "kept_in_place": "kept patches stay where they are, so permutations inside an image are not σ-private; Eq. 7 does "
    "not apply",
}
"""Variant -> a sentence on what the variant means for the guarantee."""


def log10_distinct_outcomes(tokens: int, batch: int, kept: int, *, variant: Variant) -> float:
    """log10 of the number of distinct outcomes of a variant of batch shuffling, up to a relative error of about 1e-12.

    A batch has B images of N patches; K patches of each image stay with it. Under "algorithm_2" the number is Eq. 7
    (`log10_total_permutations`). The other two variants can release every arrangement in which each output holds at
    least K patches of its own image (for "kept_in_place": at their own place).

    1. Let r_m be the number of ways to put m patches of an image into its own output: C(N,m)²·m!, or C(N,m) if they
       keep their place. Inclusion and exclusion with P(x) = Σ_{m≥K} (−1)^{m−K} C(m−1,K−1) r_m x^m gives Σ_s
       [x^s]P(x)^B·(N·B − s)! arrangements, where [x^s] takes the coefficient of x^s. For B = 2 and a final shuffle the
       number is (N!)²·Σ_{t≥K} C(N,t)².
    2. Large batches are summed as ∫ e^{−y}·(y^N·P(1/y))^B dy around the integrand's peak. The polynomial is computed in
       integers of enough bits for its alternating terms. Without a clear peak, the exact integer is computed.

    Raises:
        ValueError: also, if these sums are needed, for N > 4096, and for a few shapes (B = 3, N in the hundreds) for
            which both ways are slow.

    Source: derived by inclusion and exclusion; the tests compare it with the exact integers and with enumeration.

    >>> round(log10_distinct_outcomes(196, 50, 78, variant="final_shuffle"), 6)
    30987.704122
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    if validate.choice("variant", variant, VARIANTS) == "algorithm_2":
        return log10_total_permutations(tokens, batch, kept)
    if (value := _log10_outcomes(tokens, batch, kept, variant)) is None:
        raise ValueError(
            f"the outcomes of tokens={tokens}, batch={batch}, kept={kept} are neither few enough to count nor "
            "concentrated enough to integrate; log10_best_guess bounds their number from below"
        )
    return value


def equally_likely(tokens: int, batch: int, kept: int, *, variant: Variant) -> bool:
    """Whether all outcomes of a variant of batch shuffling are equally likely.

    Under "algorithm_2" this is always true. In the other two variants it is true if no patch or every patch stays with
    its image (K = 0 or K = N). It is also true for a batch of one image (B = 1) under "final_shuffle", and if only one
    patch is dealt out (B·(N − K) = 1) under "kept_in_place".

    Otherwise, under "final_shuffle", let output j (a shuffled image) hold t_j patches of its own image, of which K had
    to stay. The outcome's probability is proportional to ∏_j C(t_j, K). Under "kept_in_place", t_j counts patches at
    their own place, so the original order is the most likely outcome.

    Source: derived; the tests compare it with enumeration.
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    if validate.choice("variant", variant, VARIANTS) == "algorithm_2" or kept in (0, tokens):
        return True
    return batch == 1 if variant == "final_shuffle" else batch * (tokens - kept) == 1


def log10_best_guess(tokens: int, batch: int, kept: int, *, variant: Variant) -> float:
    """−log10 of the probability of the most likely outcome of batch shuffling. If this is r, an attack guesses no
    better than among 10^r equally likely outcomes.

    Under "algorithm_2" and "final_shuffle" it is Eq. 7 (`log10_total_permutations`): the final shuffle adds outcomes,
    but the best guess stays as likely. With "kept_in_place" it is only log10 (B·N′)!, where N′ patches of each of B
    images are dealt.

    Source: derived from the probabilities in `equally_likely`; the tests compare it with enumeration.
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    if validate.choice("variant", variant, VARIANTS) == "kept_in_place":
        return lgamma(batch * (tokens - kept) + 1) / log(10)
    return log10_total_permutations(tokens, batch, kept)


def _ratios(tokens: int, kept: int, variant: Variant) -> list[tuple[int, int]]:
    """The ratios −w_{m+1}/w_m of P(x)'s weights, m = K..N−1, as pairs (numerator, denominator); K ≥ 1."""
    places = 2 if variant == "final_shuffle" else 1
    return [((tokens - m) ** places * m, (m + 1) * (m - kept + 1)) for m in range(kept, tokens)]


def _count(tokens: int, batch: int, kept: int, variant: Variant) -> int:
    """Compute Σ_s [x^s] P(x)^B · (N·B − s)! exactly; the letters are those of `log10_distinct_outcomes`."""
    if kept == 0:
        return factorial(tokens * batch)
    moved, degree = tokens - kept, batch * (tokens - kept)
    r = [comb(tokens, kept) * (comb(tokens, kept) * factorial(kept) if variant == "final_shuffle" else 1)]
    for up, down in _ratios(tokens, kept, variant):
        r.append(-r[-1] * up // down)  # a whole number, by its definition
    common = gcd(*r)  # at least K! with a final shuffle; division by it makes the numbers below much shorter
    r = [weight // common for weight in r]
    q = [r[0] ** batch]  # coefficients of the power: Q = R^B solves R·Q′ = B·R′·Q, term by term
    for j in range(1, degree + 1):
        total = sum(((batch + 1) * i - j) * r[i] * q[j - i] for i in range(1, min(j, moved) + 1))
        q.append(total // (j * r[0]))
    count = q[0]
    for j in range(1, degree + 1):  # Σ_j q_j·(degree − j)!, by Horner
        count = count * (degree - j + 1) + q[j]
    return int(count * common**batch)


@lru_cache(maxsize=256)
def _log10_outcomes(tokens: int, batch: int, kept: int, variant: Variant) -> float | None:
    """log10 of the number of outcomes of "final_shuffle" or "kept_in_place"; None if it cannot be computed quickly."""
    moved, ordered = tokens - kept, lgamma(tokens + 1) / log(10)
    if kept == 0:
        return lgamma(tokens * batch + 1) / log(10)
    if moved == 0:
        return batch * ordered if variant == "final_shuffle" else 0.0
    if tokens > _MOST_TOKENS:
        return None
    if batch * moved > 200:  # for smaller numbers the trapezoidal rule is too coarse, and counting is quick
        if batch == 2 and variant == "final_shuffle":
            return log10(sum(comb(tokens, t) ** 2 for t in range(kept, tokens + 1))) + 2 * ordered
        if (integral := _ln_integral(_ratios(tokens, kept, variant), batch)) is not None:
            first = ln_choose(tokens, kept)
            if variant == "final_shuffle":
                first += lgamma(tokens + 1) - lgamma(moved + 1)
            return (integral + batch * first) / log(10)
        if batch * moved**2 > _LOG_WORK:
            return None
    return log10(_count(tokens, batch, kept, variant))


def _ln_integral(ratios: list[tuple[int, int]], batch: int) -> float | None:
    """ln ∫_0^∞ e^{−y} G(y)^B dy, G(y) = y^n·(1 − ratio_1/y + ratio_1·ratio_2/y² − …); None without a clear peak."""
    moved, negligible = len(ratios), 38.0
    degree = batch * moved

    def height(y: int) -> tuple[float, bool]:
        size, positive = _ln_series(ratios, y)
        return batch * size + degree * log(y) - y, positive

    step = max(1, isqrt(degree) // 4)  # the peak is about √degree wide: the trapezoidal rule is exact to rounding
    y = (degree + isqrt(degree**2 + 4 * batch * ratios[0][0] // ratios[0][1])) // 2  # the peak, to first order
    for side in (step, -step):
        while y + side > 0 and height(y + side)[0] > height(y)[0]:
            y += side
    top, total = height(y)[0], 1.0
    for side in (step, -step):
        x = y + side
        while x > 0 and (here := height(x))[0] > top - negligible:
            if not here[1]:
                return None
            total += exp(here[0] - top)
            x += side
    rest = [height(x * i // 64 + 1)[0] for i in range(64)]  # left of the peak, where G changes its sign
    return top + log(total * step) if x > 0 and max(rest) < top - negligible else None


def _ln_series(ratios: list[tuple[int, int]], y: int) -> tuple[float, bool]:
    """ln |1 − ratio_1/y + ratio_1·ratio_2/y² − …| and its sign, with as many bits as the cancellation requires."""
    bits = 256
    while True:
        term = total = largest = 1 << bits
        for up, down in ratios:
            term = -term * up // (down * y)
            total, largest = total + term, max(largest, abs(term))
        error = len(ratios) ** 2 * (1 + (largest >> bits))  # every step rounds by at most 1, and later steps magnify it
        if abs(total) >> 50 > error or bits > 1 << 15:
            return log(abs(total) + error) - bits * log(2), total > error
        bits *= 2
