"""The tokens of the adversary's own images, in order: from the lower segment, or from what a query gave back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Knowledge, NotApplicable, View
from privkit.attacks.decoders.patches import Geometry, as_tokens, patchify
from privkit.attacks.token_contents import match_own_tokens, nearest, own_share


def checked_geometry(views: Sequence[View], knowledge: Knowledge) -> Geometry:
    """Check what can be checked before any work."""
    if knowledge.auxiliary is None or (knowledge.lower is None and knowledge.query is None):
        raise NotApplicable("jigsaw needs auxiliary images, and the lower segment or a query to see their tokens")
    if any(view.mixed > 1 for view in views):
        raise NotApplicable("jigsaw puts whole tokens back, but each released row is a mixture of several images")
    if not all(bool(view.smashed.isfinite().all()) for view in views):
        raise NotApplicable("jigsaw needs finite numbers, but the release holds NaN or infinity")
    geometry = Geometry.of(views[0].smashed, knowledge.image_shape)
    if geometry.tokens < 4 or geometry.patch < 2:
        raise NotApplicable(
            f"jigsaw needs at least 4 tokens of patches of at least 2 pixels a side, got {geometry.tokens} tokens of "
            f"{geometry.patch} pixels"
        )
    if tuple(knowledge.auxiliary.shape[1:]) != knowledge.image_shape:
        raise NotApplicable(
            f"auxiliary images are {list(knowledge.auxiliary.shape[1:])}, the private ones "
            f"{list(knowledge.image_shape)}: bring auxiliary data of the same shape"
        )
    if len(knowledge.auxiliary) < 2 * knowledge.batch_size:
        raise NotApplicable(
            f"jigsaw learns from messages as large as the victim's ({knowledge.batch_size} images): it needs at least "
            f"{2 * knowledge.batch_size} auxiliary images, got {len(knowledge.auxiliary)}"
        )
    return geometry


@torch.no_grad()
def own_tokens(view: View, knowledge: Knowledge, geometry: Geometry, draws: Generator) -> tuple[Tensor, Tensor, float]:
    """Tokens [N, T, D] and patches [N, T, P] of own images in order, and the share of tokens that a shuffle keeps."""
    assert knowledge.auxiliary is not None
    batch, device = knowledge.batch_size, view.smashed.device
    images = knowledge.auxiliary[: len(knowledge.auxiliary) // batch * batch].to(device)
    patches = patchify(images, geometry.patch)
    messages = images.split(batch)
    ordered = None
    if knowledge.lower is not None:
        ordered = torch.cat([as_tokens(knowledge.lower(part)).float() for part in messages])
        if ordered.shape[1:] != (geometry.tokens, geometry.token_dim):
            raise NotApplicable(
                f"the lower segment gives {list(ordered.shape[1:])} tokens, but the release is "
                f"{[geometry.tokens, geometry.token_dim]}"
            )
    if knowledge.query is None:
        assert ordered is not None
        return ordered, patches, 1.0
    answers = [knowledge.query(part, draws) for part in (messages[:2] if ordered is not None else messages)]
    rows = torch.cat([answer.members.flatten() + batch * number for number, answer in enumerate(answers)])
    released = torch.cat([as_tokens(answer.view.smashed).float() for answer in answers])
    if len(rows) != len(released) or len(rows) % batch or not ((rows >= 0) & (rows < len(images))).all():
        raise NotApplicable("jigsaw needs a query that answers with a row of tokens for each image")
    if ordered is not None:
        few = released.unflatten(0, (-1, batch)).flatten(1, 2)
        share = own_share(nearest(ordered[rows].unflatten(0, (-1, batch)).flatten(1, 2), few), geometry.tokens)
        return ordered, patches, kept_share(share, batch)
    own, share = match_own_tokens(*(x.unflatten(0, (-1, batch)) for x in (released, patches[rows])))
    return own.flatten(0, 1), patches[rows], kept_share(share, batch)


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
