"""Clients for the attack FSHA: the published networks, digits, and noise on the clients' outputs."""

from collections.abc import Callable
from pathlib import Path

import torch
from digits import shuffled_digits
from torch import Generator, Tensor, nn

SHAPE = (3, 32, 32)


Defended = Callable[[Tensor, Generator], Tensor]


class Residual(nn.Module):
    """Pre-activated residual block, whose shortcut is a convolution if the size changes."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, after, 3, stride, 1)),
            *(nn.BatchNorm2d(after), nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1)),
        )
        self.past = nn.Conv2d(before, after, 1, stride) if (before, stride) != (after, 1) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.past(x) + self.body(x)


def client(level: str, seed: int, width: int = 64, bounded: bool = False) -> nn.Module:
    """The published client of this level (at width 64); if `bounded`, it ends in a tanh."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000 + seed)
        if level == "vector":
            convolutions = (nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
            return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(4096, 256), nn.Tanh())
        one, two, four = width, 2 * width, 4 * width
        stem = (nn.Conv2d(3, one, 3, 1, 1), nn.BatchNorm2d(one), nn.ReLU(), nn.MaxPool2d(2))
        blocks = [Residual(one, one), Residual(one, two, 2), Residual(two, two), Residual(two, four, 2)]
        return nn.Sequential(*stem, *blocks[: int(level)], *[nn.Tanh()] * bounded)


def digits(root: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Private images and labels, the server's images and labels."""
    if root is None:
        batch = shuffled_digits()
        private, public = [(part.x, part.y) for part in (batch[:4_000], batch[4_000:])]
    else:
        from torchvision.datasets import MNIST

        sets = [MNIST(Path(root), train=train) for train in (True, False)]
        private, public = [(s.data.unsqueeze(1).float() / 255, s.targets) for s in sets]
    (a, b), (c, d) = private, public
    return _resized(a), b, _resized(c), d


def _resized(images: Tensor) -> Tensor:
    big = nn.functional.interpolate(images, SHAPE[1:], mode="bilinear")
    return big.expand(-1, SHAPE[0], -1, -1).contiguous()


def plain(smashed: Tensor, draws: Generator) -> Tensor:
    return smashed


def noised(sigma: float, keep: float = 1.0, scale: float = 1.0) -> Defended:
    def defended(smashed: Tensor, draws: Generator) -> Tensor:
        noise = torch.randn(smashed.shape, generator=draws, device=smashed.device)
        mask = torch.rand(smashed.shape, generator=draws, device=smashed.device) < keep
        return scale * (smashed + sigma * noise) * mask

    return defended
