"""Images to attack, and queries that return the release of each image."""

from pathlib import Path
from typing import Any

import numpy as np
import skimage
import torch
from PIL import Image, ImageOps
from torch import Generator, Tensor

from privkit.attacks.base import Query, QueryResult, View


def answering(release: Any) -> Query:
    """A query whose answer holds one released row per image, in the order that was sent."""

    def query(images: Tensor, draws: Generator) -> QueryResult:
        members = torch.arange(len(images)).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=release(images, draws)), members=members)

    return query


def crops(count: int, seed: int = 0) -> Tensor:
    """Color crops of 32×32 pixels from three bundled pictures."""
    folder = Path(skimage.__file__).parent / "data"
    rng, found = np.random.default_rng(seed), []
    for name in ("chelsea.png", "coffee.png", "astronaut.png"):
        picture = np.asarray(ImageOps.fit(Image.open(folder / name).convert("RGB"), (160, 160)))
        for top, left in rng.integers(0, 128, (-(-count // 3), 2)):
            found.append(picture[top : top + 32, left : left + 32])
    return torch.from_numpy(np.stack(found)[rng.permutation(len(found))[:count]]).permute(0, 3, 1, 2).float() / 255
