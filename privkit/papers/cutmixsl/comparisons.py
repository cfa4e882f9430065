"""Claims of CutMixSL, checked on the paper's own tables. The paper states no privacy guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from privkit.papers.contract import ComparedClaim
from privkit.papers.values import printed

_TABLE = "all of the training set"
_printed = partial(printed, "cutmixsl")


def comparisons() -> Iterator[ComparedClaim]:
    """Yield the differences and ratios stated in the paper's text, recomputed from its tables."""
    for model in ("ViT-Tiny", "PiT-Tiny"):
        gain = _printed("Table 1", "Patch CutMix", model) - _printed("Table 1", "Parallel SL", model)
        yield _stated("accuracy gain of Patch CutMix over parallel SL", model, gain, "points of accuracy, from Table 1")
    for better, worse, models in (
        ("Patch CutMix", "Mixup", ("ViT-Tiny", "PiT-Tiny")),
        ("Mixup", "Patch CutMix", ("VGG-16",)),
    ):
        for model in models:
            gain = _printed("Table 1", better, model) - _printed("Table 1", worse, model)
            yield _stated(f"accuracy gain of {better} over {worse}", model, gain, "points of accuracy, from Table 1")
    for column, group in (("least", 2), ("most", 5)):
        yield _saved(column, group)
    for method in ("Parallel SL", "SplitFed", "CutMixSL (α = 6)", "CutMixSFL (α = 6)"):
        gain = _printed("Table 2", method, "10 clients") - _printed("Table 2", method, "2 clients")
        yield _stated("accuracy gain of 10 clients over 2", method, gain, "points of accuracy, from Table 2")
    for release in ("CutSmashed data", "Patch CutMix", "Shuffled CutMix"):
        ratio = _printed("Table 3", release, _TABLE) / _printed("Table 3", "Smashed data", _TABLE)
        yield _stated("ratio of the MSE to the MSE on smashed data", release, ratio, "times, from Table 3")


def _saved(column: str, group: int) -> ComparedClaim:
    stated, ours = _printed("text", "upload payload reduction", column), 100 * (1 - 1 / group)
    return ComparedClaim(
        claim=f"upload payload reduction: {column}",
        published=stated,
        ours=ours,
        quantity=f"% of the upload that {group}-way CutMix saves",
        verdict="reproduced" if ours == stated else "differs",
        why="k clients send one image's patches together, so 2-way to 5-way CutMix save 50 to 80 %; the paper's 20 to "
        "50 % fits the part that is still sent",
    )


def _stated(row: str, column: str, ours: float, quantity: str) -> ComparedClaim:
    stated = _printed("text", row, column)
    step = 1.0 if stated.is_integer() else 0.1
    return ComparedClaim(
        claim=f"{row}: {column}",
        published=stated,
        ours=ours,
        quantity=quantity,
        verdict="reproduced" if abs(ours - stated) <= step / 2 + 1e-9 else "differs",
        why="the number in the text is compared with the table",
        basis="print",
    )
