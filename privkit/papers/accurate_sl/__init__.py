"""Accurate split learning on noisy signals (Xu et al.): noise on smashed data, then masking or scaling it."""

from privkit.papers.contract import Paper

PAPER = Paper(
    name="accurate_sl",
    title="Accurate Split Learning on Noisy Signals",
    citation="Xu et al., Accurate Split Learning on Noisy Signals",
    pictures=True,
    judges_runs=True,
)
