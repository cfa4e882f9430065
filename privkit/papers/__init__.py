"""One folder a paper: its formulas as published, its printed numbers, its experiments, and our results beside them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from privkit.errors import unknown

if TYPE_CHECKING:
    from privkit.papers.contract import Paper

__all__ = ["PAPERS", "paper"]

PAPERS = ("accurate_sl", "cutmixsl", "dp_cutmixsl", "patch_shuffling", "patch_splitnn")
"""Folders of this package; each has a `PAPER`."""


def paper(name: str) -> Paper:
    """A paper by the name of its folder.

    Raises:
        UsageError: if there is no such paper; the message suggests the nearest name.

    >>> paper("dp_cutmixsl").citation
    'Oh et al., DP-CutMixSL'
    """
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    published: Paper = import_module(f"{__name__}.{name}").PAPER
    return published
