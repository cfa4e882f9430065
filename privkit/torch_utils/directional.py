"""Derivatives of a torch function along many directions, for libraries without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel


def along(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, chunk: int = 64
) -> Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]:
    """Create a function that computes directional derivatives by forward-mode differentiation, one pass per direction.

    Args:
        function: function from records [B, *shape] to a tensor [B, ...], such as a module in evaluation mode. Records
            must not affect each other, and no random numbers may be drawn.
        dtype: type of the function's input.
        chunk: number of directions computed together; each takes the memory of one record's pass.

    Returns:
        A function from a record of d numbers, [d], and k directions, [d, k], to the derivatives of the m outputs,
        float64 [m, k].

    >>> along(lambda x: x.square(), (2,))(np.array([1.0, 3.0]), np.eye(2))
    array([[2., 0.],
           [0., 6.]])
    """

    def derivatives(record: NDArray[Any], directions: NDArray[Any]) -> NDArray[Any]:
        at = torch.as_tensor(record, dtype=dtype).view(1, *shape)
        ways = torch.as_tensor(np.ascontiguousarray(directions.T), dtype=dtype).view(-1, 1, *shape)
        # Fused attention has no forward derivative.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            found = vmap(lambda way: jvp(function, (at,), (way,))[1].flatten(), chunk_size=chunk)(ways)
        return np.asarray(found.T.double().numpy())

    return derivatives
