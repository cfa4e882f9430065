"""The test for places finds what tells them, also what starts at zero, and accuses nothing else."""

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.domains.images.domain import Images
from privkit.models.imported import hides_places, told_places
from privkit.models.vit import VIT_MICRO, VIT_TINY

SHAPE = (3, 32, 32)
IMAGES = Images(shape=SHAPE)


class Patches(nn.Module):
    """A patch embedding, with something behind it."""

    def __init__(self, behind: nn.Module | None = None, *, kernel: int = 8, columns_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 24, kernel, 8, padding=(kernel - 8) // 2)
        self.behind, self.columns_first = behind or nn.Identity(), columns_first

    def forward(self, images: Tensor) -> Tensor:
        maps = self.embed(images)
        tokens = (maps.transpose(2, 3) if self.columns_first else maps).flatten(2).transpose(1, 2)
        found: Tensor = self.behind(tokens)
        return found


class Plus(nn.Module):
    """Adds something to every token."""

    def __init__(self, added: Any, *, learned: bool) -> None:
        super().__init__()
        self.added = nn.Parameter(added) if learned else added

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.added


class WithToken(nn.Module):
    """Puts tokens beside the others: the mean of all in front, `behind` constants, or the first one again."""

    def __init__(self, *, first: bool = False, behind: int = 0, size: float = 1.0) -> None:
        super().__init__()
        self.first, self.behind, self.size = first, behind, size

    def forward(self, tokens: Tensor) -> Tensor:
        front = self.size * (tokens[:, :1] if self.first else tokens.mean(1, keepdim=True))
        return torch.cat([front, tokens, torch.ones(len(tokens), self.behind, tokens.shape[2])], 1)


class Constant(nn.Module):
    """Tokens that tell nothing but their places."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.arange(16.0).view(1, 16, 1).expand_as(tokens)


class Noise(nn.Module):
    """Draws noise, also in eval mode."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + torch.randn_like(tokens)


def block(dropout: float = 0.0) -> nn.Module:
    return nn.TransformerEncoderLayer(24, 4, 48, dropout=dropout, batch_first=True, norm_first=True)


@pytest.mark.parametrize(
    ("lower", "hidden"),
    [
        (Patches(), True),
        (Patches(columns_first=True), True),
        (Patches(nn.Sequential(block(), block(dropout=0.2), nn.LayerNorm(24))), True),
        (Patches(Plus(torch.zeros(24), learned=True)), True),
        (Patches(Plus(torch.zeros(16, 24), learned=True)), False),
        (Patches(Plus(0.02 * torch.randn(1, 16, 24), learned=True)), False),
        (Patches(Plus(0.1 * torch.arange(16.0)[:, None], learned=False)), False),
        (Patches(nn.LayerNorm((16, 24))), False),
        (Patches(nn.BatchNorm1d(16, affine=False)), False),
        (Patches(Plus(1000.0, learned=False)), True),
        (Patches(Plus(1000 + 0.1 * torch.arange(16.0)[:, None], learned=False)), False),
        (Patches(kernel=12), False),
        (Patches(WithToken(first=True)), None),
        (Patches(Constant()), None),
        (Patches(Noise()), None),
        (nn.Conv2d(3, 8, 8, 8), None),
        (nn.Linear(5, 5), None),
    ],
    ids=lambda value: str(value) if isinstance(value, bool | None) else "",
)
def test_places(lower: nn.Module, hidden: bool | None) -> None:
    assert hides_places(lower, IMAGES) is hidden


@pytest.mark.parametrize("spec", [VIT_MICRO, VIT_TINY])
@pytest.mark.parametrize("cut", ["embedding", "block1", "block4"])
def test_the_built_in_models_say_the_truth(spec: Any, cut: str) -> None:
    from dataclasses import replace

    for positions in (False, True):
        split = replace(spec, cut=cut).build(IMAGES, 10, positions=positions, seed=0)
        assert split.hides_places is hides_places(split.lower, IMAGES) is not positions


PLACED = Plus(0.02 * torch.randn(16, 24, generator=Generator().manual_seed(0)), learned=False)


@pytest.mark.parametrize(
    ("lower", "domain", "found"),
    [
        (Patches(WithToken()), IMAGES, (True, 1)),
        (Patches(nn.Sequential(WithToken(behind=4), block())), IMAGES, (True, 5)),
        (Patches(WithToken(behind=8)), IMAGES, (None, 0)),  # more than eight others
        (Patches(nn.Sequential(PLACED, WithToken())), IMAGES, (None, 0)),
        (Patches(nn.Sequential(PLACED, WithToken(size=1e6))), IMAGES, (None, 0)),
        (Patches(), Images(shape=(3, 16, 40)), (True, 0)),  # two rows of five patches
        (Patches(nn.Sequential(WithToken(), block())), Images(shape=(3, 16, 40)), (True, 1)),
    ],
    ids=str,
)
def test_tokens_beside_the_patches(lower: nn.Module, domain: Images, found: tuple[bool | None, int]) -> None:
    """They are counted where places are hidden, and hide no position of the others, however large they are."""
    assert told_places(lower, domain) == found


def test_the_segment_and_the_generator_are_left_alone() -> None:
    lower = Patches(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(16)))
    before, state = [value.clone() for value in lower.state_dict().values()], torch.random.get_rng_state()
    assert hides_places(lower, IMAGES) is False
    assert lower.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, lower.state_dict().values(), strict=True))
