"""DP-SGD of the lower segment: opacus' gradients, one record's influence, and what is charged for it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, PrivateUpdates
from privkit.accountants.spec.sensitivity import Clamp
from privkit.defenses import NoDefense
from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.cutmix import Mixup
from privkit.defenses.dp_cutmixsl import DpSl
from privkit.defenses.nopeek import NoPeek
from privkit.domains.images.domain import Images
from privkit.domains.partition import ClientPartition
from privkit.errors import UsageError
from privkit.shared.certificate import Certificate
from privkit.training import Clients, SplitProtocol, TrainingSpec, split_round, train
from privkit.training.costs import client_costs
from privkit.training.loop import release_count
from privkit.training.private import clipped_sums, private_gradients, run_certificate
from tests.small import random_images

SHAPE = (1, 4, 4)
SPEC = TrainingSpec(batch_size=6, private=True, clip=1.0, noise=1.0)


class Patches(nn.Module):
    """Four tokens per image, with attention among them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.embed(images.flatten(1).unflatten(1, (4, 4))))
        looks = (self.query(tokens) @ tokens.transpose(1, 2)).softmax(2)
        return tokens + looks @ self.value(tokens)


class Last(nn.Module):
    """A recurrent layer over the four rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 8, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        states: Tensor = self.cells(rows.unflatten(1, (4, 4)))[0][:, -1]
        return states


SEGMENTS = {
    "tokens": (Patches, nn.Sequential(nn.Flatten(), nn.Linear(32, 3))),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 3)),
    ),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh()), nn.Linear(5, 3)),
}


def clients(lower: nn.Module, defense: Defense | None = None, count: int = 1) -> Clients:
    protocol = SplitProtocol(clients=count)
    return Clients.build(lower, defense or NoDefense(), Images(shape=SHAPE), classes=3, seed=0, protocol=protocol)


@pytest.mark.parametrize("kind", SEGMENTS)
def test_gradients_of_every_record_are_those_of_opacus(kind: str) -> None:
    from opacus import GradSampleModule

    torch.manual_seed(0)
    make, upper = SEGMENTS[kind]
    lower, data = make(), random_images(6, 3, SHAPE)
    reference = GradSampleModule(nn.Sequential(lower, upper), loss_reduction="mean")
    nn.functional.cross_entropy(reference(data.x), data.y).backward()
    expected = {name: weight.grad_sample for name, weight in reference._module[0].named_parameters()}
    reference.zero_grad()
    reference.remove_hooks()

    edge = clients(lower)
    with edge.lowers.records() as weights:
        split_round(edge, upper, data.x.unsqueeze(0), data.y.unsqueeze(0), Generator().manual_seed(0))
    assert set(weights) == set(expected)
    for name, weight in weights.items():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad[0] * len(data), expected[name], atol=1e-6, rtol=1e-6)

    norms = torch.stack([value.flatten(1).norm(dim=1) for value in expected.values()]).norm(dim=0)
    clip = float(norms.median())  # so that some are clipped and some are not
    private = replace(SPEC, clip=clip, noise=1e-9)
    with private_gradients(edge, private, Generator().manual_seed(0)):
        split_round(edge, upper, data.x.unsqueeze(0), data.y.unsqueeze(0), Generator().manual_seed(0))
    scale = (clip / norms).clamp(max=1)
    for name, weight in edge.lowers.module.named_parameters():
        assert weight.grad is not None
        wanted = torch.einsum("b,b...->...", scale, expected[name]) / len(data)
        torch.testing.assert_close(weight.grad[0], wanted, atol=1e-6, rtol=1e-5)


def test_every_client_clips_its_own_records() -> None:
    """Two clients at once are each alone: the other one's images do not move a client's gradient."""
    torch.manual_seed(0)
    make, upper = SEGMENTS["tokens"]
    lower, data = make(), random_images(12, 3, SHAPE)
    together = clients(lower, count=2)
    quiet = replace(SPEC, clip=0.05, noise=1e-9)
    x, y = data.x.view(2, 6, *SHAPE), data.y.view(2, 6)
    with private_gradients(together, quiet, Generator().manual_seed(0)):
        split_round(together, upper, x, y, Generator().manual_seed(0))
    for number in range(2):
        alone = clients(lower)
        with private_gradients(alone, quiet, Generator().manual_seed(0)):
            split_round(alone, upper, x[number : number + 1], y[number : number + 1], Generator().manual_seed(0))
        for both, one in zip(together.lowers.parameters(), alone.lowers.parameters(), strict=True):
            assert both.grad is not None
            assert one.grad is not None
            torch.testing.assert_close(both.grad[number], one.grad[0], atol=1e-7, rtol=1e-4)


def test_one_record_moves_a_sum_by_at_most_twice_the_norm() -> None:
    draws, reached = Generator().manual_seed(0), 0.0
    for size, clip in ((1e-3, 0.7), (1.0, 0.7), (1e4, 0.7), (1e-22, 1e-25)):
        whole = {
            name: size * torch.randn(1, 5, *shape, generator=draws) for name, shape in (("w", (3, 2)), ("b", (3,)))
        }
        other = {name: value.clone() for name, value in whole.items()}
        for value in other.values():
            value[0, 2] *= -3
        one, two = clipped_sums(whole, clip), clipped_sums(other, clip)
        moved = float(torch.cat([(one[name] - two[name]).double().flatten() for name in whole]).norm())
        assert moved <= 2 * clip
        reached = max(reached, moved / clip)
    assert reached > 1.99


def test_the_noise_is_as_loud_as_it_says() -> None:
    lower = nn.Sequential(nn.Flatten(), nn.Linear(16, 2000))
    edge, upper, spec = clients(lower), nn.Linear(2000, 3), replace(SPEC, clip=2.0, noise=3.0)
    nn.init.zeros_(upper.weight)  # no gradient arrives: what is left is the noise
    data = random_images(6, 3, SHAPE)
    with private_gradients(edge, spec, Generator().manual_seed(0)):
        split_round(edge, upper, data.x.unsqueeze(0), data.y.unsqueeze(0), Generator().manual_seed(0))
    gradient = next(iter(edge.lowers.parameters())).grad
    assert gradient is not None
    assert float(gradient.std()) == pytest.approx(2.0 * 3.0 / 6, rel=0.02)  # 32,000 draws: 5 standard errors
    assert abs(float(gradient.mean())) < 0.03


def test_training_is_private_and_repeats_itself() -> None:
    data, weights = random_images(24, 3, SHAPE), []
    for noise in (1.0, 1.0, 2.0):
        torch.manual_seed(0)
        lower = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
        edge, upper = clients(lower, DpSl(), count=2), nn.Linear(5, 3)
        trained = train(edge, upper, data, replace(SPEC, noise=noise), epochs=2, seed=0)
        weights.append(next(iter(edge.lowers.parameters())).detach().clone())
        assert trained.release_count.lower_model == PrivateUpdates(noise_multiplier=noise / 2, steps=2)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_updates_are_charged_as_they_ran() -> None:
    edge = clients(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), count=2)
    rows = torch.arange(24).view(2, 12)
    equal = ClientPartition(rows=rows, sizes=torch.tensor([12, 12]))
    count = release_count(edge, SPEC, equal, epochs=5, recorded=random_images(12, 3, SHAPE), passes=3)
    assert count.lower_model == PrivateUpdates(noise_multiplier=0.5, steps=5)  # one step an epoch uses a record
    assert count.epochs == 8  # and the passes that are recorded release it, without an update
    assert count.copies == 1
    few = ClientPartition(rows=rows, sizes=torch.tensor([4, 20]))
    count = release_count(edge, SPEC, few, epochs=5)
    assert count.lower_model == PrivateUpdates(noise_multiplier=0.25, steps=15)  # a record may be in a batch twice
    assert count.copies == 2
    twice = random_images(12, 3, SHAPE)
    again = replace(twice, ids=twice.ids % 4)
    assert release_count(edge, SPEC, equal, epochs=5, recorded=again, passes=3).copies == 3
    assert release_count(edge, SPEC, equal, epochs=0, recorded=random_images(12, 3, SHAPE)).lower_model == "frozen"


def test_releases_and_updates_have_one_epsilon() -> None:
    edge, data = (
        clients(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), DpSl(sigma=2.0, sigma_labels=None)),
        random_images(6, 3, SHAPE),
    )
    receipt = edge.release(data.x.unsqueeze(0), data.y.unsqueeze(0), Generator().manual_seed(0)).receipt
    updates = PrivateUpdates(noise_multiplier=2.0, steps=4)
    run = ReleaseCount(rounds=40, epochs=5, batch_size=6, lower_model=updates)
    found = run_certificate(receipt.certificate(run), run, SPEC)
    assert (found.kind, found.unit, found.relation) == ("differential_privacy", "record", "replace_one")
    frozen = receipt.certificate(replace(run, lower_model="frozen"))
    assert max(frozen.epsilon, found.quantities["updates_epsilon"]) < found.epsilon
    assert found.epsilon < frozen.epsilon + found.quantities["updates_epsilon"]
    clip = Clamp(low=0, high=DpSl().bound or 0.0, dimensions=5)
    both = SplitMechanism(smashed=clip, noise=Noise(smashed=2.0), lower_model=updates, rounds=5)
    assert found.epsilon == answer.epsilon(both, run.delta).epsilon
    assert found.quantities["updates_of_one_record"] == 4
    assert "of the smashed data and the updates, given the labels" in found.statement


def test_noisy_updates_alone_prove_nothing() -> None:
    edge, data = clients(nn.Sequential(nn.Flatten(), nn.Linear(16, 5))), random_images(6, 3, SHAPE)
    receipt = edge.release(data.x.unsqueeze(0), data.y.unsqueeze(0), Generator().manual_seed(0)).receipt
    run = ReleaseCount(lower_model=PrivateUpdates(noise_multiplier=2.0, steps=4))
    found = run_certificate(receipt.certificate(run), run, SPEC)
    assert found.kind == "nothing"
    assert any("noisy updates alone prove nothing" in sentence for sentence in found.assumptions)
    assert found.quantities["updates_epsilon"] == pytest.approx(4.3772, abs=1e-4)  # four steps of μ = 1/2


@pytest.mark.parametrize(
    ("lower", "defense", "count", "sentence"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), NoDefense(), 1, "without batch statistics, but 1 is"),
        (nn.Conv2d(1, 2, 3), NoPeek(), 1, "adds a loss over whole batches"),
        (nn.Conv2d(1, 2, 3), Mixup(level="input"), 2, "mixes images of several clients"),
        (nn.Sequential(nn.Flatten(), Last()), NoDefense(), 1, "torch cannot evaluate this lower segment"),
    ],
    ids=["batch statistics", "penalty", "mixed images", "recurrent"],
)
def test_what_cannot_be_private_is_refused(lower: nn.Module, defense: Any, count: int, sentence: str) -> None:
    upper = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(UsageError, match=sentence):
        train(clients(lower, defense, count), upper, random_images(24, 3, SHAPE), SPEC, epochs=1, seed=0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"private": True}, "needs clip and noise"),
        ({"private": True, "noise": 1.0}, "needs clip and noise"),
        ({"clip": 1.0}, "clip belong to private training; add private=true"),
        ({"private": True, "clip": 0.0, "noise": 1.0}, "clip must be a finite number >= 1e-09"),
        ({"private": True, "clip": 1.0, "noise": float("nan")}, "noise must be a finite number >= 1e-09"),
        ({"private": True, "clip": 1.0, "noise": 1.0, "freeze_lower": True}, "choose one"),
    ],
)
def test_half_a_specification_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainingSpec(**options)


def test_choosing_the_best_epoch_takes_a_claim_away_unless_noise_covers_the_choice() -> None:
    proven = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5)
    best = TrainingSpec(keep="best_test")  # like "best", it asks raw data which epoch it is
    updates = PrivateUpdates(noise_multiplier=2.0, steps=4)
    kinds = {
        lower: run_certificate(proven, ReleaseCount(lower_model=lower), best).kind
        for lower in ("frozen", "trained", updates)
    }
    assert kinds == {"frozen": proven.kind, "trained": "nothing", updates: proven.kind}
    trained = run_certificate(proven, ReleaseCount(lower_model="trained"), TrainingSpec())
    assert replace(trained, assumptions=proven.assumptions) == proven
    assert "in queries or when the task is measured, may reveal more" in trained.assumptions[-1]
    assert run_certificate(replace(proven, covers="labels"), ReleaseCount(), best).kind == "nothing"


def test_gradients_of_every_record_count_as_memory() -> None:
    edge, data = clients(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), count=2), random_images(12, 3, SHAPE)
    plain = replace(SPEC, private=False, clip=None, noise=None)
    peaks = [client_costs(edge, data, spec, rounds_an_epoch=1, seed=0).peak_memory for spec in (SPEC, plain)]
    assert peaks[0] - peaks[1] == 4 * 6 * (16 * 5 + 5)  # float32, for six records of a client
