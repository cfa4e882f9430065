"""The tokens of the adversary's own images, in order: from the lower segment, or from what a query gave back."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.token_contents import match_own_tokens, nearest, own_share
from privkit.attacks.patches import Geometry, as_tokens, patchify

OWN_NUMBERS = 2**29  # of the own tokens and patches that are held, 2 GiB in float32; images beyond it are left out
MATCHED_TOKENS = 16_384  # of a message: a table of all its pairs then takes 1 GiB
KEEPS_ALL = 0.97  # an estimated share of kept tokens above which a shuffle is taken not to mix images


def checked_geometry(observation: ImageObservation) -> Geometry:
    """Check what can be checked before any work."""
    views, auxiliary = observation.views, observation.auxiliary
    if auxiliary is None or (observation.lower is None and observation.query is None):
        raise NotApplicable("jigsaw needs auxiliary images, and the lower segment or a query to see their tokens")
    if any(view.mixed > 1 for view in views):
        raise NotApplicable("jigsaw puts whole tokens back, but each released row is a mixture of several images")
    geometry = Geometry.of(views[0].smashed, observation.image_shape)
    if geometry.tokens < 4 or geometry.patch < 2:
        raise NotApplicable(
            f"jigsaw needs at least 4 tokens of patches of at least 2 pixels a side, got {geometry.tokens} tokens of "
            f"{geometry.patch} pixels"
        )
    size = rows_a_message(views[0])
    least = max(2 * size, observation.batch_size if observation.query is not None else 0)
    if len(auxiliary) < least:
        raise NotApplicable(
            f"jigsaw learns from messages as large as the victim's ({size} images), and a query takes a whole round: "
            f"it needs at least {least} auxiliary images, got {len(auxiliary)}"
        )
    return geometry


def rows_a_message(view: View) -> int:
    """B, the rows of each of a view's messages.

    >>> rows_a_message(View(round=0, smashed=torch.zeros(6, 4, 2), messages=2))
    3
    """
    if view.messages < 1 or len(view.smashed) % view.messages:
        raise NotApplicable(f"{len(view.smashed)} rows are no {view.messages} messages of one size")
    return len(view.smashed) // view.messages


@torch.no_grad()
def own_tokens(
    view: View, observation: ImageObservation, geometry: Geometry, draws: Generator
) -> tuple[Tensor, Tensor, float, bool]:
    """Tokens [N, T, D] and patches [N, T, P] of own images in order; the share kept, and whether all stay in place."""
    assert observation.auxiliary is not None
    device, size = view.smashed.device, rows_a_message(view)
    whole = size if observation.query is None else observation.batch_size  # a query takes a round
    if observation.query is not None and size * geometry.tokens > MATCHED_TOKENS:
        raise NotApplicable(
            f"jigsaw compares all pairs of a message's tokens, of which there may be {MATCHED_TOKENS:,}, but a message "
            f"has {size * geometry.tokens:,}: take smaller messages, or give the lower segment and no query"
        )
    held = max(2 * whole, OWN_NUMBERS // (geometry.tokens * (geometry.token_dim + geometry.patch_dim)))
    images = observation.auxiliary[: min(held, len(observation.auxiliary)) // whole * whole].to(device)
    patches, rounds = patchify(images, geometry.patch), images.split(whole)
    ordered = None
    if observation.lower is not None:
        ordered = torch.cat([as_tokens(observation.lower(part)).float() for part in images.split(size)])
        if ordered.shape[1:] != (geometry.tokens, geometry.token_dim):
            raise NotApplicable(
                f"the lower segment gives {list(ordered.shape[1:])} tokens, but the release is "
                f"{[geometry.tokens, geometry.token_dim]}"
            )
    if observation.query is None:
        assert ordered is not None
        return ordered, patches, 1.0, False
    answers = [observation.query(part, draws) for part in (rounds[:2] if ordered is not None else rounds)]
    rows = torch.cat([answer.members.flatten() + whole * number for number, answer in enumerate(answers)])
    released = torch.cat([as_tokens(answer.view.smashed).float() for answer in answers])
    if len(rows) != len(released) or len(rows) % whole or not ((rows >= 0) & (rows < len(images))).all():
        raise NotApplicable("jigsaw needs a query that answers with a row of tokens for each image")
    size = rows_a_message(answers[0].view)
    if ordered is not None:
        keep, placed = shares_kept(ordered[rows], released, size)
        return ordered, patches, keep, placed > KEEPS_ALL
    own, share, placed = match_own_tokens(*(x.unflatten(0, (-1, size)) for x in (released, patches[rows])))
    return own.flatten(0, 1), patches[rows], kept_share(share, size), placed > KEEPS_ALL


def shares_kept(ordered: Tensor, released: Tensor, size: int) -> tuple[float, float]:
    """Share of tokens that a shuffle keeps in their row for certain, and share that came back in their very place.

    Args:
        ordered: [N, T, D], what images give without the defense.
        released: [N, T, D], what came back for them.
        size: rows a message.
    """
    matches = nearest(*(x.unflatten(0, (-1, size)).flatten(1, 2) for x in (ordered, released)))
    return kept_share(own_share(*matches, ordered.shape[1]), size), own_share(*matches, 1)


def kept_share(own: float, batch: int) -> float:
    """k′ from the share of tokens that are in their own image's row: k′ + (1 − k′)/B, the rest having been dealt out.

    Args:
        own: in [0, 1].
        batch: B ≥ 1.

    Source: facts of patch shuffling's Algorithm 2 (k′ = ⌊kN⌋/N); inverted.

    >>> round(kept_share(0.46, 10), 3), kept_share(0.05, 10), kept_share(1.0, 1)
    (0.4, 0.0, 1.0)
    """
    return min(1.0, max(0.0, (own - 1 / batch) / (1 - 1 / batch))) if batch > 1 else 1.0
