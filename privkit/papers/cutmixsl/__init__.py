"""CutMixSL (Baek et al.): smashed patches of several clients, cut and mixed without noise."""

from privkit.papers.contract import Paper

PAPER = Paper(
    name="cutmixsl",
    title="Visual Transformer Meets CutMix for Improved Accuracy, Communication Efficiency, and Data Privacy in Split "
    "Learning",
    citation="Baek et al., CutMixSL",
    pictures=True,
)
