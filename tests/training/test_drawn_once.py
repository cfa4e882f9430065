"""Ratios that a mixing defense draws once for the whole run: what training does, and what its receipt says of it."""

from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio
from privkit.accountants.spec.parts import Mixup as MixupLaw
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.cutmix import Mixup, RandomCutMix, ShuffledCutMix, VanillaCutMix
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.training import Clients
from privkit.training.protocol import SplitProtocol

SHAPE = (1, 4, 4)
IMAGES = Images(shape=SHAPE)
MIXERS: tuple[type[Any], ...] = (DpMixSl, DpCutMixSl, Mixup, RandomCutMix, ShuffledCutMix, VanillaCutMix)


class Tokens(nn.Module):
    """A lower segment of sixteen tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1).unsqueeze(2) * self.weight


def edge(defense: Defense, seed: int = 0, grouping: Any = "fixed") -> Clients:
    protocol = SplitProtocol(clients=4, grouping=grouping)
    return Clients.build(Tokens(), defense, IMAGES, classes=3, seed=seed, protocol=protocol)


def ratios(edge: Clients, number: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Clients on their seats, their ratios and the receipt of one round."""
    draws = Generator().manual_seed(number)
    sent = edge.release(torch.rand(4, 2, *SHAPE), torch.zeros(4, 2, dtype=torch.int64), draws, number)
    assert sent.release.weights is not None
    return sent.groups, sent.release.weights.double().mean(2), sent.receipt


@pytest.mark.parametrize("defense", MIXERS)
def test_every_client_keeps_its_ratio(defense: type[Any]) -> None:
    cells = defense is VanillaCutMix  # whose boxes fill whole cells at fresh places
    kept, fresh = edge(defense(drawn="once")), edge(defense())
    groups, first, receipt = ratios(kept, 0)
    again, second, _ = ratios(kept, 1)
    assert torch.equal(groups, again)
    assert torch.allclose(first, second, atol=0.26 if cells else 1e-12)
    assert not torch.allclose(ratios(fresh, 0)[1], ratios(fresh, 1)[1])
    assert not torch.allclose(first, ratios(edge(defense(drawn="once"), seed=1), 0)[1])  # another run, other ratios
    assert any("keeps its own for all rounds" in sentence for sentence in receipt.certificate().assumptions)


def test_masks_of_kept_counts_are_fresh() -> None:
    kept = edge(DpCutMixSl(drawn="once"))
    one, two = (
        kept.release(
            torch.rand(4, 2, *SHAPE), torch.zeros(4, 2, dtype=torch.int64), Generator().manual_seed(n)
        ).release.weights
        for n in (0, 1)
    )
    assert one is not None
    assert two is not None
    assert not torch.equal(one, two)


@pytest.mark.parametrize("grouping", ["random", "round_robin"])
@pytest.mark.parametrize("defense", MIXERS)
def test_groups_that_change_are_refused(defense: type[Any], grouping: str) -> None:
    with pytest.raises(UsageError, match="use grouping=fixed"):
        edge(defense(drawn="once"), grouping=grouping)
    edge(defense(drawn="once", group=1), grouping=grouping)  # nothing is drawn
    with pytest.raises(ValueError, match="drawn must be one of"):
        defense(drawn="sometimes")


def test_the_certificate_follows() -> None:
    _, _, receipt = ratios(edge(DpMixSl(drawn="once", sigma=4.0, sigma_labels=4.0)), 0)
    run = ReleaseCount(epochs=50, rounds=50, clients=4)
    found = receipt.certificate(run)
    law = DirichletRatio(concentration=2, clients=2, drawn="once")
    expected = SplitMechanism(
        smashed=Clamp(low=0, high=0.15, dimensions=48),
        labels=OneHot(),
        noise=Noise(smashed=4.0, labels=4.0),
        lower_model="frozen",
        mixing=MixupLaw(ratio=law),
        rounds=50,
    )
    assert found.epsilon == answer.epsilon(expected, run.delta).epsilon
    assert "drawn once for all of them" in found.statement
    fresh = ratios(edge(DpMixSl(sigma=4.0, sigma_labels=4.0)), 0)[2].certificate(run)
    assert fresh.epsilon < found.epsilon
