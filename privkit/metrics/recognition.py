"""Recognition: whether a classifier that never saw the attacked images sees the original's class in a guess."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.scores.image import Values
from privkit.domains.base import Batch
from privkit.domains.labels import several
from privkit.errors import UsageError
from privkit.metrics.feature_networks import FeatureNetwork
from privkit.shared.seeds import derive
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.seeded import seeded

_CHANNELS = 16
_SIDE = 7
"""Side of the maps that the last layer reads, at most."""
_BATCH, _STEPS, _RATE = 64, 400, 5e-3
_JITTER = 0.1
"""Standard deviation of the noise on the images it learns from: guesses are not clean."""


def recognized(labels: Tensor, guess: Tensor, classifier: FeatureNetwork) -> Values:
    """Whether the classifier sees the original's class in its guess: 1 or 0 an image; the mean is an accuracy.

    It says little without its floors and its ceiling (`recognized_floors`).

    Args:
        labels: int64 [N], the classes of the originals.
        guess: [N, C, H, W] in [0, 1]; C is 1 or 3.
        classifier: images -> one score a class.

    Returns:
        float64 [N] of 0 and 1.

    Source: Zhang et al. 2020, "The secret revealer", §4.1 ("attack accuracy"), who judge guesses by a classifier, too.
    """
    if labels.shape != guess.shape[:1]:
        raise UsageError(f"recognized needs one class an image, got {list(labels.shape)} for {len(guess)}")
    values: Values = (classifier(guess).argmax(1) == labels.to(guess.device)).double().cpu().numpy()
    return values


def recognized_floors(truth: Tensor, labels: Tensor, classifier: FeatureNetwork) -> dict[str, float]:
    """The ceiling, which is the classifier's accuracy on the originals, and the floor of guessing another original.

    Args:
        truth: [N, C, H, W] in [0, 1], N ≥ 2.
        labels: int64 [N].
        classifier: as in `recognized`.

    Returns:
        "originals", and "other_originals": the mean over all pairs of different originals.

    Source: privkit's own.
    """
    right = torch.from_numpy(recognized(labels, truth, classifier))
    seen = classifier(truth).argmax(1).cpu()
    as_often = (seen == labels.cpu().unsqueeze(1)).sum(1)  # originals that look like each one's class
    others = (as_often - right) / max(1, len(truth) - 1)
    return {"originals": float(right.mean()), "other_originals": float(others.mean())}


def taught(known: Batch, classes: int, seed: int) -> FeatureNetwork:
    """A small convolutional network, images -> scores [N, L], trained on images that are not attacked.

    Args:
        known: labeled images, one label each.
        classes: L, how many there are.
        seed: of its weights and batches; the same seed gives the same bits.

    Raises:
        UsageError: if the records have several labels each, or there are none.
    """
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


def fitting(classifier: FeatureNetwork, known: Batch, classes: int) -> FeatureNetwork:
    """A user's classifier; a `UsageError` if it gives another number of scores, or records have several labels each."""
    _check_one_label(known)
    given = classifier(known.x[:2]).shape[1]
    if given != classes:
        raise UsageError(
            f"{classifier.label} gives {given} scores an image, but there are {classes} classes; bring a classifier of "
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
