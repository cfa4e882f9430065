"""Pictures in pieces, shuffled by their clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import torch
from PIL import Image, ImageOps
from torch import Generator, Tensor

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.patches import patchify

BATCH = 5
T = 16


def crops(count: int, seed: int) -> Tensor:
    """Color crops of 32×32 pixels from three bundled pictures."""
    folder = Path(skimage.__file__).parent / "data"
    rng, found = np.random.default_rng(seed), []
    for name in ("chelsea.png", "coffee.png", "astronaut.png"):
        picture = np.asarray(ImageOps.fit(Image.open(folder / name).convert("RGB"), (160, 160)))
        for top, left in rng.integers(0, 128, (-(-count // 3), 2)):
            found.append(picture[top : top + 32, left : left + 32])
    return torch.from_numpy(np.stack(found)[rng.permutation(len(found))[:count]]).permute(0, 3, 1, 2).float() / 255


IMAGES = crops(120, 0)
VICTIMS, AUXILIARY = IMAGES[:10], IMAGES[10:]
WEIGHT = torch.randn(192, 64, generator=Generator().manual_seed(3)) / 8


def pixels(images: Tensor) -> Tensor:
    return patchify(images, 8)


class Pixels(torch.nn.Module):
    """The identity as a lower segment."""

    def forward(self, images: Tensor) -> Tensor:
        return pixels(images)


def projected(images: Tensor) -> Tensor:
    """Fewer numbers than pixels: the patch can only be guessed at."""
    return pixels(images) @ WEIGHT


def shuffled(images: Tensor, draws: Generator, lower: Any = pixels, keep: float = 1.0) -> tuple[Tensor, Tensor]:
    """One message under patch (keep=1) or batch shuffling, and where its tokens came from."""
    b, kept = len(images), int(keep * T)
    own = torch.rand(b, T, generator=draws).argsort(1) + T * torch.arange(b).unsqueeze(1)
    pool = own[:, kept:].flatten()
    dealt = pool[torch.randperm(len(pool), generator=draws)].view(b, -1)
    source = torch.cat([own[:, :kept], dealt], 1)
    source = source.gather(1, torch.rand(b, T, generator=draws).argsort(1))
    return lower(images).flatten(0, 1)[source], source


def scene(lower: Any = pixels, keep: float = 1.0) -> tuple[list[View], Tensor, ImageObservation]:
    draws = Generator().manual_seed(9)
    sent = [shuffled(part, draws, lower, keep) for part in VICTIMS.split(BATCH)]
    views = [View(round=i, smashed=smashed) for i, (smashed, _) in enumerate(sent)]

    def query(images: Tensor, draws: Generator) -> QueryResult:
        view = View(round=0, smashed=shuffled(images, draws, lower, keep)[0])
        return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))

    knowledge = ImageObservation(image_shape=(3, 32, 32), batch_size=BATCH, auxiliary=AUXILIARY, query=query)
    return views, torch.cat([source for _, source in sent]), knowledge


def run(attack: Jigsaw, views: list[View], knowledge: ImageObservation) -> Reconstruction:
    return attack.run(replace(knowledge, views=views), Generator().manual_seed(0))


def guess(found: Reconstruction) -> Tensor:
    assert found.permutation is not None
    return found.permutation.source


def score(measure: Any, found: Reconstruction, truth: Tensor) -> float:
    return float(measure(guess(found), truth, batch=BATCH).mean())


def score_over_seeds(
    measure: Any, attack: Jigsaw, views: list[View], knowledge: ImageObservation, truth: Tensor
) -> float:
    """Ten images are few: networks of other seeds differ by a tenth and more."""
    found = [attack.run(replace(knowledge, views=views), Generator().manual_seed(seed)) for seed in range(3)]
    return sum(score(measure, one, truth) for one in found) / 3
