"""A public factor takes nothing from a release, so attacks recover as much behind it."""

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.goals.reconstruct import observe
from privkit.parts.registry import parse
from tests.small import digits


class Lower(nn.Module):
    """A feature map, or tokens, times a factor."""

    def __init__(self, factor: float, *, tokens: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Conv2d(1, 24, 2, stride=2) if tokens else nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.factor, self.tokens = factor, tokens

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.map(images) * self.factor
        return made.flatten(2).transpose(1, 2) if self.tokens else made.relu()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tokens"), [("white_box:epochs=2", False), ("black_box:epochs=6", False), ("black_box:epochs=20", True)]
)
def test_small_and_large_numbers_give_away_as_much(name: str, tokens: bool) -> None:
    pool, errors = digits(320).x, {}
    for factor in (1.0, 1e-9, 1e6):
        lower = Lower(factor, tokens=tokens).eval().requires_grad_(False)
        seen = observe(lower, pool[:20], batch_size=20, auxiliary=pool[20:], known=True)
        guess = parse("attacks", name).spec.run(seen, Generator().manual_seed(0)).images
        errors[factor] = float((guess - pool[:20]).square().mean())
    mean = float((pool[20:].mean(0) - pool[:20]).square().mean())
    assert max(errors.values()) < min(0.3 * mean, 5 * errors[1.0])  # unscaled, it was 600 times that of factor 1
