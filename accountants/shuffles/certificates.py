"""Certificates of patch and batch shuffling: they count permutations (σ-privacy), which proves no DP."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, lgamma, log

from privkit.accountants import validate
from privkit.accountants.shuffles.permutations import (
    checked_multiplicities,
    intersection_odds,
    log10_distinct_orderings,
    log10_orders_alike,
    log10_target_share,
    own_image_share,
    shape,
)
from privkit.accountants.shuffles.variants import (
    READ_AS,
    Variant,
    equally_likely,
    log10_best_guess,
    log10_distinct_outcomes,
)
from privkit.shared.certificate import Certificate

REORDERING_NOT_DP = "this is no differential privacy: the tokens are released as they are (ε = ∞ for every δ < 1)"

NO_POSTERIOR = (
    "orders are equally likely before the release, but not given the patches: natural patches fit together, so a "
    "solver may still recover the order"
)

_UNEVEN = {
    "final_shuffle": "before the release, only the orders inside an image are equally likely, and given the patches "
    "not even these: natural patches fit together, so a solver may still recover the order",
    "kept_in_place": "the original order is the most likely one even before one looks at the patches; natural patches "
    "also fit together, so a solver may still recover the order",
}
"""Variant -> what replaces `NO_POSTERIOR` if outcomes are not equally likely."""

_ONE_ORDER = (
    "nothing is claimed: an image has a single token, or all its tokens are equal, so it has only one order; use more "
    "tokens per image (images whose side is not a prime number); no differential privacy"
)

_FEW_ORDERS = (
    "nothing is claimed: so many tokens of a batch are equal that its order is no secret; no differential privacy"
)

_UNMOVED = "nothing is claimed: every patch stays where it is; no differential privacy"

_FITTING = "natural patches fit together, so a solver may still recover the order"

_TOGETHER = (
    "two patches of one image are in one output more often than patches of two images, and every round shows this again"
)

_ONCE = "exchanging equal patches counts as no change of order; other records may have more equal patches"


def patch_shuffle(*, tokens: int, multiplicities: Sequence[int] | None = None) -> Certificate:
    """Certificate of patch shuffling: all orders of an image's patches are equally likely given the set of patches.

    This is no differential privacy, since the patches themselves are released. If an image has only one order, the
    certificate claims nothing.

    An image has N ≥ 1 patches (`tokens`) and N! orders. If patches repeat, `multiplicities` says how often each
    different patch occurs; these numbers sum to N. None means that all patches differ. `log10_permutations` among the
    quantities is log10 of the number of orders.

    Source: Yao et al., patch shuffling, Definition 2 and Proposition 1.

    >>> patch_shuffle(tokens=16).quantities["log10_permutations"] > 13
    True
    >>> patch_shuffle(tokens=16, multiplicities=[16]).quantities["log10_permutations"]
    0.0
    """
    tokens = validate.whole("tokens", tokens)
    digits, orderings = lgamma(tokens + 1) / log(10), "orderings per image"
    count = f"{tokens}!"
    if multiplicities is not None:
        _must_sum_to("tokens", tokens, multiplicities)
        digits = log10_distinct_orderings(multiplicities)
        if max(multiplicities) > 1:
            count, orderings = f"{tokens}!/∏m!", "orderings of an image in which patches occur m times"
    some = digits > 0
    return Certificate(
        kind="permutation_count" if some else "nothing",
        statement=f"σ-privacy over {count} = {ten_to(digits)} {orderings}; {REORDERING_NOT_DP}" if some else _ONE_ORDER,
        quantities={"log10_permutations": digits, "log10_target_share": -digits},
        assumptions=(
            "the permutation is uniform, fresh for every image and round, and unknown to the server",
            "tokens carry no position embedding",
            "no two patches of the image are equal: m equal ones divide the count by m!"
            if multiplicities is None
            else _ONCE,
            NO_POSTERIOR,
        ),
        source="Yao et al., patch shuffling, Def. 2, Prop. 1",
    )


def batch_shuffle(
    *,
    tokens: int,
    batch: int,
    kept: int,
    variant: Variant = "final_shuffle",
    multiplicities: Sequence[int] | None = None,
) -> Certificate:
    """Certificate of batch shuffling: the paper's numbers of permutations (Eq. 7 and 8), and their meaning.

    A batch has B ≥ 2 images of N ≥ 1 patches (`tokens`). K = `kept` patches, 0 to N, stay with their image; the others
    are dealt out over the batch. `variant` says where the patches are put (see `variants`). Quantities of the
    certificate: `log10_permutations` is −log10 of the best guess's probability, which is Eq. 7 if patches are not kept
    in place. `log10_target_share` is log10 of the probability that a shuffled image equals its original, and
    `log10_outcomes` that of the number of distinct outcomes.

    `multiplicities` says how often each different patch of the batch occurs; these numbers m sum to N·B. With equal
    patches, up to ∏m! orders give the same batch, so a guess is right, and an image equals its original, up to ∏m!
    times as often. `log10_target_share` is raised accordingly, `log10_permutations` is reduced, and so is
    `log10_outcomes`, which is then a lower bound. None means that all patches differ. If no patch can move, the
    certificate claims nothing.

    Source: Yao et al., patch shuffling, Eq. 7 and 8; a union bound for equal patches. Proposition 2 of the paper
    (σ-privacy over N·B patches) is false for K ≥ 1 and is not claimed here.

    >>> round(batch_shuffle(tokens=196, batch=50, kept=78).quantities["log10_permutations"], 3)
    28239.734
    >>> batch_shuffle(tokens=4, batch=2, kept=0, multiplicities=[5, 1, 1, 1]).quantities["log10_permutations"] < 3
    True
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    if batch < 2:
        raise ValueError("batch must be at least 2: a batch of one image mixes nothing (use patch_shuffle)")
    worth = log10_best_guess(tokens, batch, kept, variant=variant)
    share, published = log10_target_share(tokens, batch, kept), (" (Eq. 7)", " (Eq. 8)")
    if variant == "kept_in_place":  # the order inside the image is known for the kept patches
        share += (lgamma(tokens + 1) - lgamma(tokens - kept + 1)) / log(10)
        published = "", ""
    quantities = {
        "log10_permutations": worth,
        "log10_target_permutations": worth + share,
        "log10_target_share": share,
        "own_image_share": own_image_share(tokens, batch, kept),
    }
    if tokens > 1:
        quantities["same_image_meets"], quantities["other_image_meets"] = intersection_odds(tokens, batch, kept)
    try:
        outcomes = log10_distinct_outcomes(tokens, batch, kept, variant=variant)
        quantities["log10_outcomes"] = outcomes
        distinct = f"{ten_to(outcomes)} outcomes are distinct"
    except ValueError:  # too many to count: the certificate states a lower bound instead
        distinct = f"at least {ten_to(worth)} outcomes are distinct"
    even = equally_likely(tokens, batch, kept, variant=variant)
    permutations = (
        f"{ten_to(worth)} permutations of the batch{published[0]}, {ten_to(worth + share)} of them hold a given "
        f"image in its order{published[1]}"
    )
    statement, once = f"{permutations}; {REORDERING_NOT_DP}", "no two patches of the batch are equal"
    guessed = f"{distinct}, {'' if even else 'but not '}equally likely: the best guess is right once in {ten_to(worth)}"
    posterior = NO_POSTERIOR if even else _UNEVEN[variant]
    if multiplicities is not None:
        _must_sum_to("tokens · batch", tokens * batch, multiplicities)
        alike, once = log10_orders_alike(multiplicities), _ONCE
        different = quantities["log10_permutations"] = max(0.0, worth - alike)
        if alike > 0:
            quantities["log10_target_share"] = min(0.0, share + alike)
            quantities["log10_target_permutations"] = different + quantities["log10_target_share"]
            if "log10_outcomes" in quantities:
                quantities["log10_outcomes"] = max(0.0, quantities["log10_outcomes"] - alike)
            guessed = f"the best guess of what the batch looks like is right at most once in {ten_to(different)}"
            posterior = _FITTING
            statement = (
                f"at least {ten_to(different)} orders of the batch that look different: there are {permutations}, and "
                f"up to {ten_to(alike, up=True)} give the same release, as patches are equal; {REORDERING_NOT_DP}"
            )
    nothing = _UNMOVED if worth == 0 else _FEW_ORDERS if quantities["log10_permutations"] == 0 else ""
    return Certificate(
        kind="nothing" if nothing else "permutation_count",
        statement=nothing or statement,
        quantities=quantities,
        assumptions=(
            "the permutations are uniform, fresh for every batch, and unknown to the server",
            "tokens carry no position embedding",
            once,
            READ_AS[variant],
            guessed,
            "Proposition 2, σ-privacy over all patches of the batch, is false as soon as a patch is kept",
            *((_TOGETHER,) if tokens > 1 and kept > 0 else ()),
            *((posterior,) if worth > 0 else ()),
        ),
        source="Yao et al., patch shuffling, Eq. 7, Eq. 8, Algorithm 2",
    )


def _must_sum_to(what: str, total: int, multiplicities: Sequence[int]) -> None:
    if (found := sum(checked_multiplicities(multiplicities))) != total:
        raise ValueError(f"multiplicities must sum to {what} ({total}), got {found}")


def ten_to(log10: float, *, up: bool = False) -> str:
    """A count as a power of ten, whose exponent is rounded down (or `up`) to one decimal, so that a shuffle does not
    seem to hide more than it does."""
    tenths = ceil(10 * log10 - 1e-8) if up else floor(10 * log10 + 1e-8)  # 1e-8: the rounding of sums of logarithms
    return f"10^{max(0, tenths) / 10:.1f}"
