"""Every client's images, and the order in which an epoch takes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Generator, Tensor

from privkit.constraints import whole
from privkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ClientPartition:
    """Every client's images, as row numbers of the private batch; no row belongs to two clients.

    Attributes:
        rows: int64 [n, longest]; a client with fewer images than the largest one repeats its own cyclically.
        sizes: int64 [n], images of each client, ≥ 1.

    >>> shares = ClientPartition(rows=torch.tensor([[2, 2, 2], [0, 3, 1]]), sizes=torch.tensor([1, 3]))
    >>> shares.weights.tolist(), shares.of(0).tolist()
    ([0.25, 0.75], [2])
    """

    rows: Tensor
    sizes: Tensor

    @property
    def weights(self) -> Tensor:
        """Client weights d_i = |D_i| / Σ|D_j|, float64 [n]."""
        return self.sizes.double() / self.sizes.sum()

    def of(self, client: int) -> Tensor:
        """The rows of one client, each once: int64 [sizes[client]]."""
        return self.rows[client, : int(self.sizes[client])]

    def to(self, device: torch.device) -> ClientPartition:
        """The same shares on a device."""
        return ClientPartition(rows=self.rows.to(device), sizes=self.sizes.to(device))


def rounds_an_epoch(images: int, clients: int, batch_size: int) -> int:
    """Rounds in which n clients together release about as many images as there are: ⌊images / (n·B)⌋.

    Raises:
        UsageError: if the images do not fill one round.

    >>> rounds_an_epoch(50_000, clients=10, batch_size=128)
    39
    """
    rounds = images // (clients * batch_size)
    if rounds == 0:
        raise UsageError(
            f"{clients} clients with batch_size={batch_size} send {clients * batch_size} images a round, but there are "
            f"{images}; lower batch_size or clients"
        )
    return rounds


def most_releases(shares: ClientPartition, batch_size: int, rounds: int) -> int:
    """The largest number of times that one image is released in an epoch: ⌈rounds·B / smallest share⌉.

    Accountants charge every record for it: if shares differ, a small client's images are used several times.

    >>> shares = ClientPartition(rows=torch.tensor([[0, 1, 2], [3, 3, 3]]), sizes=torch.tensor([3, 1]))
    >>> most_releases(shares, batch_size=1, rounds=2)
    2
    """
    return ceil(rounds * batch_size / int(shares.sizes.min()))


def epoch_order(shares: ClientPartition, batch_size: int, generator: Generator, rounds: int) -> Tensor:
    """Draw an epoch: every client permutes its own images and takes them in turn, starting again at the end.

    An image is released ⌊R·B/size⌋ or ⌈R·B/size⌉ times, and twice in one batch only if its client has fewer than B
    images.

    Args:
        shares: on the generator's device.
        batch_size: B ≥ 1, images a client and round.
        generator: draws the permutations.
        rounds: R ≥ 1.

    Returns:
        int64 [R, n, B], row numbers of the private batch.

    >>> shares = ClientPartition(rows=torch.tensor([[0, 1], [2, 3]]), sizes=torch.tensor([2, 2]))
    >>> epoch_order(shares, 1, torch.Generator().manual_seed(0), rounds=2).sort(0).values[:, :, 0]
    tensor([[0, 2],
            [1, 3]])
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
