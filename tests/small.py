"""Small things that many tests share: settings, a generator, images, and a network that trains on them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, nn

from privkit.defenses.base import Defense
from privkit.domains.base import Batch, DatasetSpec
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.models.vit import VIT_MICRO, Vit
from privkit.training import Clients, SplitProtocol, Stacked

SMALL: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke", "threads": 1}
"""Settings of an audit that takes a few seconds."""
SHAPE = (1, 8, 8)
IMAGES = Images(shape=SHAPE)


def timeless(results: Path) -> list[dict[str, Any]]:
    """The lines of `results.jsonl` without the fields that differ between equal runs: seconds and checksum."""
    rows = map(json.loads, results.read_text("utf-8").splitlines())
    return [{name: value for name, value in row.items() if name not in ("seconds", "sha256")} for row in rows]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def digits(count: int = 120, dataset: DatasetSpec | None = None) -> Batch:
    """The first images of a shuffled set; digits of 8×8 unless another one is named."""
    pool = (dataset or TinyDigits()).open(None, download=False, train_images=count).train
    return pool.take(np.random.default_rng(0).permutation(len(pool))[:count])


def random_images(count: int, classes: int, shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> Batch:
    """Random pixels in [0, 1], with labels 0, 1, … in turn."""
    x, numbers = torch.rand(count, *shape, generator=generator(seed)), torch.arange(count)
    return Batch(x=x, y=numbers % classes, ids=numbers)


def built(defense: Defense, protocol: SplitProtocol | None = None, seed: int = 0) -> tuple[Clients, nn.Module]:
    """Clients and their server, with a transformer of two blocks; one client unless a protocol says more."""
    protocol = protocol or SplitProtocol()
    model = VIT_MICRO.build(IMAGES, 10, positions=defense.position_embedding, seed=seed)
    edge = Clients.build(model.lower, defense, IMAGES, classes=10, seed=seed, protocol=protocol)
    return edge, Stacked(model.upper, protocol.clients) if protocol.upper == "own" else model.upper


def fitted(defense: Defense, protocol: SplitProtocol | None = None) -> tuple[Clients, nn.Module]:
    """Clients whose first block is the lower segment, and the server that fits what their defense releases."""
    model = Vit(patch=4, width=16, depth=2, heads=2, cut="block1").build(IMAGES, 10, positions=True, seed=0)
    edge = Clients.build(model.lower, defense, IMAGES, classes=10, seed=0, protocol=protocol or SplitProtocol())
    return edge, edge.fitted(model.upper, IMAGES, 0)
