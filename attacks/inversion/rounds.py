"""Tools for views (the releases of rounds): group or average passes of the same images, and cut rows into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import hungarian, pair_costs, take
from privkit.attacks.base import NotApplicable, QueryResult, View, given
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.attacks.inversion.recurrence import keeps_places


def averaged(views: Sequence[View], align: bool = False) -> View:
    """Average several releases of the same images in the same rows; noise shrinks by √R for R releases.

    If tokens were masked by public masks, each position is the mean over the releases that kept it (`unmasked`). With
    `align`, tokens are first matched with the first release's tokens, by the least sum of squared distances. Raises
    `NotApplicable` if only some releases have masks, or masked tokens are to be aligned.
    """
    if masked(views):
        if align:
            raise NotApplicable("masked rounds can be averaged place by place only, not after reordering tokens")
        smashed, weights = unmasked(views)
        whole = bool((weights == 1).all())
        return replace(views[0], smashed=smashed, weights=None if whole else weights, cut_gradient=None)
    rounds = [v.smashed for v in views]
    if align:
        rounds = [rounds[0], *(take(x, hungarian(pair_costs(x, rounds[0]))) for x in rounds[1:])]
    return replace(views[0], smashed=torch.stack(rounds).mean(0), cut_gradient=None)


def averaged_passes(observation: ImageObservation, passes: int, attack: str) -> ImageObservation:
    """If records were sent `passes` > 1 times, average each record's releases, both recorded and in answers to queries.

    Raises `NotApplicable` if a record's releases differ in form, a row mixes records, or the order of tokens varies.
    """
    if passes == 1:
        return observation
    rounds, ask = by_round(observation.views, passes), observation.query
    first, second = (torch.cat([same[i].smashed for same in rounds]).float() for i in (0, 1))
    if first.ndim == 3 and not masked(rounds[0]) and not keeps_places(first, second):
        raise NotApplicable(
            f"{attack} averages passes whose tokens are in the same places, and these are not, or noise hides it: "
            "leave passes out"
        )

    def query(records: Tensor, draws: Generator) -> QueryResult:
        answers = [in_order(given(ask)(records, draws), len(records), attack) for _ in range(passes)]
        return QueryResult.row_by_row(averaged(answers))

    means = [averaged(same) for same in rounds]
    return replace(observation, views=means, query=None if ask is None else query)


def in_order(answer: QueryResult, records: int, attack: str) -> View:
    """Take the release (view) from an answer to a query, with its rows in the order of the sent records.

    Raises `NotApplicable` if a row mixes several records, or numbers are not finite.
    """
    by_round([answer.view], 1)
    order, weights = answer.row_of_each(records, attack), answer.view.weights
    return replace(answer.view, smashed=answer.view.smashed[order], weights=None if weights is None else weights[order])


def masked(views: Sequence[View]) -> bool:
    """Whether public masks were applied to unmixed rows; raises `NotApplicable` if only some views were masked."""
    public = [view.weights is not None for view in views]
    if any(public) and not all(public):
        raise NotApplicable("rounds can be combined only if masks are public in all passes or in none")
    return all(public)


def unmasked(views: Sequence[View]) -> tuple[Tensor, Tensor]:
    """Combine releases of the same images in which public masks [N, 1, T] hid some positions (weight 0).

    Returns the sum of the releases divided by the sum of their weights, shaped like `smashed`; and a mask [N, 1, T], 1
    for each position that some release kept. Other positions are 0 in both.
    """
    shares = torch.stack([view.weights for view in views if view.weights is not None])
    total, weight = torch.stack([view.smashed for view in views]).sum(0), shares.sum(0)
    spread = mixed_release(torch.ones_like(total), 1, weight)
    return torch.where(spread > 0, total / spread.clamp_min(1e-12), 0), (weight > 0).to(weight.dtype)


def by_round(views: Sequence[View], passes: int, *, mixed: bool = False) -> list[list[View]]:
    """Group views by round: a list for each round, with one view for each pass.

    In `views`, all rounds of the first pass come first. Raises `NotApplicable` if the number of views is not a
    multiple of `passes`, if the views of a round differ in form, if a row mixes several records and `mixed` is false,
    if only some passes were masked, or if a number is not finite.

    >>> views = [View(round=i, smashed=torch.zeros(2, 3)) for i in range(6)]
    >>> [[view.round for view in same] for same in by_round(views, 2)]
    [[0, 3], [1, 4], [2, 5]]
    """
    if not views or len(views) % passes:
        raise NotApplicable(
            f"rounds can be combined only if the same victims crossed {passes} times, pass after pass, but "
            f"{len(views)} views are not a multiple of {passes}"
        )
    rounds = [list(views[first :: len(views) // passes]) for first in range(len(views) // passes)]
    for same in rounds:
        if any(view.smashed.shape != same[0].smashed.shape or view.messages != same[0].messages for view in same):
            shapes = ", ".join(str(list(view.smashed.shape)) for view in same)
            raise NotApplicable(f"passes of the same victims must have one shape and number of messages, got {shapes}")
    if not mixed and any(view.mixed > 1 for view in views):
        raise NotApplicable(
            "rounds can be combined only if a row holds one image: each pass draws groups and weights anew, so no "
            "row is the same sum twice; take unmix, which solves for the images of a group"
        )
    masked(views)
    if not all(bool(view.smashed.isfinite().all()) for view in views):
        raise NotApplicable("rounds can be combined only if numbers are finite, but the release holds NaN or infinity")
    return rounds


def chunks_of(views: Sequence[View], rows: int) -> list[View]:
    """Cut the rows of all views into views of at most `rows` rows."""
    smashed = torch.cat([v.smashed for v in views]).split(rows)
    weights: Sequence[Tensor | None] = [None] * len(smashed)
    if views[0].weights is not None:
        weights = torch.cat([v.weights for v in views if v.weights is not None]).split(rows)
    return [View(round=0, smashed=z, mixed=views[0].mixed, weights=s) for z, s in zip(smashed, weights, strict=True)]


def labels_of(views: Sequence[View]) -> Tensor | None:
    """The labels of all rows, int64 [N], if they are sent as class numbers, else None."""
    labels = [v.labels for v in views if v.labels is not None and not v.labels.is_floating_point()]
    return torch.cat(labels) if len(labels) == len(views) else None
