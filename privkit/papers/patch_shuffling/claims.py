"""Patch shuffling as published: Proposition 2, which holds in special cases only, and the ε of a Gaussian baseline."""

from __future__ import annotations

from privkit.accountants import validate
from privkit.accountants.shuffles import certificates, permutations
from privkit.papers import paper
from privkit.papers.values import printed
from privkit.shared.certificate import Certificate


def proposition_2(*, tokens: int, batch: int, kept: int) -> Certificate:
    """The claim of Proposition 2 about batch shuffling, as a certificate: all orders are equally likely (σ-privacy).

    The claim covers all N·B patches of B = `batch` images with N = `tokens` patches each; `kept` patches of each image
    stay with it. The numbers of permutations equal those of `certificates.batch_shuffle`. The proposition holds only if
    no patch stays with its image, or if the batch is one image.

    Source: the patch shuffling paper, Proposition 2, Eqs. 7 and 8.
    """
    total = permutations.log10_total_permutations(tokens, batch, kept)
    share = permutations.log10_target_share(tokens, batch, kept)
    holds = kept == 0 or batch == 1
    return Certificate(
        kind="permutation_count",
        statement=(
            f"Proposition 2 as published: σ-privacy over {tokens}·{batch} patches, {certificates.ten_to(total)} "
            f"permutations (Eq. 7); {certificates.REORDERING_NOT_DP}"
        ),
        method="counts as published",
        sound=holds,
        objection=""
        if holds
        else "kept patches stay with their image, so an output is possible under one order of the batch's patches and "
        "impossible under another",
        quantities={
            "log10_permutations": total,
            "log10_target_permutations": total + share,
            "log10_target_share": share,
        },
        assumptions=(
            "the permutations are uniform, fresh for every batch, and unknown to the server",
            certificates.NO_POSTERIOR,
        ),
        source=f"{paper('patch_shuffling').citation}, Proposition 2, Eqs. 7 and 8",
    )


def dp_baseline(*, delta: float = 1e-5) -> Certificate:
    """The paper's claim about its baseline "DP", as a certificate: ε ≈ 6.68 with Gaussian noise at σ = 1.

    The paper states no δ. `quantities["mu"]` is the ratio of sensitivity to noise that would give this ε at `delta`.

    Source: the patch shuffling paper, §V ("yields ε ≈ 6.68").
    """
    from privkit.accountants.bounds import gaussian

    validate.delta(delta)
    epsilon = printed("patch_shuffling", "§V.A.2", "DP", "ε")
    return Certificate(
        kind="differential_privacy",
        statement=f"as printed: ε ≈ {epsilon:g}, at no stated δ",
        epsilon=epsilon,
        delta=None,
        method="number as printed",
        sound=False,
        objection=(f"ε ≈ {epsilon:g} could not be matched: it is printed without δ, sensitivity or number of releases"),
        quantities={"mu": gaussian.mu_for(epsilon, delta), "delta_of_mu": float(delta)},
        source=f"{paper('patch_shuffling').citation}, §V",
    )
