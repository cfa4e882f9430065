"""Compares claims of patch shuffling with our results: its counts, Proposition 2, its ε and its image errors."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10

from privkit.accountants.shuffles import permutations
from privkit.papers.contract import ComparedClaim
from privkit.papers.patch_shuffling.claims import dp_baseline, proposition_2
from privkit.papers.values import PrintedValue, printed, printed_values

_TOKENS, _BATCH, _KEEP = 196, 50, 0.4
_CIFAR10_STDS = (0.2023, 0.1994, 0.2010)  # standard deviations of CIFAR-10's channels, by which its images are divided


def comparisons() -> Iterator[ComparedClaim]:
    """Yield the paper's claims, each with our result: numbers of orders, Proposition 2, the printed ε, image errors."""
    kept = permutations.kept_tokens(_TOKENS, _KEEP)
    share = permutations.log10_target_share(_TOKENS, _BATCH, kept)
    factorial = permutations.log10_total_permutations(_TOKENS, 1, 0)
    yield ComparedClaim(
        claim="Eq. 8: under batch shuffling, one image's order has a chance far below 1/N!",
        published=-factorial,
        ours=share,
        quantity=f"log10 of 1/N! (paper) and of Eq. 8 over Eq. 7 (ours), at N = {_TOKENS}, B = {_BATCH}, k = {_KEEP}",
        verdict="holds" if share < -factorial else "fails",
        why="the number of orders gives no differential privacy: the patches are sent unchanged",
    )
    claimed = proposition_2(tokens=_TOKENS, batch=_BATCH, kept=kept)
    yield ComparedClaim(
        claim="Proposition 2: σ-privacy over all patches of the batch",
        published=claimed.quantities["log10_permutations"],
        quantity="log10 of Eq. 7",
        verdict="holds" if claimed.sound else "fails",
        why=claimed.objection,
    )
    baseline = dp_baseline()
    yield ComparedClaim(
        claim="§V.A: Gaussian noise of standard deviation 1 yields ε ≈ 6.68",
        published=baseline.epsilon,
        quantity="ε, no δ given",
        verdict="holds" if baseline.sound else "unproven",
        why=baseline.objection,
    )
    yield from _image_errors()


def _image_errors() -> Iterator[ComparedClaim]:
    pairs = list(_pairs())
    apart = [f"{mse.table} {mse.row}" for mse, psnr in pairs if not _agree(mse, psnr)]
    yield ComparedClaim(
        claim="Tables I to IX: each PSNR follows from the MSE beside it, with peak 1",
        published=float(len(pairs)),
        ours=float(len(pairs) - len(apart)),
        quantity="rows whose PSNR is within .5 dB of −10·log10(MSE)",
        verdict="differs" if apart else "reproduced",
        why=f"these rows differ: {', '.join(apart)}" if apart else "every row agrees",
        basis="print",
    )
    mse = printed("patch_shuffling", "Table II", "SL", "MSE")
    scaled = mse * sum(std**2 for std in _CIFAR10_STDS) / 3
    yield ComparedClaim(
        claim="Table II: images that are rebuilt from unprotected split learning",
        published=mse,
        ours=scaled,
        quantity="MSE; by the paper: on standardised images, ours: the same on [0, 1]",
        verdict="differs",
        why=f"peak 1 is not the range of these images; on [0, 1], the PSNR is {-10 * log10(scaled):.2f} dB instead of "
        f"{printed('patch_shuffling', 'Table II', 'SL', 'PSNR'):g} dB",
        basis="print",
    )
    floor = printed("patch_shuffling", "Table I", "DP", "MSE")
    for method in ("PS", "BS", "PS+"):
        error = printed("patch_shuffling", "Table IV", method, "MSE")
        yield ComparedClaim(
            claim=f"Table IV: {method} withstands the white-box attack",
            published=error,
            ours=floor,
            quantity="MSE on [−1, 1] of the attack (paper) and of a guess that recovers nothing (ours: Table I, DP)",
            verdict="unproven" if error > floor else "reproduced",
            why="the attack is worse than a guess without smashed data, so its MSE says nothing about the defense",
            basis="print",
        )


def _pairs() -> Iterator[tuple[PrintedValue, PrintedValue]]:
    values = {(value.table, value.row, value.column): value for value in printed_values("patch_shuffling")}
    for (table, row, column), value in values.items():
        psnr = values.get((table, row, "PSNR"))
        if column == "MSE" and psnr is not None:
            yield value, psnr


def _agree(mse: PrintedValue, psnr: PrintedValue) -> bool:
    """Whether a printed PSNR agrees with the MSE of the same table row, up to rounding and averaging over batches."""
    assert mse.value is not None
    assert psnr.value is not None
    return abs(psnr.value + 10 * log10(mse.value)) <= 0.5
