"""Views put together: rounds of the same victims averaged, and rows of all rounds cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.sinkhorn import hungarian, pair_costs, take


def averaged(views: Sequence[View], align: bool = False) -> View:
    """One view with the mean of several rounds' releases of the same victims: noise of R rounds shrinks by √R.

    Args:
        views: rounds that hold the same victims in the same rows.
        align: whether tokens of later rounds are first put where the most similar tokens of the first round are, by the
            assignment of least squared distances: for rounds with orders of their own.

    Raises:
        NotApplicable: if the rounds differ in form, or images are mixed: each round then has other weights.

    >>> rounds = [View(round=i, smashed=torch.tensor([[[1.0], [9.0]]]).flip(1) + i) for i in range(2)]
    >>> averaged(rounds).smashed.flatten().tolist()
    [9.5, 1.5]
    """
    if any(v.smashed.shape != views[0].smashed.shape or v.mixed > 1 or v.share is not None for v in views):
        raise NotApplicable(
            "rounds can be averaged where they hold the same images, unmixed and unmasked, in the same rows"
        )
    rounds = [v.smashed for v in views]
    if align:
        rounds = [rounds[0], *(take(x, hungarian(pair_costs(x, rounds[0]))) for x in rounds[1:])]
    return replace(views[0], smashed=torch.stack(rounds).mean(0), cut_gradient=None)


def chunks_of(views: Sequence[View], rows: int) -> list[View]:
    """The rows of all views, some at a time."""
    smashed = torch.cat([v.smashed for v in views]).split(rows)
    share: Sequence[Tensor | None] = [None] * len(smashed)
    if views[0].share is not None:
        share = torch.cat([v.share for v in views if v.share is not None]).split(rows)
    return [View(round=0, smashed=z, mixed=views[0].mixed, share=s) for z, s in zip(smashed, share, strict=True)]
