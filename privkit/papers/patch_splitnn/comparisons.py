"""Claims of Patch SplitNN, checked on the paper's own tables. The paper states no privacy guarantee."""

from __future__ import annotations

import re
from collections.abc import Iterator

from privkit.papers.contract import ComparedClaim
from privkit.papers.values import PrintedValue, printed, printed_values

_SIDES = {"CIFAR": 32, "PCam": 96}  # side of the images in pixels
_ACCURACIES = ("Table 5", "Table 6", "Table 7")
_ALMOST_ALL = 0.9  # least share of rows that counts as "almost all"


def comparisons() -> Iterator[ComparedClaim]:
    """Yield the compared claims: numbers of patches, costs, and accuracies relative to ResNet18."""
    counts = [value for value in printed_values("patch_splitnn") if value.column == "patches"]
    wrong = [value for value in counts if _patches(value.row) != value.value]
    yield ComparedClaim(
        claim="Tables 2 and 3: number of patches of 16 patterns",
        published=float(len(counts)),
        ours=float(len(counts) - len(wrong)),
        quantity="patterns with ((side − patch)/stride + 1)² patches",
        verdict="differs" if wrong else "reproduced",
        why=", ".join(value.row for value in wrong) or "recomputed from the sizes of images, patches and strides",
    )
    large, small = (
        printed("patch_splitnn", "Table 2", f"CIFAR, patch {size}, stride {size}", "upper model's MACs")
        for size in (16, 8)
    )
    yield ComparedClaim(
        claim="§4.2: half the patch size needs a quarter of the MACs",
        published=4.0,
        ours=large / small,
        quantity="MACs with patch 16, divided by MACs with patch 8",
        verdict="reproduced" if abs(large / small - 4) < 0.05 else "differs",
        why="from Table 2",
        basis="print",
    )
    rows = [v for v in printed_values("patch_splitnn") if v.table in _ACCURACIES and v.column == "accuracy"]
    ours = {v.row: v for v in rows}
    plus = [v for v in rows if "SplitNN+" in v.row]
    better = [v for v in plus if _value(v) > _value(ours[f"{v.row.split(',')[0]}, ResNet18"])]
    yield ComparedClaim(
        claim="§5: Patch SplitNN+ is better than ResNet18 in almost all patterns",
        published=float(len(plus)),
        ours=float(len(better)),
        quantity="rows of Tables 5 to 7 that are better than ResNet18",
        verdict="reproduced" if len(better) >= _ALMOST_ALL * len(plus) else "differs",
        why=f"{len(better)} of {len(plus)} rows",
        basis="print",
    )
    many = [v for v in plus if "upper models" in v.row]
    helped = [v for v in many if _value(v) > _value(ours[v.row.replace("SplitNN+", "SplitNN")])]
    yield ComparedClaim(
        claim="§4.3: AdaptationNet helps if every patch has an upper model",
        published=float(len(many)),
        ours=float(len(helped)),
        quantity="rows of Tables 5 to 7 that are better than without AdaptationNet",
        verdict="reproduced" if len(helped) >= _ALMOST_ALL * len(many) else "differs",
        why=f"{len(helped)} of {len(many)} rows; the paper gives no spread over its trials",
        basis="print",
    )


def _patches(pattern: str) -> int:
    """Number of patches of an image, from a pattern such as "CIFAR, patch 12, stride 5"."""
    data, sizes = pattern.split(",")[0], re.findall(r"(?:patch|stride) (\d+)", pattern)
    patch, stride = map(int, sizes)
    return ((_SIDES[data] - patch) // stride + 1) ** 2


def _value(printed: PrintedValue) -> float:
    assert printed.value is not None
    return printed.value
