"""The assignment of images to clients, and the order in which clients use their images in an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Protocol

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Generator, Tensor

from privkit.constraints import Checked, Count, real, whole
from privkit.errors import UsageError

_Rows = NDArray[np.int64]


class Partition(Protocol):
    """A frozen specification of which client gets which images."""

    name: ClassVar[str]

    def assign(self, labels: _Rows | Tensor, clients: int, seed: int) -> ClientPartition:
        """Distribute images with labels [N] over n ≥ 1 clients; raises `UsageError` if there are too few images."""


@dataclass(frozen=True, kw_only=True)
class Iid(Checked):
    """Distributes images at random, independently of their labels.

    By default, clients' numbers of images differ by at most one.

    Attributes:
        sizes: number of images of each client; images beyond their sum stay unused. None means equal numbers.

    Source: CutMixSL §4 (all clients hold equally many images, chosen at random).

    >>> Iid().assign(np.zeros(10), clients=4, seed=0).sizes.tolist()
    [3, 3, 2, 2]
    """

    name: ClassVar[str] = "iid"

    sizes: Sequence[Count] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes == ():
            raise ValueError("sizes must be whole numbers >= 1, one per client, got []")

    def assign(self, labels: _Rows | Tensor, clients: int, seed: int) -> ClientPartition:
        images = len(labels)
        _require(images, clients, 1)
        if self.sizes is None:
            sizes = images // clients + (np.arange(clients) < images % clients)
        else:
            sizes = np.array(self.sizes, dtype=np.int64)
            if len(sizes) != clients:
                raise UsageError(f"sizes names {len(sizes)} clients, but there are {clients}; give one size a client")
            if sizes.sum() > images:
                raise UsageError(f"sizes add up to {sizes.sum()}, more than the {images} images; lower them")
        order = np.random.default_rng(seed).permutation(images)
        return _table(order[: sizes.sum()], sizes)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Checked):
    """Each class is divided over the clients in proportions drawn from a symmetric Dirichlet distribution.

    Attributes:
        alpha: concentration α_D > 0 of the Dirichlet distribution. With a small value, each client has few classes; the
            papers use 9,999 for the IID case.
        smallest: smallest number of images that a client may have; a client with fewer takes images from the largest
            client.

    Source: DP-CutMixSL §5 and Fig. 11b (α_D). The paper gives only α_D; dividing each class over the clients follows
    Yurochkin et al. 2019.

    >>> shares = Dirichlet(alpha=0.1).assign(np.arange(60) % 3, clients=4, seed=0)
    >>> shares.sizes.tolist(), int(shares.sizes.sum())
    ([1, 11, 38, 10], 60)
    """

    name: ClassVar[str] = "dirichlet"

    # outside this range, float64 gammas vanish or overflow
    alpha: Annotated[float, Ge(1e-6), Le(1e9), "9999 is as good as IID"] = 0.5
    smallest: Count = 1

    def assign(self, labels: _Rows | Tensor, clients: int, seed: int) -> ClientPartition:
        _require(len(labels), clients, self.smallest)
        draws = np.random.default_rng(seed)
        classes, members = np.unique(_on_host(labels), return_inverse=True)
        proportions = draws.dirichlet(np.full(clients, self.alpha), size=len(classes))
        counts = largest_remainder(proportions, np.bincount(members))
        shuffled = draws.permutation(len(members))
        by_class = shuffled[np.argsort(members[shuffled], kind="stable")]
        owner = np.empty(len(members), dtype=np.int64)
        owner[by_class] = np.repeat(np.tile(np.arange(clients), len(classes)), counts.ravel())
        _repair(owner, clients, self.smallest)
        order = shuffled[np.argsort(owner[shuffled], kind="stable")]  # a client's images are in random order, too
        return _table(order, np.bincount(owner, minlength=clients))


PARTITIONS: dict[str, str] = {
    "dirichlet": "privkit.domains.partition:Dirichlet",
    "iid": "privkit.domains.partition:Iid",
}
"""Name -> "module:object" of every partition."""


def largest_remainder(proportions: NDArray[np.float64], totals: _Rows) -> _Rows:
    """Divide each total into n whole numbers that sum to the total and are nearest to the proportions: int64 [rows, n].
    `proportions` [rows, n] are ≥ 0, and each row sums to one; `totals` is [rows].
    """
    exact = proportions * totals[:, None]
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    rounded: _Rows = counts + (rank < (totals - counts.sum(1))[:, None])
    return rounded


def stratified(labels: _Rows | Tensor, fraction: float, seed: int) -> Tensor:
    """Draw a random fraction in (0, 1] of the records, at least one, with unchanged shares of classes, for example the
    10 % of the images that an attacker knows. Returns ascending indices, int64.

    Source: CutMixSL, Table 3 (reconstruction from 10 % and from 100 % of the training set).
    """
    real("fraction", fraction, above=0, most=1)
    members = np.unique(_on_host(labels), return_inverse=True)[1]
    sizes = np.bincount(members)
    quotas = largest_remainder(sizes[None] / len(members), np.array([max(1, round(fraction * len(members)))]))[0]
    shuffled = np.random.default_rng(seed).permutation(len(members))
    by_class = shuffled[np.argsort(members[shuffled], kind="stable")]
    rank = np.arange(len(members)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return torch.from_numpy(np.sort(by_class[rank < np.repeat(quotas, sizes)]))


def _on_host(labels: _Rows | Tensor) -> _Rows:
    """Labels [N] as a numpy array; if records have several labels, each combination counts as a class."""
    values = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    return np.unique(values, axis=0, return_inverse=True)[1].ravel() if values.ndim == 2 else values


def _require(images: int, clients: int, smallest: int) -> None:
    whole("clients", clients)
    if clients * smallest > images:
        raise UsageError(
            f"{images} images are too few for {clients} clients with at least {smallest} each; bring more images or "
            f"use clients={max(1, images // smallest)} or fewer"
        )


def _repair(owner: _Rows, clients: int, smallest: int) -> None:
    """Move images one by one, in place, from the largest client to the smallest until all have `smallest` images."""
    sizes = np.bincount(owner, minlength=clients)
    while sizes.min() < smallest:
        giver, taker = int(sizes.argmax()), int(sizes.argmin())
        owner[np.flatnonzero(owner == giver)[-1]] = taker
        sizes[giver] -= 1
        sizes[taker] += 1


def _table(order: _Rows, sizes: _Rows) -> ClientPartition:
    starts = np.cumsum(sizes) - sizes
    rows = order[starts[:, None] + np.arange(sizes.max()) % sizes[:, None]]
    return ClientPartition(rows=torch.from_numpy(rows), sizes=torch.from_numpy(sizes.astype(np.int64)))


@dataclass(frozen=True, kw_only=True)
class ClientPartition:
    """The images that each of n clients holds, as indices into the batch of all private images; clients share no image.

    >>> shares = ClientPartition(rows=torch.tensor([[2, 2, 2], [0, 3, 1]]), sizes=torch.tensor([1, 3]))
    >>> shares.weights.tolist(), shares.of(0).tolist()
    ([0.25, 0.75], [2])
    """

    rows: Tensor  # int64 [n, most images of a client]; clients with fewer images repeat them cyclically
    sizes: Tensor  # int64 [n], images of each client, ≥ 1

    @property
    def weights(self) -> Tensor:
        """Each client's share of all images that clients hold, float64 [n]."""
        return self.sizes.double() / self.sizes.sum()

    def of(self, client: int) -> Tensor:
        """Indices of the images of one client, int64 [sizes[client]]."""
        return self.rows[client, : int(self.sizes[client])]

    def to(self, device: torch.device) -> ClientPartition:
        return ClientPartition(rows=self.rows.to(device), sizes=self.sizes.to(device))


def rounds_an_epoch(images: int, clients: int, batch_size: int) -> int:
    """The number of rounds in which each image is sent about once: ⌊images / (n·B)⌋ for n clients, B = `batch_size`.
    Raises `UsageError` if there are fewer images than one round needs.
    """
    rounds = images // (clients * batch_size)
    if rounds == 0:
        raise UsageError(
            f"{clients} clients with batch_size={batch_size} send {clients * batch_size} images per round; there are "
            f"{images}; lower batch_size or clients"
        )
    return rounds


def most_releases(shares: ClientPartition, batch_size: int, rounds: int) -> int:
    """The largest number of times that an epoch sends one image: ⌈rounds · batch_size / images of the smallest client⌉.
    The privacy accounting assumes this number for every record.
    """
    return ceil(rounds * batch_size / int(shares.sizes.min()))


def epoch_order(shares: ClientPartition, batch_size: int, generator: Generator, rounds: int) -> Tensor:
    """Draw which images each client uses in an epoch of R = `rounds` rounds. Returns int64 [R, n, B]: B = `batch_size`
    indices into all private images, for each round and each of n clients.

    Every client permutes its s images and repeats this order, so each image is sent ⌊R·B/s⌋ or ⌈R·B/s⌉ times. Images
    repeat within a batch only if s < B.
    """
    whole("batch_size", batch_size)
    whole("rounds", rounds)
    device, (n, longest) = shares.rows.device, shares.rows.shape
    sizes = shares.sizes.unsqueeze(1)
    keys = torch.rand(n, longest, generator=generator, device=device, dtype=torch.float64)
    keys.masked_fill_(torch.arange(longest, device=device) >= sizes, 2.0)  # padding is sorted to the end
    turns = torch.arange(rounds * batch_size, device=device) % sizes
    rows = shares.rows.gather(1, keys.argsort(1).gather(1, turns))
    return rows.view(n, rounds, batch_size).transpose(0, 1).contiguous()
