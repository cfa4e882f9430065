"""Digits of 8×8, and a small network that trains on them."""

import numpy as np
from torch import nn

from privkit.defenses.base import Defense
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.models import VIT_MICRO
from privkit.training import Clients, SplitProtocol, Stacked

SHAPE = (1, 8, 8)
IMAGES = Images(shape=SHAPE)


def digits(count: int = 120) -> Batch:
    pool = TinyDigits().open(None, download=False, train_images=count).train
    return pool.take(np.random.default_rng(0).permutation(len(pool))[:count])


def built(defense: Defense, protocol: SplitProtocol, seed: int = 0) -> tuple[Clients, nn.Module]:
    model = VIT_MICRO.build(IMAGES, 10, positions=defense.positions, seed=seed)
    edge = Clients.build(model.lower, defense, IMAGES, classes=10, seed=seed, protocol=protocol)
    return edge, Stacked(model.upper, protocol.clients) if protocol.upper == "own" else model.upper
