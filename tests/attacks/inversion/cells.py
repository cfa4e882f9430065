"""A lower segment that releases patches, and the white-box attack on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import take
from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.white_box import WhiteBox
from tests.attacks.victims import answering
from tests.small import digits

BATCH = 10
Defend = Callable[[Tensor, Generator], Tensor]


IMAGES = digits(600).x
VICTIMS, AUXILIARY = IMAGES[:20], IMAGES[20:]
FLOOR = (AUXILIARY.mean(0) - VICTIMS).square().mean().item()


class Cells(nn.Module):
    """Tokens [N, 16, p²]: the pixels of p×p patches times a fixed orthogonal matrix, the same for every position."""

    def __init__(self, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        turn = torch.randn(patch**2, patch**2, generator=Generator().manual_seed(2))
        self.turn = nn.Parameter(torch.linalg.qr(turn).Q)

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch).reshape(len(x), 16, -1) @ self.turn


def drawn(*layers: Callable[[], nn.Module]) -> nn.Module:
    """A segment whose weights depend on nothing but the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*[layer() for layer in layers])


def convolution() -> nn.Module:
    return drawn(lambda: nn.Conv2d(1, 6, 3), nn.Tanh)


def plain(smashed: Tensor, draws: Generator) -> Tensor:
    return smashed


def shuffled(smashed: Tensor, draws: Generator) -> Tensor:
    return take(smashed, torch.rand(smashed.shape[:2], generator=draws).argsort(1))


def noisy(smashed: Tensor, draws: Generator) -> Tensor:
    return smashed + 0.3 * torch.randn(smashed.shape, generator=draws)


def known(lower: nn.Module, defend: Defend | None = None, auxiliary: Tensor | None = AUXILIARY) -> ImageObservation:
    asked = defend and answering(lambda images, draws: defend(lower(images), draws))
    return ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=auxiliary, query=asked, lower=lower)


def views(lower: nn.Module, defend: Defend = plain, rounds: int = 1, seed: int = 9) -> list[View]:
    draws = Generator().manual_seed(seed)
    with torch.no_grad():
        sent = [
            defend(lower(part), draws) for _ in range(rounds) for part in VICTIMS.split(BATCH if rounds == 1 else 20)
        ]
    return [View(round=i, smashed=smashed) for i, smashed in enumerate(sent)]


def run(attack: WhiteBox, lower: nn.Module, defend: Defend = plain, session: Any = None, **kept: Any) -> Reconstruction:
    knowledge = known(lower, defend, **kept)
    return attack.run(replace(knowledge, views=views(lower, defend)), Generator().manual_seed(0), session)


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


QUICK = WhiteBox(epochs=2, total_variation=0.1, l2=0.0, order="known")
