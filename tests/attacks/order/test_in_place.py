"""Tokens that came back in any order are put in the order of their patches."""

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import take
from privkit.attacks.order.in_place import in_place
from privkit.attacks.patches import Geometry
from privkit.torch_utils.patches import patchify
from tests.attacks.order.puzzles import T, projected
from tests.attacks.victims import crops

GEOMETRY = Geometry(token_dim=64, tokens=T, patch=8, image_shape=(3, 32, 32))
IMAGES = crops(300, seed=2)


def overlapping(images: Tensor) -> Tensor:
    """Tokens of 16×16 pixels around each patch of 8×8, from 64 random features, as behind a soft split."""
    weight = torch.randn(768, 64, generator=Generator().manual_seed(4)) / 16
    return (nn.functional.unfold(images, 16, padding=4, stride=8).mT @ weight).tanh()


def placed(images: Tensor) -> Tensor:
    """Tokens with a vector for each place."""
    return projected(images) + 2 * torch.randn(T, 64, generator=Generator().manual_seed(5))


def strange(images: Tensor) -> Tensor:
    """Tokens that have nothing of the images."""
    return torch.randn(len(images), T, 64, generator=Generator().manual_seed(6))


def share_in_place(lower: Any, images: Tensor = IMAGES, shared: int = 1) -> float:
    tokens = lower(images)
    groups = tokens.unflatten(0, (-1, shared)).flatten(1, 2)
    order = torch.rand(groups.shape[:2], generator=Generator().manual_seed(7)).argsort(1)
    found = in_place(take(groups, order), patchify(images, 8), GEOMETRY)
    return float((found - tokens).abs().amax(2).lt(1e-5).double().mean())


@pytest.mark.parametrize("lower", [projected, overlapping, placed])
def test_tokens_find_their_patches(lower: Any) -> None:
    """Shares .9996, .999 and 1."""
    assert share_in_place(lower) > 0.95


def test_tokens_of_several_images_find_their_patches() -> None:
    assert share_in_place(projected, shared=5) > 0.95


def test_few_images_are_enough_where_a_token_shows_its_patch() -> None:
    assert share_in_place(projected, IMAGES[:50]) > 0.9


def test_tokens_that_show_nothing_are_placed_by_chance() -> None:
    assert share_in_place(strange) == pytest.approx(1 / T, abs=0.02)


def test_the_fits_use_a_part_and_all_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.attacks.order.in_place._FITTED_TOKENS", 100 * T)
    monkeypatch.setattr("privkit.attacks.order.in_place._NUMBERS_AT_ONCE", 40 * T * 700)
    assert share_in_place(overlapping) > 0.9
