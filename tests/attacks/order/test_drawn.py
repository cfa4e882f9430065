"""Images drawn from tokens in their places: patch by patch, or from all tokens of an image."""

from typing import Any

import torch
from torch import Tensor

from privkit.attacks.order.jigsaw import _drawn
from privkit.attacks.order.own_tokens import OwnTokens
from privkit.attacks.order.piece_solver import PieceDecoder, Solver
from privkit.torch_utils.patches import patchify, unpatchify
from tests.attacks.order.puzzles import pixels
from tests.attacks.order.test_in_place import GEOMETRY, IMAGES, overlapping

OWN, VICTIMS = IMAGES[:240], IMAGES[240:]


def both(lower: Any) -> tuple[Tensor, Tensor]:
    """The images as they are drawn, and patch by patch."""
    own = OwnTokens(tokens=lower(OWN), patches=patchify(OWN, 8), keep=1.0, in_order=False)
    decoder = PieceDecoder.fitted(own.tokens, own.patches, GEOMETRY)
    solver = Solver(decoder=decoder, network=None, members=None, keep=1.0, kicks=0, seed=0)
    state = torch.get_rng_state()
    found = _drawn(solver, own, lower(VICTIMS))
    assert torch.equal(torch.get_rng_state(), state)
    return found, unpatchify(decoder.drawn(lower(VICTIMS)), 8, GEOMETRY.image_shape)


def test_few_numbers_of_overlapping_tokens_draw_an_image_together() -> None:
    """MSE .014, and .032 patch by patch."""
    errors = [float((drawn - VICTIMS).square().mean()) for drawn in both(lambda images: overlapping(images)[..., :8])]
    assert errors[0] < 0.7 * errors[1]


def test_tokens_that_show_their_whole_patch_draw_it_alone() -> None:
    assert torch.equal(*both(pixels))
