"""Perceptual and identity metrics, one value an image, by a feature network that the user names."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from privkit.attacks.scores.image import Values
from privkit.errors import DataError, UsageError, one_line
from privkit.metrics.feature_networks import FeatureNetwork, hash_weights

CHUNK = 1_000
_LPIPS_SIDE = 64  # smaller pictures vanish in its poolings


def f_sim(truth: Tensor, guess: Tensor, network: FeatureNetwork) -> Values:
    """Feature similarity an image: |cosine| of the features of an original and its guess; higher is closer.

    It says little without its floors (`f_sim_floors`): unrelated pictures are far from 0.

    Args:
        truth: [N, C, H, W] in [0, 1].
        guess: the same shape.
        network: of features.

    Returns:
        float64 [N], in [0, 1]; 0 where all features are 0.

    Source: Yao et al., patch shuffling, §V-A ("F-SIM"), with the absolute value of the authors' repository.

    >>> network = FeatureNetwork(label="pixels", body=lambda x: x[:, 0].flatten(1))
    >>> f_sim(torch.eye(2).view(2, 1, 1, 2), torch.tensor([[2.0, 0.0], [1.0, 0.0]]).view(2, 1, 1, 2), network)
    array([1., 0.])
    """
    _same_shape(truth, guess)
    return _values((_unit(network(truth)) * _unit(network(guess))).sum(1).abs())


def f_sim_floors(truth: Tensor, labels: Tensor, network: FeatureNetwork) -> dict[str, float]:
    """Mean |cosine| over all pairs of different originals of one class, and of different classes.

    A guess that scores no more than these has told of the picture no more than its class, or nothing.

    Args:
        truth: [N, C, H, W] in [0, 1].
        labels: int64 [N].
        network: of features.

    Returns:
        "same_class" and "other_class"; one without a pair is left out.

    Source: privkit's own, for F-SIM as in `f_sim`.

    >>> network = FeatureNetwork(label="pixels", body=lambda x: x[:, 0].flatten(1))
    >>> images = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).view(3, 1, 1, 2)
    >>> f_sim_floors(images, torch.tensor([0, 0, 1]), network)
    {'same_class': 1.0, 'other_class': 0.0}
    """
    if labels.shape != truth.shape[:1]:
        raise UsageError(f"the floors of F-SIM need a label an image, got {list(labels.shape)} for {len(truth)}")
    features = _unit(network(truth)).double()
    labels = labels.to(features.device)
    sums, counts = features.new_zeros(2), features.new_zeros(2)
    for rows in torch.arange(len(features), device=features.device).split(CHUNK):
        cosines = (features[rows] @ features.T).abs()
        same = labels[rows, None] == labels
        other_image = rows[:, None] != torch.arange(len(features), device=features.device)
        for place, pairs in enumerate((same & other_image, ~same)):
            sums[place] += cosines[pairs].sum()
            counts[place] += pairs.sum()
    floors = zip(("same_class", "other_class"), sums.tolist(), counts.tolist(), strict=True)
    return {name: total / count for name, total, count in floors if count}


def identity(
    truth: Tensor,
    guess: Tensor,
    network: FeatureNetwork,
    *,
    people: Tensor | None = None,
    threshold: float | None = None,
) -> Values:
    """Whether a guess gives its original away: 1 or 0 an image; the mean is the share of identities.

    Without a threshold it is rank-1 identification: the guess is looked up among all originals by cosine, and counts
    where the nearest one is its own, or of the same person where `people` tells who is who. The floor of a guess at
    random is 1/N, or the sum of the people's squared shares. With a threshold it is verification: the guess counts
    where its features lie within that Euclidean distance of its original's (dlib's own threshold is 0.6), which needs
    a floor of its own: the share of pairs of different people within it.

    Args:
        truth: [N, C, H, W] in [0, 1].
        guess: the same shape.
        network: of features; for people's identities one for faces.
        people: int64 [N], the person on each original.
        threshold: > 0, or None for rank-1.

    Returns:
        float64 [N] of 0 and 1.

    Source: Yao et al., patch shuffling, §V-A ("ID"), whose network is a classifier trained on every person of the data
    set; the nearest original stands for it here, so that no classifier need be trained. King 2017 for dlib's threshold.

    >>> network = FeatureNetwork(label="pixels", body=lambda x: x[:, 0].flatten(1))
    >>> truth = torch.eye(3).view(3, 1, 1, 3)
    >>> identity(truth, truth[[0, 2, 2]], network)
    array([1., 0., 1.])
    >>> identity(truth, truth[[0, 2, 2]], network, people=torch.tensor([0, 1, 1]))
    array([1., 1., 1.])
    >>> identity(truth, truth[[0, 2, 2]], network, threshold=0.5)
    array([1., 0., 1.])
    """
    _same_shape(truth, guess)
    if people is not None and threshold is not None:
        raise UsageError("identity takes people (rank-1) or a threshold (verification), got both")
    if people is not None and people.shape != truth.shape[:1]:
        raise UsageError(f"identity needs a person an image, got {list(people.shape)} for {len(truth)}")
    if threshold is not None and not threshold > 0:
        raise UsageError(f"threshold must be > 0, a Euclidean distance of features, got {threshold}")
    originals, guesses = network(truth), network(guess)
    if threshold is not None:
        return _values((originals - guesses).norm(dim=1) <= threshold)
    gallery = _unit(originals).T
    nearest = torch.cat([(chunk @ gallery).argmax(1) for chunk in _unit(guesses).split(CHUNK)])
    who = torch.arange(len(truth)) if people is None else people
    who = who.to(nearest.device)
    return _values(who[nearest] == who)


def lpips(truth: Tensor, guess: Tensor, net: str = "alex") -> Values:
    """LPIPS distance an image; lower is closer, 0 for a copy. Pictures below 64 pixels a side are enlarged first.

    Args:
        truth: [N, C, H, W] in [0, 1]; C is 1 or 3.
        guess: the same shape.
        net: "alex", "vgg" or "squeeze"; to be stated in the row with the version, 0.1.

    Raises:
        DataError: without the package `lpips`, or where the weights of its trunk (torchvision's) cannot be had.

    Source: Zhang et al. 2018, "The unreasonable effectiveness of deep features as a perceptual metric".
    """
    _same_shape(truth, guess)
    if net not in ("alex", "vgg", "squeeze"):
        raise UsageError(f"the trunk of LPIPS must be alex, vgg or squeeze, got {net!r}")
    model = _lpips_model(net).to(truth.device)
    with torch.no_grad():
        distances = [
            model(_lpips_input(a), _lpips_input(b)) for a, b in zip(truth.split(64), guess.split(64), strict=True)
        ]
    return _values(torch.cat(distances).flatten())


def lpips_weights(net: str) -> str:
    """First digits of the SHA-256 of LPIPS's weights, for what a row is made of.

    Args:
        net: "alex", "vgg" or "squeeze".

    Raises:
        DataError: as `lpips`.
    """
    return hash_weights(_lpips_model(net))[:12]


@cache
def _lpips_model(net: str) -> Any:
    """The network of the package `lpips`."""
    try:
        from lpips import LPIPS
    except ImportError:
        raise DataError(
            "LPIPS needs the package lpips: pip install 'privkit[lpips]', or leave this metric out"
        ) from None
    try:
        return LPIPS(net=net, verbose=False).eval().requires_grad_(False)
    except Exception as error:  # torchvision's downloads raise errors of their own
        raise DataError(
            f"the weights of LPIPS's trunk {net} cannot be had: {one_line(error)}; put torchvision's file into its "
            "cache (TORCH_HOME), or take F-SIM with a network that is at hand"
        ) from None


def _lpips_input(images: Tensor) -> Tensor:
    """Images in [−1, 1], in color and large enough."""
    images = images.float().expand(-1, 3, -1, -1)
    smallest = min(images.shape[2:])
    if smallest < _LPIPS_SIDE:
        images = functional.interpolate(images, scale_factor=_LPIPS_SIDE / smallest, mode="bilinear")
    return 2 * images - 1


def _same_shape(truth: Tensor, guess: Tensor) -> None:
    """Refuse what cannot be compared."""
    if truth.shape != guess.shape or truth.ndim != 4:
        raise UsageError(f"need two tensors [N, C, H, W] of one shape, got {list(truth.shape)} and {list(guess.shape)}")


def _unit(features: Tensor) -> Tensor:
    """Features of length 1; zeros stay zeros."""
    return functional.normalize(features, dim=1)


def _values(values: Tensor) -> Values:
    """float64 on the CPU."""
    result: NDArray[np.float64] = values.double().cpu().numpy()
    return result
