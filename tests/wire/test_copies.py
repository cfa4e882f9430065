"""Copies of a record pass the lower segments once, and nothing that comes back is another for it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Query
from privkit.defenses.base import Defense, Level, Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.cutout import RandomCutout
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.receipts import Nothing
from privkit.wire.channel import black_box_query
from tests.attacks.order.puzzles import AUXILIARY, BATCH, Projected, clients, in_full, passing

ROUNDS = 20


class Noisy(Projected):
    """Draws in eval mode, too; black images hide it."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = super().forward(images)
        return tokens * torch.rand_like(tokens)


class Summed(Projected):
    """Each token holds something of its whole batch."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = super().forward(images)
        return tokens + tokens.sum(0)


@dataclass(frozen=True, kw_only=True)
class OwnNoise(Defense):
    """A user's stage: noise on images."""

    name: ClassVar[str] = "own_noise"
    level: Level = "input"

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Every pixel gets its own."""
        noise = torch.rand(smashed.shape, generator=generator)
        return Release(smashed=(smashed + noise) / 2, labels=labels), Nothing(reason="a test")


def sent(lower: nn.Module, defense: Any, number: int = 1) -> tuple[int, list[Tensor], list[Tensor]]:
    """Images that passed the lower segments in rounds of copies, what came back, and what does if all pass."""
    edge = clients(lower, defense, number)

    def asked(query: Query) -> list[Tensor]:
        draws = Generator().manual_seed(0)
        released: list[Tensor] = []
        for part in [torch.zeros(number, 3, 32, 32), *AUXILIARY[: (ROUNDS - 1) * number].split(number)]:
            torch.manual_seed(len(released))
            released.append(query(part.repeat_interleave(BATCH, 0), draws).view.smashed)
        return [*released, draws.get_state()]

    wanted, passed = asked(in_full(edge)), passing(edge)
    found = asked(black_box_query(edge))
    return sum(passed), found, wanted


@pytest.mark.parametrize(
    ("defense", "number"),
    [
        (BatchShuffle(keep=0.4), 1),
        (BatchShuffle(keep=0.4), 2),
        (GaussianNoise(sigma=1.0), 1),  # which copies do not share
        (RandomCutout(level="input"), 1),  # of one mask a message
    ],
)
def test_copies_pass_the_lower_segments_once(defense: Any, number: int) -> None:
    """After a few rounds that compare."""
    passed, found, wanted = sent(Projected(), defense, number)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert passed == number * (ROUNDS + 4 * BATCH)


@pytest.mark.parametrize(
    ("lower", "defense"),
    [(Noisy(), BatchShuffle(keep=0.4)), (Summed(), BatchShuffle(keep=0.4)), (Projected(), OwnNoise())],
    ids=["the segment draws", "the segment sees its batch", "a stage of its own draws"],
)
def test_copies_that_differ_pass_in_full(lower: nn.Module, defense: Any) -> None:
    passed, found, wanted = sent(lower, defense)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert passed >= ROUNDS * BATCH
