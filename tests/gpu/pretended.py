"""A pretended GPU: tensors without numbers on the device "cuda", for machines that have none.

An operation that needs a number on the host (`.item()`, a branch on a value, a shape that depends on values) raises
there, and so does one that takes tensors of two devices.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode


class DefaultGenerator(TorchFunctionMode):
    """Draws come from torch's default generator, on the device of the data, as a generator of that device would draw.

    A generator cannot be made for a device that is not there, and a compiler traces none.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Drop `generator`; a factory that drew on the generator's device, the CPU, draws on the pretended one."""
        kwargs = dict(kwargs or {})
        kwargs.pop("generator", None)
        if self.device is not None and kwargs.get("device") == torch.device("cpu"):
            kwargs["device"] = self.device
        return func(*args, **kwargs)


@contextmanager
def pretended_gpu() -> Iterator[FakeTensorMode]:
    """What is moved to "cuda" inside lives on the pretended GPU. It computes no gradients."""
    with FakeTensorMode() as mode, DefaultGenerator("cuda"):
        yield mode


def why_not() -> str:
    """Why torch cannot pretend a GPU here; empty if it can."""
    try:
        with pretended_gpu() as mode:
            mode.from_tensor(torch.zeros(2)).cuda()
    except (AssertionError, RuntimeError) as error:
        return f"torch {torch.__version__} pretends no GPU without a driver: {str(error).splitlines()[0]}"
    return ""


@contextmanager
def without_numbers() -> Iterator[FakeTensorMode]:
    """Tensors without numbers on the CPU, gradients included."""
    with FakeTensorMode() as mode, DefaultGenerator():
        yield mode


def emptied(mode: FakeTensorMode, module: nn.Module) -> None:
    """Take the numbers out of a module's weights and buffers. It was built where they are."""
    module._apply(mode.from_tensor)
