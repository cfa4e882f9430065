"""DP-CutMixSL (Oh et al.): noisy smashed data of several clients, mixed by Mixup or CutMix."""

from privkit.papers.contract import Paper

PAPER = Paper(
    name="dp_cutmixsl",
    title="Patch-Wise Random and Noisy CutMix for Privacy-Preserving Split Learning with Vision Transformer",
    citation="Oh et al., DP-CutMixSL",
    pictures=True,
)
