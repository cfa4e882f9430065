"""Substitute labels for records that have no labels, or whose labels the defense must not read."""

from __future__ import annotations

import hashlib
from ctypes import string_at

import torch
from torch import Generator, Tensor


def drawn_labels(shape: tuple[int, ...], classes: int, draws: Generator) -> Tensor:
    """Random labels for an adversary's own records, int64 of the given shape on the device of `draws`.

    Labels are random because a defense could recognize an adversary's query by constant labels. They are derived from
    the state of `draws`, which stays unchanged, so labels do not affect a defense that ignores them.

    >>> draws = Generator().manual_seed(0)
    >>> before = draws.get_state()
    >>> drawn_labels((2, 50), 3, draws).unique()
    tensor([0, 1, 2])
    >>> torch.equal(draws.get_state(), before)
    True
    """
    state = draws.get_state()  # in CPU memory for generators of every device, so nothing waits for a GPU
    hashed = hashlib.sha256(string_at(state.data_ptr(), state.nbytes)).digest()
    own = Generator().manual_seed(int.from_bytes(hashed[:8], "big") >> 2)
    return torch.randint(max(1, classes), shape, generator=own).to(draws.device)


def of_others(labels: Tensor, seed: int) -> Tensor:
    """Permute labels [N, ...] at random, so that a record's label says nothing about the record."""
    order = torch.randperm(len(labels), generator=Generator().manual_seed(seed))
    return labels[order.to(labels.device)]
