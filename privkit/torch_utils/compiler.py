"""Avoids loading torch's compiler, which takes two CPU seconds, if it is not used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


@contextmanager
def compiler_unloaded() -> Iterator[None]:
    """Context manager that keeps torch's optimizers from loading torch's compiler, which they hardly use.

    A small module replaces the compiler. Code that really uses it, such as `torch.compile`, gets the true compiler.
    """
    if _NAME in sys.modules:
        yield
        return
    stub, left_alone = ModuleType(_NAME), list[Any]()

    def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        left_alone.append(function)
        return function

    def real(name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        withdraw()
        return getattr(import_module(_NAME), name)

    def withdraw() -> None:
        if sys.modules.get(_NAME) is stub:
            del sys.modules[_NAME], torch._dynamo
        while left_alone:
            vars(left_alone.pop()).pop("__dynamo_disable", None)  # torch keeps what `disable` returned

    vars(stub).update(disable=disable, graph_break=lambda: None, __getattr__=real)
    sys.modules[_NAME] = torch._dynamo = stub
    try:
        yield
    finally:
        withdraw()
