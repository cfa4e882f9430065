"""Runs a module without the Gaussian noise that the module draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten


class WithoutNoise(nn.Module):
    """Runs a module without Gaussian noise: each normal random number is replaced by its mean; other draws stay random.

    It also works on TorchScript programs.

    >>> class Noisy(nn.Module):
    ...     def forward(self, x):
    ...         return x + torch.randn_like(x) + torch.normal(2.0, torch.ones(2)) + torch.empty(2).normal_(1, 3)
    >>> WithoutNoise(Noisy())(torch.zeros(2))
    tensor([3., 3.])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Tensor) -> Tensor:
        """The module's output without Gaussian noise."""
        with _Means():  # type: ignore[no-untyped-call]
            found: Tensor = self.module(*given)
        return found


class _Means(TorchDispatchMode):
    """Replaces normal random numbers by their mean when torch dispatches an operator, which also covers TorchScript."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out, named = func(*args, **(kwargs or {})), func.overloadpacket
        mean = _MEANS.get(named)
        return out if mean is None else out.copy_(torch.as_tensor(mean(args, kwargs or {})))


_MEANS: dict[Any, Callable[[tuple[Any, ...], Mapping[str, Any]], Any]] = {
    _ATEN.randn: lambda args, named: 0.0,
    _ATEN.randn_like: lambda args, named: 0.0,
    _ATEN.normal: lambda args, named: args[0],
    _ATEN.normal_: lambda args, named: args[1] if len(args) > 1 else named.get("mean", 0.0),
}
"""Operator -> a function from the operator's arguments to the mean of the numbers that it draws."""
