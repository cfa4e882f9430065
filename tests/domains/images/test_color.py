"""Random colors against torchvision's, image by image."""

import pytest
import torch
from torchvision.transforms.v2 import functional as vision

from privkit.domains.images.augment import augment, jitter, turned
from privkit.errors import UsageError
from tests.small import generator


def test_every_image_changes_as_torchvision_changes_it() -> None:
    images = torch.rand(40, 3, 6, 5, generator=generator())
    images[0, :, 0] = 0.5  # grey pixels have no hue
    images[1, :, 0] = torch.tensor([0.7, 0.7, 0.1]).view(3, 1)
    found, draws = jitter(images, generator()), generator()
    factors, grey = 2 * torch.rand(4, 40, generator=draws) - 1, torch.rand(40, generator=draws) < 0.1
    assert 0 < grey.sum() < 20
    for number, image in enumerate(images):
        brightness, contrast, saturation = (1 + 0.2 * factors[:3, number]).tolist()
        expected = vision.adjust_contrast(vision.adjust_brightness(image, brightness), contrast)
        expected = vision.adjust_hue(vision.adjust_saturation(expected, saturation), 0.2 * float(factors[3, number]))
        if grey[number]:
            expected = vision.rgb_to_grayscale(expected, num_output_channels=3)
        torch.testing.assert_close(found[number], expected, rtol=1e-3, atol=5e-4)


def test_a_whole_turn_of_the_wheel_changes_nothing() -> None:
    images = torch.rand(3, 3, 4, 4, generator=generator())
    torch.testing.assert_close(turned(images, torch.ones(3, 1, 1)), images, rtol=1e-5, atol=1e-5)


def test_histology_turns_images_upside_down_and_left_to_right() -> None:
    images = torch.zeros(4, 50, 3, 7, 7)  # below eight pixels per side nothing is shifted
    images[..., 0, 0] = 0.5
    found = augment(images, "histology", generator())
    assert found.shape == images.shape
    brightest = found.sum(2).flatten(2).argmax(2).flatten()
    corners = torch.stack([brightest == pixel for pixel in (0, 6, 42, 48)])
    assert corners.any(0).all()
    assert ((corners.float().mean(1) - 0.25).abs() < 0.12).all()


def test_grey_images_have_no_colors_to_change() -> None:
    with pytest.raises(UsageError, match=r"augment=histology changes colors.*1 channel; use crop_flip"):
        augment(torch.rand(2, 1, 8, 8), "histology", generator())
