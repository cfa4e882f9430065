"""Pictures of masked and mixed data: the papers' defenses, applied to two images and to their smashed data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Generator, Tensor

from privkit.defenses.base import Defense
from privkit.domains.images.domain import Images
from privkit.models.vit import Vit
from privkit.parts.registry import parse
from privkit.torch_utils.patches import unpatchify

_PATCH, _CLASSES = 4, 10


def mixed_pictures(methods: Mapping[str, str]) -> Figure:
    """Draw what mixing defenses release of two digits: the digits, then one picture for each defense in `methods`.

    `methods` maps titles to texts of defenses. The first row shows the defenses on images, the second on smashed data.
    Smashed data are the tokens of an untrained patch embedding with positions. A token has as many numbers as a patch
    has pixels, so it is drawn as pixels at the place of its patch.

    Source: DP-CutMixSL Figs. 5 and 12, CutMixSL Figs. 4 and 10.
    """
    images = _two_digits()
    side = images.shape[-1]
    embedding = Vit(patch=_PATCH, width=_PATCH**2, heads=1, depth=1, cut="embedding")
    lower = embedding.build(Images(shape=(1, side, side)), _CLASSES, positions=True, seed=0).lower
    with torch.no_grad():
        tokens = lower(images)
    drawn = [("first", images[0], tokens[0]), ("second", images[1], tokens[1])]
    for title, text in methods.items():
        defense: Defense = parse("defenses", text).spec
        sent = _message(defense, tokens)
        drawn.append((title, _message(_on_images(defense), images), sent))
    figure = Figure(figsize=(1.25 * len(drawn), 2.9), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(drawn), squeeze=False)
    for column, (title, image, smashed) in enumerate(drawn):
        picture = unpatchify(smashed.unsqueeze(0), _PATCH, (1, side, side))[0]
        low, high = tokens.quantile(0.01).item(), tokens.quantile(0.99).item()
        axes[0, column].imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)
        axes[1, column].imshow(picture[0].numpy(), cmap="gray", vmin=low, vmax=high)
        axes[0, column].set_title(title, fontsize=7)
    for axis, label in zip(axes[:, 0], ("images", "smashed data"), strict=True):
        axis.set_ylabel(label, fontsize=8)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    return figure


def _two_digits() -> Tensor:
    pool = parse("datasets", "digits").spec.open(None, download=False, train_images=2).train
    labels = pool.targets()
    images: Tensor = pool.take(np.array([0, int(np.flatnonzero(labels != labels[0])[0])])).x
    return images


def _on_images(defense: Defense) -> Defense:
    """The same defense on images, with squares as large as a token's patch, and values kept in the range of images."""
    options = {"level": "input", "patch": _PATCH, "bound": 1.0, "signed": False}
    own = {field.name for field in fields(defense)}  # type: ignore[arg-type]
    return replace(defense, **{name: value for name, value in options.items() if name in own})  # type: ignore[type-var]


def _message(defense: Defense, data: Tensor) -> Tensor:
    labels = torch.eye(_CLASSES)[:2].unsqueeze(1)
    sent, given = data.unsqueeze(1), labels if defense.soft_labels else torch.arange(2).unsqueeze(1)
    if defense.group > 1:
        sent, given = sent.unsqueeze(0), given.unsqueeze(0)
    return defense.apply(sent, given, Generator().manual_seed(1))[0].smashed[0, 0]
