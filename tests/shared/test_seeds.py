"""Seeds of named streams."""

from __future__ import annotations

import torch
from torch import Generator

from privkit.shared.seeds import derive, numbered


def test_numbered_streams_differ_although_the_cpu_generator_keeps_32_bits() -> None:
    """Two noises that agree cancel in a difference of two releases."""
    name, known = "hijack/round/{}", [derive(1, "hijack", "round", number) for number in range(60_000)]
    first = {one % 2**32: number for number, one in reversed(list(enumerate(known)))}
    later = [number for number, one in enumerate(known) if first[one % 2**32] != number]
    assert later  # the birthday bound expects .4 pairs; this seed has two
    for number in later:
        earlier = first[known[number] % 2**32]
        same, mended = ((known[earlier], known[number]), (numbered(1, name, earlier), numbered(1, name, number)))
        noises = [[torch.randn(3, generator=Generator().manual_seed(one)) for one in pair] for pair in (same, mended)]
        assert torch.equal(*noises[0])
        assert not torch.equal(*noises[1])
    assert all(numbered(1, name, number) == known[number] for number in range(1000))
