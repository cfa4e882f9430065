"""Perceptual, identity and recognition metrics, one value per image, by networks that the user names."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.scores.image import Values
from privkit.domains.base import Batch, several
from privkit.errors import DataError, UsageError, one_line
from privkit.metrics.feature_networks import FeatureNetwork, hash_weights
from privkit.shared.seeds import derive
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.seeded import seeded

_CHUNK = 1_000
_LPIPS_SIDE = 64  # smaller images vanish in LPIPS's pooling layers


def f_sim(truth: Tensor, guess: Tensor, network: FeatureNetwork) -> Values:
    """Feature similarity of each of N images: |cosine| of the features of original and guess, [N] in [0, 1].

    Even unrelated pictures have values far above 0; `f_sim_floors` gives such reference values.

    Source: Yao et al., patch shuffling, §V-A ("F-SIM"), with the absolute value of the authors' repository.
    """
    return _values((_unit(network(truth)) * _unit(network(guess))).sum(1).abs())


def f_sim_floors(truth: Tensor, labels: Tensor, network: FeatureNetwork) -> dict[str, float]:
    """Reference values for `f_sim`: its mean over pairs of different originals, by "same_class" and "other_class".

    A guess whose score is not higher reveals at most the class of the image. A key without pairs is left out.

    Source: privkit's own, for F-SIM as in `f_sim`.
    """
    features = _unit(network(truth)).double()
    labels = labels.to(features.device)
    sums, counts = features.new_zeros(2), features.new_zeros(2)
    for rows in torch.arange(len(features), device=features.device).split(_CHUNK):
        cosines = (features[rows] @ features.T).abs()
        same = labels[rows, None] == labels
        other_image = rows[:, None] != torch.arange(len(features), device=features.device)
        for place, pairs in enumerate((same & other_image, ~same)):
            sums[place] += cosines[pairs].sum()
            counts[place] += pairs.sum()
    floors = zip(("same_class", "other_class"), sums.tolist(), counts.tolist(), strict=True)
    return {name: total / count for name, total, count in floors if count}


def identity(truth: Tensor, guess: Tensor, network: FeatureNetwork) -> Values:
    """Whether a guess identifies its original, 1 or 0 for each of N images.

    A guess counts if its own original is, by cosine, the nearest of all originals (rank-1 identification). A random
    guess counts with probability 1/N.

    Source: Yao et al., patch shuffling, §V-A ("ID"). The authors train a classifier on every person of the dataset;
    here the nearest original is used instead.
    """
    gallery = _unit(network(truth)).T
    nearest = torch.cat([(chunk @ gallery).argmax(1) for chunk in _unit(network(guess)).split(_CHUNK)])
    return _values(nearest == torch.arange(len(truth), device=nearest.device))


def lpips(truth: Tensor, guess: Tensor, net: str = "alex") -> Values:
    """LPIPS distance of each guess from its original, [N]; lower is closer, and 0 is a copy.

    Images below 64 pixels per side are enlarged first. Results must report the trunk `net` with the version, 0.1.

    Source: Zhang et al. 2018, "The unreasonable effectiveness of deep features as a perceptual metric".
    """
    model = _lpips_model(net).to(truth.device)
    with torch.no_grad():
        distances = [
            model(_lpips_input(a), _lpips_input(b)) for a, b in zip(truth.split(64), guess.split(64), strict=True)
        ]
    return _values(torch.cat(distances).flatten())


def lpips_weights(net: str) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of LPIPS's weights, for provenance; `net` is the trunk."""
    return hash_weights(_lpips_model(net))[:12]


@cache
def _lpips_model(net: str) -> Any:
    try:
        from lpips import LPIPS
    except ImportError:
        raise DataError("LPIPS needs the package lpips: pip install 'privkit-sl[lpips]', or leave it out") from None
    try:
        return LPIPS(net=net, verbose=False).eval().requires_grad_(False)
    except Exception as error:  # torchvision's downloads raise errors of their own
        raise DataError(
            f"the weights of LPIPS's trunk {net} cannot be had: {one_line(error)}; put torchvision's file into its "
            "cache (TORCH_HOME), or take F-SIM with a network that is at hand"
        ) from None


def _lpips_input(images: Tensor) -> Tensor:
    images = images.float().expand(-1, 3, -1, -1)
    smallest = min(images.shape[2:])
    if smallest < _LPIPS_SIDE:
        images = functional.interpolate(images, scale_factor=_LPIPS_SIDE / smallest, mode="bilinear")
    return 2 * images - 1


def _unit(features: Tensor) -> Tensor:
    return functional.normalize(features, dim=1)


def _values(values: Tensor) -> Values:
    result: NDArray[np.float64] = values.double().cpu().numpy()
    return result


_CHANNELS = 16
_SIDE = 7  # largest side of the maps that the last layer reads
_BATCH, _STEPS, _RATE = 64, 400, 5e-3
_JITTER = 0.1  # standard deviation of the noise on training images, since guesses are noisy, too


def recognized(labels: Tensor, guess: Tensor, classifier: FeatureNetwork) -> Values:
    """Whether the classifier assigns the class of the original (`labels` [N]) to each guess, 1 or 0: [N].

    `recognized_floors` gives reference values, from unrelated images and from the originals.

    Source: Zhang et al. 2020, "The secret revealer", §4.1 ("attack accuracy"), who judge guesses by a classifier, too.
    """
    values: Values = (classifier(guess).argmax(1) == labels.to(guess.device)).double().cpu().numpy()
    return values


def recognized_floors(truth: Tensor, labels: Tensor, classifier: FeatureNetwork) -> dict[str, float]:
    """Reference values for `recognized`. "originals" is its mean if each guess is the original itself, and
    "other_originals" if each guess is another original, averaged over all pairs.

    Source: privkit's own.
    """
    right = torch.from_numpy(recognized(labels, truth, classifier))
    seen = classifier(truth).argmax(1).cpu()
    as_often = (seen == labels.cpu().unsqueeze(1)).sum(1)  # for each label, how many originals are recognized as it
    others = (as_often - right) / max(1, len(truth) - 1)
    return {"originals": float(right.mean()), "other_originals": float(others.mean())}


def taught(known: Batch, classes: int, seed: int) -> FeatureNetwork:
    """Train a small convolutional classifier on labeled images that are not attacked. It maps N images to scores [N, L]
    of L = `classes` classes."""
    _check_one_label(known)
    if not len(known):
        raise UsageError("classifier is trained on auxiliary images, and there are none; raise the budget's auxiliary")
    with seeded(torch.device("cpu"), derive(seed, "classifier")):
        network = _network(known.x, classes)
    network.to(known.x.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE)
    schedule = one_cycle(optimizer, _RATE, _STEPS)
    draws = Generator().manual_seed(derive(seed, "classifier", "batches"))
    for _ in range(_STEPS):
        rows = torch.randint(len(known), (min(_BATCH, len(known)),), generator=draws).to(known.x.device)
        images = known.x[rows].float().expand(-1, 3, -1, -1)
        jitter = _JITTER * torch.randn(images.shape, generator=draws).to(images.device)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network((images + jitter).clamp(0, 1)), known.y[rows]).backward()
        optimizer.step()
        schedule.step()
    network.eval().requires_grad_(False)
    return FeatureNetwork(label=f"classifier of {len(known)} auxiliary images", body=network)


def check_classifier(classifier: FeatureNetwork, known: Batch, classes: int) -> FeatureNetwork:
    """Return the user's classifier. Raises `UsageError` if it does not return one score for each of `classes`, or if
    records have several labels."""
    _check_one_label(known)
    given = classifier(known.x[:2]).shape[1]
    if given != classes:
        raise UsageError(
            f"{classifier.label} gives {given} scores per image, but there are {classes} classes; bring one of "
            "these classes, or take classifier, which is trained on the auxiliary images"
        )
    return classifier


def _check_one_label(known: Batch) -> None:
    if several(known.y):
        raise UsageError(
            "a classifier names one class an image, and these records have several labels each; leave it out"
        )


def _network(images: Tensor, classes: int) -> nn.Module:
    height, width = (min(_SIDE, max(1, side // 4)) for side in images.shape[2:])
    return nn.Sequential(
        nn.Conv2d(3, _CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(_CHANNELS, 2 * _CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d((height, width)),
        nn.Flatten(),
        nn.Linear(2 * _CHANNELS * height * width, classes),
    )
