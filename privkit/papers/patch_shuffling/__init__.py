"""Patch shuffling (Yao et al.): patches of a batch are permuted before they leave the client."""

from privkit.papers.contract import Paper

PAPER = Paper(
    name="patch_shuffling",
    title="Privacy-Preserving Split Learning via Patch Shuffling over Transformers",
    citation="Yao et al., patch shuffling",
    pictures=True,
    from_runs=True,
)
