"""Deformed copies of images: small changes, each image its own, and nothing is invented."""

import torch
from torch import Tensor

from privkit.attacks.inversion.augment import deformed
from tests.small import generator

SIDE = 64


def spots(*places: tuple[int, int]) -> Tensor:
    """An image [1, SIDE, SIDE] with round spots around these pixels (row, column)."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    return sum((-((rows - y) ** 2 + (columns - x) ** 2) / 8.0).exp() for y, x in places)[None]  # type: ignore[index]


def centers(images: Tensor) -> Tensor:
    """The center of gravity of each image [N, 1, SIDE, SIDE] as (row, column), in pixels from the middle, [N, 2]."""
    places = torch.arange(SIDE) - (SIDE - 1) / 2
    rows, columns = images.sum((1, 3)), images.sum((1, 2))
    return torch.stack([rows @ places / rows.sum(1), columns @ places / columns.sum(1)], 1)


def test_a_flat_image_stays_and_other_images_stay_in_their_range() -> None:
    flat = torch.full((20, 3, 8, 8), 0.3)
    assert torch.allclose(deformed(flat, generator()), flat)
    images = deformed(torch.rand(50, 3, 16, 16, generator=generator()), generator())
    assert images.shape == (50, 3, 16, 16)
    assert images.min() >= 0
    assert images.max() <= 1


def test_the_middle_moves_by_at_most_the_shift_and_each_image_on_its_own() -> None:
    moved = centers(deformed(spots((31, 31), (32, 32)).expand(2000, -1, -1, -1), generator()))
    most = 0.035 * SIDE / 0.7  # the inverse of the other changes enlarges a shift, by less than 1/0.7
    assert moved.abs().max() < most
    assert moved.abs().max() > 0.7 * most
    assert moved.mean(0).abs().max() < 0.15
    assert len(moved.unique(dim=0)) > 1990


def test_a_spot_far_from_the_middle_is_turned_by_at_most_the_angle_and_scaled() -> None:
    found = deformed(spots((31, 55), (32, 55)).expand(2000, -1, -1, -1), generator())
    at = centers(found) - centers(deformed(spots((31, 31), (32, 32)).expand(2000, -1, -1, -1), generator()))
    angle, length = torch.atan2(at[:, 0], at[:, 1]), at.norm(dim=1) / 23.5
    assert angle.abs().max() < 0.35
    assert angle.std() > 0.05
    assert 0.8 < length.min() < 0.95 < 1.05 < length.max() < 1.25


def test_the_same_generator_gives_the_same_copies() -> None:
    images = torch.rand(4, 1, 12, 12, generator=generator())
    assert torch.equal(deformed(images, generator(3)), deformed(images, generator(3)))
    assert not torch.equal(deformed(images, generator(3)), deformed(images, generator(4)))
