"""Augmentation against the plain way: pad, crop, mirror, image by image."""

import pytest
import torch
from torch import Tensor

from privkit.domains.images.augment import augment
from privkit.errors import UsageError
from tests.small import generator


def candidates(image: Tensor, flips: bool) -> Tensor:
    """All crops of a padded image [C, H, W], and their mirror images."""
    _, h, w = image.shape
    up, left = h // 8, w // 8
    padded = torch.nn.functional.pad(image, (left, left, up, up))
    crops = [padded[:, y : y + h, x : x + w] for y in range(2 * up + 1) for x in range(2 * left + 1)]
    return torch.stack([crop.flip(2) if flip else crop for flip in range(1 + flips) for crop in crops])


@pytest.mark.parametrize(("kind", "kinds"), [("crop", 15), ("crop_flip", 30)])
def test_every_image_is_one_of_its_crops_and_each_is_as_likely(kind: str, kinds: int) -> None:
    image = torch.rand(3, 8, 17, generator=generator())  # shifts of up to 1 and 2
    found = augment(image.expand(6000, -1, -1, -1), kind, generator())
    possible = candidates(image, kind == "crop_flip")
    assert len(possible) == kinds
    same = (found.flatten(1).unsqueeze(1) == possible.flatten(1)).all(2)
    assert (same.sum(1) == 1).all()
    expected = 6000 / kinds
    assert (same.sum(0) - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize("kind", ["crop", "crop_flip"])
def test_images_of_a_batch_move_apart_and_channels_together(kind: str) -> None:
    images = torch.rand(1, 1, 32, 32, generator=generator()).expand(50, 3, -1, -1)
    found = augment(images, kind, generator())
    assert torch.equal(found[:, 0], found[:, 2])
    assert len(found.flatten(1).unique(dim=0)) > 25


@pytest.mark.parametrize("kind", ["none", "crop", "crop_flip"])
def test_clients_are_one_batch(kind: str) -> None:
    images = torch.rand(4, 5, 3, 16, 16, generator=generator())
    state = torch.random.get_rng_state()
    found = augment(images, kind, generator())
    assert found.shape == images.shape
    assert torch.equal(found.flatten(0, 1), augment(images.flatten(0, 1), kind, generator()))
    assert kind == "none" or not torch.equal(found, images)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_none_is_the_same_tensor_and_draws_nothing() -> None:
    images, draws = torch.rand(2, 1, 4, 4), generator()
    before = draws.get_state()
    assert augment(images, "none", draws) is images
    assert torch.equal(draws.get_state(), before)


def test_a_side_below_eight_is_not_shifted() -> None:
    images = torch.rand(20, 1, 7, 7, generator=generator())
    assert torch.equal(augment(images, "crop", generator()), images)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'crop'"):
        augment(torch.rand(1, 1, 8, 8), "corp", generator())
    with pytest.raises(ValueError, match="images must be"):
        augment(torch.rand(1, 8, 8), "crop", generator())
