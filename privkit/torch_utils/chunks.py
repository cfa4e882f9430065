"""Rows that do not depend on each other, a chunk at a time; chunks become smaller if memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def in_chunks(work: Callable[[slice], Tensor], rows: int, most: int) -> Tensor:
    """Join what `work` makes of chunks of rows; after running out of memory, it goes on with half as many at a time.

    Args:
        work: from a slice of rows to their results [len(slice), ...]. No row's result may depend on other rows.
        rows: how many there are, ≥ 1.
        most: rows of the first chunk, ≥ 1.

    Raises:
        RuntimeError: as `work` raises it, if not even one row fits into memory.

    >>> squares = torch.arange(5) ** 2
    >>> def small(part: slice) -> Tensor:
    ...     if part.stop - part.start > 2:
    ...         raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    ...     return squares[part]
    >>> in_chunks(small, 5, 5).tolist()
    [0, 1, 4, 9, 16]
    """
    parts: list[Tensor] = []
    done = 0
    while done < rows:
        try:
            parts.append(work(slice(done, min(done + most, rows))))
        except (MemoryError, RuntimeError) as error:
            if most == 1 or not _ran_out(error):
                raise
            most = (most + 1) // 2
        else:
            done += most
    return torch.cat(parts)


def _ran_out(error: Exception) -> bool:
    """Whether torch found too little memory, on a GPU or a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
