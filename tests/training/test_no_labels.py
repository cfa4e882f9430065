"""A user's stage that reads labels learns nothing from those of queries and of test images."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense, Effect, Release
from privkit.defenses.confusional_labels import ConfusionalLabels
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.receipts import Nothing
from privkit.training import evaluate
from privkit.wire.channel import black_box_query
from tests.defenses.chains import DEFENSES, NAMES, inputs
from tests.small import built, digits, generator


@dataclass(frozen=True, kw_only=True)
class Spy(Defense):
    """It releases plain data with labels, and nothing if all labels of a message are 0."""

    name: ClassVar[str] = "spy"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
        told = smashed if bool((labels != 0).any()) else 0 * smashed
        return Release(smashed=told, labels=labels), Nothing(reason="it is a spy")


@dataclass(frozen=True, kw_only=True)
class Teller(Spy):
    """It releases the label itself."""

    name: ClassVar[str] = "teller"

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
        told = torch.zeros_like(smashed) + labels.view(*labels.shape, *[1] * (smashed.ndim - 2))
        return Release(smashed=told, labels=labels), Nothing(reason="it is a spy")


class Reader(nn.Module):
    """It scores the class that a teller releases."""

    def forward(self, smashed: Tensor) -> Tensor:
        return nn.functional.one_hot(smashed.flatten(1)[:, 0].round().long().clamp(0, 9), 10).float()


def test_a_query_carries_labels_of_several_classes() -> None:
    edge, _ = built(Spy())
    images = digits(20).x
    answers = [black_box_query(edge)(images, generator(seed)).view for seed in (0, 0, 1)]
    plain = edge.lowers(images.unsqueeze(0))[0]
    assert all(torch.equal(view.smashed, plain) for view in answers)
    assert answers[0].labels is None


def test_labels_of_queries_follow_from_the_generator_and_differ_between_states() -> None:
    edge, _ = built(Teller())
    images = digits(20).x
    one, again, other = (black_box_query(edge)(images, generator(seed)).view.smashed for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("defense", [GaussianNoise(), PatchShuffle(), ConfusionalLabels()])
def test_a_stage_that_reads_no_labels_releases_the_same_bits(defense: Defense) -> None:
    edge, _ = built(defense)
    edge.eval()
    images, draws, told = digits(20).x, generator(3), generator(3)
    view = black_box_query(edge)(images, draws).view
    zeros = torch.zeros(1, 20, dtype=torch.int64)
    with torch.no_grad():
        assert torch.equal(view.smashed, edge.release(images[None], zeros, told).release.smashed[0])
    assert torch.equal(draws.get_state(), told.get_state())


@pytest.mark.parametrize("defense", DEFENSES, ids=NAMES)
def test_no_defense_of_privkit_releases_other_smashed_data_with_other_labels(defense: Defense) -> None:
    z, y = inputs(defense)
    one, other = (defense.apply(z, labels, generator())[0].smashed for labels in (y, y.roll(1, -1)))
    assert torch.equal(one, other)


def test_a_stage_that_releases_labels_is_no_better_than_chance_on_test_images() -> None:
    edge, _ = built(Teller())
    images = digits(500)
    images.y[:] = images.y.sort().values
    assert evaluate(edge, Reader(), images, batch_size=50, seed=0).accuracy.value < 0.3
