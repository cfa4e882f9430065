"""Partitions against their laws: everything is dealt out once, sizes and proportions are what was asked."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import beta, kstest

from privkit.domains.partition import (
    PARTITIONS,
    ClientPartition,
    Dirichlet,
    Iid,
    Partition,
    epoch_order,
    largest_remainder,
    most_releases,
    rounds_an_epoch,
    stratified,
)
from privkit.errors import UsageError
from privkit.parts.registry import load, specify
from tests.small import generator

SPECS: list[Partition] = [Iid(), Dirichlet(alpha=0.1), Dirichlet(alpha=1e-6), Dirichlet(alpha=9999)]
LABELS = np.arange(1000) % 10


def counts_by_class(shares: ClientPartition, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n, classes]: images of each client and class."""
    own = [np.bincount(labels[shares.of(i).numpy()], minlength=labels.max() + 1) for i in range(len(shares.sizes))]
    return np.stack(own)


def test_every_name_is_registered_and_builds_from_options() -> None:
    assert {name: load(target).name for name, target in PARTITIONS.items()} == {"dirichlet": "dirichlet", "iid": "iid"}
    spec = specify("partition iid", Iid, json.loads('{"sizes": [1, 3]}'))
    assert spec == Iid(sizes=(1, 3))
    assert hash(spec) == hash(Iid(sizes=(1, 3)))


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@given(images=st.integers(1, 80), classes=st.integers(1, 5), clients=st.integers(1, 9), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_every_image_belongs_to_exactly_one_client(
    spec: Partition, images: int, classes: int, clients: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(classes, size=images)
    if clients > images:
        with pytest.raises(UsageError, match=f"clients={images} or fewer"):
            spec.assign(labels, clients, seed)
        return
    shares = spec.assign(torch.from_numpy(labels), clients, seed)
    dealt = torch.cat([shares.of(i) for i in range(clients)])
    assert torch.equal(dealt.sort().values, torch.arange(images))
    assert shares.sizes.min() >= 1
    assert shares.rows.shape == (clients, int(shares.sizes.max()))
    assert shares.rows.dtype == shares.sizes.dtype == torch.int64
    for row, size in zip(shares.rows.tolist(), shares.sizes.tolist(), strict=True):
        assert row == (row[:size] * len(row))[: len(row)]  # padded by its own images, cyclically
    assert shares.weights.dtype == torch.float64
    assert shares.weights.sum().item() == pytest.approx(1)
    assert torch.equal((shares.weights * images).round().long(), shares.sizes)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_same_seed_same_shares_and_other_seed_others(spec: Partition) -> None:
    first, again, other = (spec.assign(LABELS, 7, seed) for seed in (0, 0, 1))
    assert torch.equal(first.rows, again.rows)
    assert first.rows.shape != other.rows.shape or not torch.equal(first.rows, other.rows)


def test_iid_sizes_differ_by_at_most_one_or_are_what_was_asked() -> None:
    assert sorted(Iid().assign(LABELS, 7, 0).sizes.tolist()) == [142] * 1 + [143] * 6
    asked = Iid(sizes=(100, 1, 50)).assign(LABELS, 3, 0)
    assert asked.sizes.tolist() == [100, 1, 50]
    assert len(torch.cat([asked.of(i) for i in range(3)]).unique()) == 151


def test_iid_ignores_labels() -> None:
    assert torch.equal(Iid().assign(LABELS, 4, 0).rows, Iid().assign(np.zeros(1000, np.int64), 4, 0).rows)


def test_a_large_alpha_is_iid_and_a_small_one_gives_a_class_to_one_client() -> None:
    labels = np.arange(10_000) % 10
    even = counts_by_class(Dirichlet(alpha=9999).assign(labels, 10, 0), labels)
    # A share has standard deviation sqrt(.1·.9/(10·9999+1)) = 9.5e-4: of a class's 1,000 images, 0.95
    assert np.abs(even - 100).max() <= 6
    apart = counts_by_class(Dirichlet(alpha=1e-4).assign(labels, 10, 0), labels)
    assert (apart.max(0) >= 990).all()


def test_proportions_follow_the_dirichlet_law() -> None:
    """The share of one of n clients in a class is Beta(α, (n−1)α)."""
    labels = np.repeat(np.arange(400), 1000)
    counts = counts_by_class(Dirichlet(alpha=0.7).assign(labels, 4, 0), labels)
    assert np.array_equal(counts.sum(0), np.full(400, 1000))
    assert kstest(counts[2] / 1000, beta(0.7, 2.1).cdf).pvalue > 1e-3
    assert kstest(counts[2] / 1000, beta(0.4, 1.2).cdf).pvalue < 1e-3  # the test would notice another α


@pytest.mark.parametrize("smallest", [1, 5, 25])
def test_small_clients_are_topped_up(smallest: int) -> None:
    shares = Dirichlet(alpha=1e-3, smallest=smallest).assign(LABELS, 40, 3)
    assert shares.sizes.min() == smallest
    assert shares.sizes.sum() == 1000
    with pytest.raises(UsageError, match="1000 images are too few for 41 clients with at least 25"):
        Dirichlet(smallest=25).assign(LABELS, 41, 0)


def test_labels_need_not_be_dense_or_start_at_zero() -> None:
    shares = Dirichlet(alpha=9999).assign(np.array([7, 900] * 50), 2, 0)
    assert shares.sizes.tolist() == [50, 50]


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        (Dirichlet, {"alpha": 0}, "alpha must be a finite number >= 1e-06"),
        (Dirichlet, {"alpha": float("nan")}, "alpha must be a finite number >= 1e-06"),
        (Dirichlet, {"smallest": 0}, "smallest must"),
        (Iid, {"sizes": [3, 0]}, "sizes must"),
        (Iid, {"sizes": []}, "sizes must"),
    ],
)
def test_nonsense_is_refused(spec: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        spec(**options)


def test_sizes_must_fit() -> None:
    with pytest.raises(UsageError, match="names 2 clients, but there are 3"):
        Iid(sizes=(1, 2)).assign(LABELS, 3, 0)
    with pytest.raises(UsageError, match="add up to 1001"):
        Iid(sizes=(1, 1000)).assign(LABELS, 2, 0)
    with pytest.raises(ValueError, match="clients must"):
        Iid().assign(LABELS, 0, 0)


@given(
    total=st.integers(0, 200), weights=st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.01)
)
def test_largest_remainder_is_exact_and_near(total: int, weights: list[float]) -> None:
    share = np.array([weights]) / np.sum(weights)
    counts = largest_remainder(share, np.array([total]))
    assert counts.sum() == total
    assert (np.abs(counts - share * total) < 1 + 1e-9).all()


@given(fraction=st.floats(0.001, 1), seed=st.integers(0, 99))
def test_a_stratified_fraction_keeps_the_class_shares(fraction: float, seed: int) -> None:
    labels = np.repeat(np.arange(3), (500, 300, 200))
    rows = stratified(labels, fraction, seed)
    assert len(rows.unique()) == len(rows) == max(1, round(fraction * 1000))
    counts = np.bincount(labels[rows.numpy()], minlength=3)
    assert (np.abs(counts - len(rows) * np.array([0.5, 0.3, 0.2])) < 1 + 1e-9).all()


def test_a_fraction_of_all_is_all_and_of_nothing_is_refused() -> None:
    assert torch.equal(stratified(torch.from_numpy(LABELS), 1, 0), torch.arange(1000))
    assert not torch.equal(stratified(LABELS, 0.1, 0), stratified(LABELS, 0.1, 1))
    for fraction in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="fraction must"):
            stratified(LABELS, fraction, 0)


@given(clients=st.integers(1, 6), batch=st.integers(1, 7), rounds=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_an_epoch_takes_each_client_s_images_evenly(clients: int, batch: int, rounds: int, seed: int) -> None:
    shares = Dirichlet(alpha=0.3).assign(np.arange(60) % 3, clients, seed)
    order = epoch_order(shares, batch, generator(seed), rounds)
    assert order.shape == (rounds, clients, batch)
    assert order.dtype == torch.int64
    times = torch.bincount(order.flatten(), minlength=60)
    for client, size in enumerate(shares.sizes.tolist()):
        own = shares.of(client)
        assert set(order[:, client].flatten().tolist()) <= set(own.tolist())
        sent = rounds * batch
        assert times[own].min() == sent // size
        assert times[own].max() == -(-sent // size)
        if size >= batch:
            assert all(len(set(message.tolist())) == batch for message in order[:, client])
    assert times.max() == most_releases(shares, batch, rounds)


def test_an_epoch_is_drawn_afresh_and_from_its_generator_alone() -> None:
    shares = Iid().assign(LABELS, 10, 0)
    state = torch.random.get_rng_state()
    draws = generator()
    first, second = (epoch_order(shares, 10, draws, 10) for _ in range(2))
    assert torch.equal(first, epoch_order(shares, 10, generator(), 10))
    assert not torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_every_order_is_as_likely() -> None:
    """Client 1 holds 3 images beside a client of 5: its first one is uniform, whatever the padding."""
    shares = ClientPartition(rows=torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 5, 6]]), sizes=torch.tensor([5, 3]))
    draws = generator()
    firsts = torch.stack([epoch_order(shares, 1, draws, 1)[0, :, 0] for _ in range(6000)])
    for column, size, start in ((0, 5, 0), (1, 3, 5)):
        seen = torch.bincount(firsts[:, column] - start, minlength=size)
        assert (seen - 6000 / size).abs().max() < 5 * (6000 / size) ** 0.5


def test_rounds_an_epoch_says_what_to_lower() -> None:
    assert rounds_an_epoch(1000, clients=10, batch_size=50) == 2
    with pytest.raises(UsageError, match="lower batch_size or clients"):
        rounds_an_epoch(100, clients=10, batch_size=11)
    with pytest.raises(ValueError, match="rounds must"):
        epoch_order(Iid().assign(LABELS, 2, 0), 1, generator(), 0)
