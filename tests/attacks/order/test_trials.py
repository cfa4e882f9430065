"""A jigsaw whose tokens need no new order, or show little, draws no worse than the mean image."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.jigsaw_white_box import JigsawWhiteBox
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.own_tokens import own_tokens
from privkit.attacks.patches import Geometry
from tests.attacks.order.puzzles import AUXILIARY, VICTIMS, Projected, T, projected, run, scene

FLOOR = float((AUXILIARY.mean(0) - VICTIMS).square().mean())
QUICK = Jigsaw(epochs=2, kicks=2)


def masked(images: Tensor, draws: Generator) -> QueryResult:
    """A public mask for the whole message zeroes ten of the 16 tokens."""
    kept = (torch.rand(T, generator=draws).argsort() < 6).float().expand(len(images), 1, T)
    view = View(round=0, smashed=projected(images) * kept.transpose(1, 2), weights=kept.clone())
    return QueryResult.row_by_row(view)


def noisy(images: Tensor, draws: Generator) -> QueryResult:
    """Heavy Laplace noise."""
    flat = torch.rand(len(images), T, 64, generator=draws) - 0.5
    noise = -flat.sign() * (1 - 2 * flat.abs()).clamp_min(1e-6).log()
    return QueryResult.row_by_row(View(round=0, smashed=projected(images) + noise * projected(AUXILIARY).std()))


def poor(images: Tensor, draws: Generator) -> QueryResult:
    """Each token shows the mean of its image alone."""
    grey = images.mean((1, 2, 3)).view(-1, 1, 1) * torch.ones(1, T, 8)
    return QueryResult.row_by_row(View(round=0, smashed=grey + torch.arange(T).view(1, T, 1)))


def seen(query: Any, lower: Any = None) -> ImageObservation:
    _, _, knowledge = scene(projected)
    views = [query(VICTIMS, Generator().manual_seed(50)).view]
    return replace(knowledge, views=views, batch_size=len(VICTIMS), query=query, lower=lower)


@pytest.mark.parametrize("lower", [None, Projected()])
def test_tokens_that_a_public_mask_leaves_stay_in_their_places(lower: Any) -> None:
    known = seen(masked, lower)
    geometry = Geometry.of(known.views[0].smashed, (3, 32, 32))
    own = own_tokens(known.views[0], known, geometry, Generator().manual_seed(0), 100)
    assert (own.in_order, own.keep) == (True, 1.0)
    if lower is not None:
        guess = JigsawWhiteBox(pieces_epochs=1, kicks=1, epochs=1).run(known, Generator().manual_seed(0))
        assert guess.permutation is not None
        assert (guess.permutation.source % T == torch.arange(T)).all()


@pytest.mark.parametrize(("query", "share"), [(masked, 0.75), (noisy, 0.6), (poor, 1.05)])
def test_its_images_are_no_worse_than_the_mean_image(query: Any, share: float) -> None:
    known = seen(query)
    guess = run(QUICK, list(known.views), known)
    assert (guess.images - VICTIMS).square().mean() < share * FLOOR
