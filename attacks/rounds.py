"""Views put together: passes of the same victims side by side or averaged, and rows of all rounds cut into chunks."""

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


def by_round(views: Sequence[View], passes: int) -> list[list[View]]:
    """The views of each round of victims together, in the order of their passes.

    Args:
        views: pass after pass.
        passes: R ≥ 1.

    Raises:
        NotApplicable: if the views are no R passes of the same form, or a row holds several images or a part of one.

    >>> views = [View(round=i, smashed=torch.zeros(2, 3)) for i in range(6)]
    >>> [[view.round for view in same] for same in by_round(views, 2)]
    [[0, 3], [1, 4], [2, 5]]
    """
    if not views or len(views) % passes:
        raise NotApplicable(
            f"rounds are put together where the same victims crossed {passes} times, pass after pass, but "
            f"{len(views)} views are no multiple of {passes}"
        )
    rounds = [list(views[first :: len(views) // passes]) for first in range(len(views) // passes)]
    for same in rounds:
        if any(view.smashed.shape != same[0].smashed.shape or view.messages != same[0].messages for view in same):
            shapes = ", ".join(str(list(view.smashed.shape)) for view in same)
            raise NotApplicable(f"passes of the same victims must have one shape and as many messages, got {shapes}")
    if any(view.mixed > 1 or view.share is not None for view in views):
        raise NotApplicable(
            "rounds are put together where a row holds one image, unmixed and unmasked: each pass draws its groups, "
            "weights and masks anew, so that no row is the same sum twice"
        )
    if not all(bool(view.smashed.isfinite().all()) for view in views):
        raise NotApplicable(
            "rounds are put together where all numbers are finite, but the release holds NaN or infinity"
        )
    return rounds


def chunks_of(views: Sequence[View], rows: int) -> list[View]:
    """The rows of all views, some at a time."""
    smashed = torch.cat([v.smashed for v in views]).split(rows)
    share: Sequence[Tensor | None] = [None] * len(smashed)
    if views[0].share is not None:
        share = torch.cat([v.share for v in views if v.share is not None]).split(rows)
    return [View(round=0, smashed=z, mixed=views[0].mixed, share=s) for z, s in zip(smashed, share, strict=True)]
