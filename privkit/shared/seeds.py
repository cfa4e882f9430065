"""Seeds of named random streams; each seed follows from the run's seed and the stream's name."""

from __future__ import annotations

import hashlib
from functools import lru_cache

_KEPT = 2**32  # torch's CPU generator keeps the last 32 bits of a seed
_BLOCK = 1024


def derive(seed: int, *names: str | int) -> int:
    """Derive the seed of a named random stream, in [0, 2⁶²), from the run's seed and the names alone.

    >>> derive(0, "train", 3) == derive(0, "train", 3) != derive(0, "train", 4)
    True
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def numbered(seed: int, name: str, number: int) -> int:
    """Derive the seed, in [0, 2⁶²), of one of many numbered random streams; `name` contains {} for the number, from 0.

    torch's CPU generator uses only the last 32 bits of a seed. If a smaller number's seed has the same last bits as the
    seed from `derive`, another seed is taken. Otherwise two rounds could add the same noise; among 10,000 rounds, this
    would happen with probability 1 %.
    """
    block, place = divmod(number, _BLOCK)
    return _block(seed, name, block)[place]


@lru_cache(maxsize=4096)
def _block(seed: int, name: str, block: int) -> tuple[int, ...]:
    taken, made = {one % _KEPT for before in range(block) for one in _block(seed, name, before)}, []
    for number in range(block * _BLOCK, (block + 1) * _BLOCK):
        one = derive(seed, name.format(number))
        while one % _KEPT in taken:
            one = derive(one, "again")
        taken.add(one % _KEPT)
        made.append(one)
    return tuple(made)
