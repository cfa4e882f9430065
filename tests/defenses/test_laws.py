"""Every defense against its own declared law."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Generator

from privkit.accountants.permutations import kept_tokens, own_image_share
from privkit.defenses import BatchShuffle, NoDefense, PatchShuffle
from privkit.defenses.base import Defense
from privkit.registry import load, table

DEFENSES: list[Defense] = [load(target)() for target in table("defenses").values()]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: d.name)
def test_same_seed_same_bits_and_other_seed_other_bits(defense: Defense) -> None:
    z, y = torch.rand(6, 9, 4), torch.arange(6)
    first, again, other = (defense.apply(z, y, generator(seed))[0].smashed for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert isinstance(defense, NoDefense) or not torch.equal(first, other)


@pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: d.name)
def test_leaves_the_global_generator_alone(defense: Defense) -> None:
    state = torch.random.get_rng_state()
    defense.apply(torch.rand(4, 9, 4, generator=generator()), torch.arange(4), generator())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: d.name)
def test_gradient_through_the_defense_is_the_derivative(defense: Defense) -> None:
    z = torch.rand(3, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: defense.apply(t, torch.arange(3), generator())[0].smashed.tanh(), (z,))


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle(), BatchShuffle(keep=0.0), BatchShuffle(keep=1.0)])
def test_shuffles_are_bijections_of_the_batch(defense: Defense) -> None:
    z = torch.arange(7 * 10, dtype=torch.float32).view(7, 10, 1)
    released = defense.apply(z, torch.arange(7), generator())[0].smashed
    assert torch.equal(released.flatten().sort().values, z.flatten())


@given(n=st.integers(1, 8), t=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_patch_shuffle_stays_inside_each_image(n: int, t: int, seed: int) -> None:
    z = torch.arange(n * t, dtype=torch.float32).view(n, t, 1)
    release, receipt = PatchShuffle().apply(z, torch.arange(n), generator(seed))
    assert torch.equal(release.smashed, z.gather(1, receipt.permutation.unsqueeze(-1)))
    assert torch.equal(release.smashed.sort(1).values, z)


@given(n=st.integers(2, 8), t=st.integers(1, 20), percent=st.integers(0, 100), seed=st.integers(0, 2**32))
def test_batch_shuffle_keeps_at_least_what_it_promises(n: int, t: int, percent: int, seed: int) -> None:
    z = torch.arange(n * t, dtype=torch.float32).view(n, t, 1)
    release, receipt = BatchShuffle(keep=percent / 100).apply(z, torch.arange(n), generator(seed))
    assert torch.equal(release.smashed, z.flatten(0, 1)[receipt.source])
    own = (receipt.source // t == torch.arange(n).unsqueeze(1)).sum(1)
    assert receipt.kept == kept_tokens(t, percent / 100)
    assert (own >= receipt.kept).all()


@pytest.mark.parametrize(("batch", "tokens", "keep"), [(50, 196, 0.4), (8, 16, 0.4), (4, 20, 0.25), (2, 10, 0.0)])
def test_own_image_share_follows_its_law(batch: int, tokens: int, keep: float) -> None:
    draws, rounds = generator(), 60 if tokens == 196 else 600
    z, y = torch.zeros(batch, tokens, 1), torch.zeros(batch)
    shares = [BatchShuffle(keep=keep).apply(z, y, draws)[1].own_image_share for _ in range(rounds)]
    expected = own_image_share(tokens, batch, kept_tokens(tokens, keep))
    error = np.std(shares, ddof=1) / rounds**0.5
    assert abs(np.mean(shares) - expected) < 4.5 * error  # two-sided odds of 7e-6


def test_every_permutation_of_an_image_is_equally_likely() -> None:
    rounds = 12_000
    z = torch.arange(4.0).view(1, 4, 1).expand(rounds, 4, 1)
    released = PatchShuffle().apply(z, torch.zeros(rounds), generator())[0].smashed.squeeze(-1).long().numpy()
    orders = {order: i for i, order in enumerate(permutations(range(4)))}
    seen = np.bincount([orders[tuple(row)] for row in released.tolist()], minlength=24)
    assert chisquare(seen).pvalue > 1e-4


def test_pooled_tokens_go_to_every_image_and_place_alike() -> None:
    draws, seen = generator(), torch.zeros(3, 4)
    for _ in range(3_000):
        _, receipt = BatchShuffle(keep=0.5).apply(torch.zeros(3, 4, 1), torch.zeros(3), draws)
        seen += (receipt.source == 0).float()  # where token 0 of image 0 went
    foreign = seen[1:].flatten().numpy()
    own = seen[0].numpy()
    assert chisquare(foreign).pvalue > 1e-4
    assert chisquare(own).pvalue > 1e-4
    assert own.sum() / 3_000 == pytest.approx(0.5 + 0.5 / 3, abs=0.04)


def test_receipts_charge_what_was_mixed() -> None:
    _, receipt = BatchShuffle(keep=0.4).apply(torch.zeros(5, 16, 1), torch.zeros(5), generator())
    certificate = receipt.certificate()
    assert certificate.quantities["own_image_share"] == pytest.approx(own_image_share(16, 5, 6))


def test_a_batch_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of one mixes nothing"):
        BatchShuffle().apply(torch.zeros(1, 4, 2), torch.zeros(1), generator())


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle()], ids=lambda d: d.name)
def test_feature_maps_are_refused(defense: Defense) -> None:
    with pytest.raises(ValueError, match="needs tokens"):
        defense.apply(torch.zeros(4, 3, 2, 2), torch.zeros(4), generator())


@pytest.mark.parametrize("keep", [-0.1, 1.5, float("nan")])
def test_keep_must_be_a_share(keep: float) -> None:
    with pytest.raises(ValueError, match="keep must lie in"):
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
