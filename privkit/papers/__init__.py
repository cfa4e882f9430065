"""One folder per paper: its published formulas, its printed numbers, its experiments, and our results."""

from __future__ import annotations

from collections.abc import Mapping

from privkit.errors import unknown
from privkit.papers.contract import Paper

__all__ = ["PAPERS", "paper"]

PAPERS: Mapping[str, Paper] = {
    one.name: one
    for one in (
        Paper(
            name="accurate_sl",
            title="Accurate Split Learning on Noisy Signals",
            citation="Xu et al., Accurate Split Learning on Noisy Signals",
        ),
        Paper(
            name="cutmixsl",
            title="Visual Transformer Meets CutMix for Improved Accuracy, Communication Efficiency, and Data Privacy "
            "in Split Learning",
            citation="Baek et al., CutMixSL",
        ),
        Paper(
            name="dp_cutmixsl",
            title="Patch-Wise Random and Noisy CutMix for Privacy-Preserving Split Learning with Vision Transformer",
            citation="Oh et al., DP-CutMixSL",
        ),
        Paper(
            name="patch_shuffling",
            title="Privacy-Preserving Split Learning via Patch Shuffling over Transformers",
            citation="Yao et al., patch shuffling",
            from_runs=True,
        ),
        Paper(
            name="patch_splitnn",
            title="Patch-based Privacy Preserving Neural Network for Vision Tasks",
            citation="Mabuchi and Ishikawa, Patch SplitNN",
        ),
    )
}
"""Name of a folder of this package -> its paper."""


def paper(name: str) -> Paper:
    """Look up a paper by the name of its folder. Raises `UsageError`, with the nearest names, if there is none."""
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    return PAPERS[name]
