"""Chains of registered defenses, and clients that run them."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.chain import Chain
from privkit.domains.images.domain import Images
from privkit.parts.registry import load, parse, part_table
from privkit.shared.certificate import Certificate
from privkit.training.clients import Clients
from privkit.training.protocol import SplitProtocol
from tests.small import generator

CLASSES, TOKENS, DIM, BATCH = 3, 16, 4, 3
DEFENSES: list[Defense] = [
    load(target)()
    for name, target in sorted(part_table("defenses").items())
    if name not in ("none", "spectral_shuffle")
] + [load(part_table("defenses")["spectral_shuffle"])()]
NAMES = [defense.name for defense in DEFENSES]
RUN = ReleaseCount(rounds=6, epochs=2, batch_size=BATCH, clients=2)


def chain(*stages: str) -> Defense:
    spec: Defense = parse("defenses", list(stages)).spec
    return spec


def claim(defense: Defense, z: Tensor, y: Tensor) -> Certificate:
    return defense.apply(z, y, generator())[1].certificate(RUN)


def inputs(defense: Defense, dtype: torch.dtype = torch.float32, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    lead = (1, defense.group, batch) if defense.group > 1 else (2, batch)
    shape = (1, 28, 28) if defense.level == "input" else (TOKENS, DIM)
    labels = torch.arange(lead[-1]).expand(lead) % CLASSES
    data = torch.rand(*lead, *shape, generator=generator(9), dtype=dtype)
    return data, one_hot(labels, CLASSES).to(dtype) if defense.soft_labels else labels


@cache
def made(first: int, second: int) -> Chain | str:
    try:
        return Chain(stages=(DEFENSES[first], DEFENSES[second]))
    except ValueError as error:
        return str(error)


def trusted_noise(defense: Defense) -> bool:
    noisy = "noises" in (defense.effects or ())
    return noisy and (defense.place != "server" or getattr(defense, "site", "") == "client")


class Patches(nn.Module):
    """Tokens from images of 8×8, without weights that matter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * images.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).movedim(1, -2).flatten(-2).flatten(1, 2)


def clients_of(*stages: str, clients: int = 2) -> Clients:
    protocol = SplitProtocol(clients=clients, grouping="random")
    return Clients.build(
        Patches(), chain(*stages), Images(shape=(1, 8, 8)), classes=CLASSES, seed=0, protocol=protocol
    ).eval()
