"""Patch SplitNN (Mabuchi and Ishikawa): an upper model a patch, so that no machine sees a whole image."""

from privkit.papers.contract import Paper

PAPER = Paper(
    name="patch_splitnn",
    title="Patch-based Privacy Preserving Neural Network for Vision Tasks",
    citation="Mabuchi and Ishikawa, Patch SplitNN",
)
