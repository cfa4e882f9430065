"""Laws of an image metric: it gives one value for each image, and equal images get the best value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from privkit.metrics.own import ImageMetric, check_metric, values

_COUNT, _SIDE = 6, 16


def _images() -> tuple[Tensor, Tensor]:
    draws = Generator().manual_seed(0)
    truth, noise = torch.rand(2, _COUNT, 3, _SIDE, _SIDE, generator=draws)
    share = torch.linspace(0.2, 1, _COUNT).view(-1, 1, 1, 1)
    return truth, (1 - share) * truth + share * noise


def _declares_name_and_direction(metric: ImageMetric) -> str:
    try:
        check_metric(metric)
    except ValueError as error:
        return str(error)
    return ""


def _gives_a_number_for_each_image(metric: ImageMetric) -> str:
    """Check that values [N] are finite and reproducible, each from one pair of images, and that no image is changed."""
    truth, guess = _images()
    kept = truth.clone(), guess.clone()
    given = values(metric, truth, guess)
    order = torch.arange(_COUNT).roll(2)
    if not np.array_equal(values(metric, truth, guess), given):
        return "the same images give other values; draw nothing"
    if not np.allclose(values(metric, truth[order], guess[order]), given[order.numpy()], rtol=1e-6):
        return "in another order images have other values; compare each image alone"
    if not (torch.equal(truth, kept[0]) and torch.equal(guess, kept[1])):
        return "it changes the images that it is given"
    return ""


def _is_best_where_images_are_equal(metric: ImageMetric) -> str:
    """Check that equal images get the best value in the declared direction, and that more noise gets a worse value."""
    truth, guess = _images()
    sign = 1 if metric.higher_is_closer else -1
    equal, apart = sign * values(metric, truth, truth), sign * values(metric, truth, guess)
    if not bool((equal > apart).all()):
        return f"with higher_is_closer={metric.higher_is_closer} some guess is as close as the original itself"
    return "" if apart[0] > apart[-1] else "a guess of pure noise is as close as one that is mostly the original"


LAWS: dict[str, Callable[[ImageMetric], str]] = {
    "it has a name and a direction": _declares_name_and_direction,
    "a number for each image": _gives_a_number_for_each_image,
    "equal images are closest": _is_best_where_images_are_equal,
}
