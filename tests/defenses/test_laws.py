"""Every registered defense against the laws of its contract, and the shuffles against their own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Generator, Tensor

from privkit.accountants.shuffles.permutations import kept_tokens, own_image_share
from privkit.defenses import measured
from privkit.defenses.base import Defense, Release, ReleaseCount
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import Chain
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.own_receipts import trial_of
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.laws.defenses import DERIVATIVE, LAWS, STRAIGHT, called
from privkit.parts.registry import load, part_table
from tests.small import generator

DEFENSES: list[Defense] = [load(target)() for _, target in sorted(part_table("defenses").items())]


@pytest.fixture(scope="module")
def each_once() -> Iterator[None]:
    """A noise is tried behind the stages before it, which many chains share: the same stages are tried once."""
    made, tried = cache(trial_of), measured._moved_too_far
    found: dict[int, str] = {}

    def once(trial: Any) -> str:
        if id(trial) not in found:  # `made` keeps it, so no other gets its number
            found[id(trial)] = tried(trial)
        return found[id(trial)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "trial_of", lambda stages, *given: made(tuple(stages), *given))
        patch.setattr(measured, "_moved_too_far", once)
        yield


CHAINS = "no chain exceeds its charge"
TRIED = ("batch_shuffle", "dp_cutmixsl", "gaussian_noise", "laplace_noise")
"""Defenses whose chains are tried in the quick tests: what moves tokens, mixes and adds noise."""


@pytest.mark.usefixtures("each_once")
@pytest.mark.parametrize(
    ("defense", "law"),
    [
        pytest.param(
            *(defense, law),
            id=f"{defense.name}-{law}",
            marks=[pytest.mark.slow] if law == CHAINS and defense.name not in TRIED else [],
        )
        for defense in DEFENSES
        for law in LAWS
    ],
)
def test_every_defense_keeps_every_law(defense: Defense, law: str) -> None:
    assert LAWS[law](defense) == ""


@dataclass(frozen=True, kw_only=True)
class Honest(GaussianNoise):
    """A stage that lies in none of its ways, and whose subclasses each lie in one."""

    name: ClassVar[str] = "honest"
    clip: float | None = 1.0


class Forgetful(Honest):
    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        return super().apply(smashed, rest[0], Generator().manual_seed(int(torch.randint(99, ()))), *rest[2:])


class Detached(Honest):
    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        return super().apply(smashed.detach() + 0 * smashed, *rest)


class Straight(Honest):
    """It rounds, and its gradient passes as if it did not."""

    straight_through: ClassVar[bool] = True

    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        return super().apply(smashed + (smashed.round() - smashed).detach(), *rest)


class Hidden(Straight):
    straight_through: ClassVar[bool] = False


class Severed(Straight):
    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        return super().apply(smashed.detach() + 0 * smashed, *rest)


def test_a_declared_straight_through_gradient_satisfies_its_law() -> None:
    assert LAWS[DERIVATIVE](Straight()) == ""
    assert called(DERIVATIVE, Straight()) == STRAIGHT
    assert called(DERIVATIVE, Honest()) == DERIVATIVE
    assert "declare straight_through = True" in LAWS[DERIVATIVE](Hidden())
    assert LAWS[DERIVATIVE](Severed()).startswith("no finite gradient reaches the client")
    assert Chain(stages=(Straight(), PatchShuffle())).straight_through


class Quieter(Honest):
    def apply(self, smashed: Tensor, labels: Tensor, *rest: Any) -> Any:
        receipt = super().apply(smashed, labels, *rest)[1]
        return replace(self, sigma=self.sigma / 20).apply_quietly(smashed, labels, *rest), receipt

    def apply_quietly(self, *given: Any) -> Release:
        return GaussianNoise.apply(self, *given)[0]


class Taller(Honest):
    def apply(self, smashed: Tensor, labels: Tensor, *rest: Any) -> Any:
        release, receipt = super().apply(smashed, labels, *rest)
        return replace(release, smashed=release.smashed.repeat(1, 2, *[1] * (smashed.ndim - 2))), receipt


class InPlace(Honest):
    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        return super().apply(smashed.clamp_(max=0.5) if not smashed.requires_grad else smashed, *rest)


class Unmoved(PatchShuffle):
    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        release, receipt = super().apply(smashed, *rest)
        return replace(release, smashed=smashed), receipt


class Reordered(PatchShuffle):
    def apply(self, smashed: Tensor, *rest: Any) -> Any:
        release, receipt = super().apply(smashed, *rest)
        return release, replace(receipt, source=receipt.source.flip(1))


@pytest.mark.parametrize(
    ("lie", "law"),
    [
        (Forgetful, "same seed, same bits; another seed, other bits"),
        (Forgetful, "global randomness and inputs stay as they are"),
        (InPlace, "global randomness and inputs stay as they are"),
        (Detached, "the gradient that reaches the client is the derivative"),
        (Taller, "a row and a label for each record"),
        (Quieter, "the receipt says what was done"),
        (Reordered, "the receipt says what was done"),
        (Unmoved, "what it permutes moves"),
    ],
)
def test_a_law_finds_who_breaks_it(lie: type[Defense], law: str) -> None:
    assert LAWS[law](Honest() if issubclass(lie, Honest) else PatchShuffle()) == ""
    assert LAWS[law](lie())


SHUFFLES = [
    PatchShuffle(),
    *[BatchShuffle(keep=keep) for keep in (0.0, 0.4, 1.0)],
    BatchShuffle(variant="algorithm_2"),
    BatchShuffle(variant="kept_in_place"),
]


@pytest.mark.parametrize("defense", SHUFFLES, ids=str)
def test_shuffles_are_bijections_of_every_message(defense: Defense) -> None:
    z = torch.arange(3 * 7 * 10, dtype=torch.float32).view(3, 7, 10, 1)
    released = defense.apply(z, torch.zeros(3, 7), generator())[0].smashed
    assert torch.equal(released.flatten(1).sort(1).values, z.flatten(1))
    assert not torch.equal(released, z)


def test_one_message_draws_what_it_always_drew() -> None:
    n, t, kept = 4, 10, 4
    z = torch.rand(n, t, 3, generator=generator(5))

    def uniform(draws: Generator) -> Tensor:
        return torch.rand(n, t, generator=draws, dtype=torch.float64).argsort(1)

    shuffled = z.gather(1, uniform(generator()).unsqueeze(2).expand(-1, -1, 3))
    assert torch.equal(PatchShuffle().apply(z[None], torch.zeros(1, n), generator())[0].smashed[0], shuffled)

    draws = generator()
    rows = uniform(draws) + t * torch.arange(n).unsqueeze(1)
    pool = rows[:, kept:].flatten()
    dealt = pool[torch.randperm(len(pool), generator=draws)].view(n, t - kept)
    source = torch.cat([rows[:, :kept], dealt], 1).gather(1, uniform(draws))
    release, receipt = BatchShuffle(keep=0.4).apply(z[None], torch.zeros(1, n), generator())
    assert torch.equal(receipt.source[0], source)
    assert torch.equal(release.smashed[0], z.flatten(0, 1)[source])


@given(m=st.integers(1, 3), n=st.integers(1, 8), t=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_patch_shuffle_stays_inside_each_image(m: int, n: int, t: int, seed: int) -> None:
    z = torch.arange(m * n * t, dtype=torch.float32).view(m, n, t, 1)
    release, receipt = PatchShuffle().apply(z, torch.zeros(m, n), generator(seed))
    assert torch.equal(release.smashed, z.gather(2, receipt.permutation.unsqueeze(-1)))
    assert torch.equal(release.smashed.sort(2).values, z)


@given(
    m=st.integers(1, 3),
    n=st.integers(2, 8),
    t=st.integers(1, 20),
    percent=st.integers(0, 100),
    seed=st.integers(0, 2**32),
)
def test_batch_shuffle_keeps_at_least_what_it_promises(m: int, n: int, t: int, percent: int, seed: int) -> None:
    z = torch.arange(m * n * t, dtype=torch.float32).view(m, n, t, 1)
    release, receipt = BatchShuffle(keep=percent / 100).apply(z, torch.zeros(m, n), generator(seed))
    assert torch.equal(release.smashed, z.flatten(0, 2)[receipt.source])
    own = (receipt.source // t == torch.arange(m * n).view(m, n, 1)).sum(2)
    assert receipt.kept == kept_tokens(t, percent / 100)
    assert (own >= receipt.kept).all()


@pytest.mark.parametrize(("batch", "tokens", "keep"), [(50, 196, 0.4), (8, 16, 0.4), (4, 20, 0.25), (2, 10, 0.0)])
def test_own_image_share_follows_its_law(batch: int, tokens: int, keep: float) -> None:
    draws, rounds = generator(), 30 if tokens == 196 else 300
    z, y = torch.zeros(2, batch, tokens, 1), torch.zeros(2, batch)
    shares = [BatchShuffle(keep=keep).apply(z, y, draws)[1].own_image_share for _ in range(rounds)]
    expected = own_image_share(tokens, batch, kept_tokens(tokens, keep))
    error = np.std(shares, ddof=1) / rounds**0.5
    assert abs(np.mean(shares) - expected) < 4.5 * error  # two-sided odds of 7e-6


def test_every_permutation_of_an_image_is_equally_likely() -> None:
    rounds = 12_000
    z = torch.arange(4.0).view(1, 1, 4, 1).expand(2, rounds // 2, 4, 1)
    released = PatchShuffle().apply(z, torch.zeros(2, rounds // 2), generator())[0].smashed.view(rounds, 4).long()
    orders = {order: i for i, order in enumerate(permutations(range(4)))}
    seen = np.bincount([orders[tuple(row)] for row in released.tolist()], minlength=24)
    assert chisquare(seen).pvalue > 1e-4


def test_pooled_tokens_go_to_every_image_and_place_alike() -> None:
    rounds = 3_000  # as messages of one call
    _, receipt = BatchShuffle(keep=0.5).apply(torch.zeros(rounds, 3, 4, 1), torch.zeros(rounds, 3), generator())
    first = 12 * torch.arange(rounds).view(rounds, 1, 1)
    seen = (receipt.source == first).sum(0)  # where token 0 of image 0 of every message went
    assert int(seen.sum()) == rounds
    foreign, own = seen[1:].flatten().numpy(), seen[0].numpy()
    assert chisquare(foreign).pvalue > 1e-4
    assert chisquare(own).pvalue > 1e-4
    assert own.sum() / rounds == pytest.approx(0.5 + 0.5 / 3, abs=0.04)


def test_receipts_charge_the_message_that_was_mixed_and_not_the_round() -> None:
    _, receipt = BatchShuffle(keep=0.4).apply(torch.zeros(3, 5, 16, 1), torch.zeros(3, 5), generator())
    certificate = receipt.certificate(ReleaseCount(clients=3, batch_size=5, rounds=7, epochs=7))
    assert certificate.quantities["own_image_share"] == pytest.approx(own_image_share(16, 5, 6))
    assert certificate.quantities == receipt.certificate().quantities
    assert any("the run makes 7 of every image" in sentence for sentence in certificate.assumptions)
    assert not any("of every image" in sentence for sentence in receipt.certificate().assumptions)


def test_a_batch_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of one mixes nothing"):
        BatchShuffle().apply(torch.zeros(3, 1, 4, 2), torch.zeros(3, 1), generator())


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle()], ids=lambda d: d.name)
def test_feature_maps_are_refused(defense: Defense) -> None:
    with pytest.raises(ValueError, match="needs tokens"):
        defense.apply(torch.zeros(1, 4, 3, 2, 2), torch.zeros(1, 4), generator())


@pytest.mark.parametrize("keep", [-0.1, 1.5, float("nan")])
def test_keep_must_be_a_share(keep: float) -> None:
    with pytest.raises(ValueError, match="keep must be a finite number >= 0 and <= 1"):
        BatchShuffle(keep=keep)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_a_planted_bias_would_be_found(seed: int) -> None:
    """The uniformity test above has power: a shuffle that never moves token 0 fails it."""
    rows = torch.rand(2_000, 3, generator=generator(seed)).argsort(1) + 1
    biased = torch.cat([torch.zeros(2_000, 1, dtype=torch.int64), rows], 1).numpy()
    orders = {order: i for i, order in enumerate(permutations(range(4)))}
    seen = np.bincount([orders[tuple(row)] for row in biased.tolist()], minlength=24)
    assert chisquare(seen).pvalue < 1e-4
