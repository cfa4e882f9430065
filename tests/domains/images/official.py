"""Small files of the official formats, read back and damaged."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from privkit.domains.base import Batch, DatasetSpec, Pool, Pools
from privkit.errors import DataError

Bytes = NDArray[np.uint8]


def open_(spec: DatasetSpec, root: Path | None, train_images: int = 1, download: bool = False) -> Pools:
    return spec.open(root, download=download, train_images=train_images)


def everything(pool: Pool | None) -> Batch:
    assert pool is not None
    return pool.take(np.arange(len(pool)))


def complaint(action: Callable[[], object]) -> str:
    """The message of the DataError that this raises, which must be one sentence."""
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert not re.search(r"\n|[.!?] |[.!?]$", message), message
    return message


def noise(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pixels(images: Bytes) -> torch.Tensor:
    """NHWC bytes as a batch holds them."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path, keep: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
