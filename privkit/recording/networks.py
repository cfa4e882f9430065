"""Builds the segments of a recording: by a user's code with recorded weights, or from a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from privkit.domains.domain import Domain
from privkit.errors import DataError, PrivkitError, UsageError, one_line
from privkit.files.import_path import imported
from privkit.recording.files import Files
from privkit.recording.programs import program
from privkit.recording.schema import Network

_MOST_WEIGHTS, _MOST_MODULES = 1 << 30, 100_000
"""Limits for a segment built by privkit's code: its weights, and its modules and tensors. Huge options are refused."""


def network(
    described: Network, files: Files, domain: Domain, *, trust: Sequence[str] = (), training: bool = False
) -> nn.Module:
    """Build a recorded segment with frozen weights, in evaluation mode or, if `training`, fixed in training mode. An
    exported program needs its reader in `trust`. A builder's module is checked if the caller is inside
    `privkit.files.import_path.only`."""
    if described.program:
        return _Program(program(described.program, files, trust))
    built = _built(described, files, domain).train(training).requires_grad_(False)
    return _Program(built) if training else built


def _built(described: Network, files: Files, domain: Domain) -> nn.Module:
    if ":" not in described.builder or described.builder.partition(".")[0].partition(":")[0] in sys.stdlib_module_names:
        raise UsageError(f"builder {described.builder!r} names no segment; write module:object, such as mynets:Lower")
    builder = imported("the builder", described.builder)
    try:
        with _limited() if described.builder.startswith("privkit.") else nullcontext():
            module = builder(**described.options, **({"domain": domain} if described.domain else {}))
    except PrivkitError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot build {described.builder}: {one_line(error)}; mend it, or its options") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"{described.builder} must give a torch.nn.Module, got {type(module).__name__}")
    if described.weights:
        weights = files.tensors(described.weights)
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            raise UsageError(
                f"{described.weights} holds other weights than {described.builder} has ({one_line(error)}); record "
                "them together"
            ) from None
    if not all(bool(value.isfinite().all()) for value in module.parameters()):
        raise DataError(f"{files.folder}: a weight of {described.builder} is NaN or infinite; record a sound model")
    return module


class _Program(nn.Module):
    """Wraps a program in a module without parameters, since exported programs refuse methods such as `train`. The
    modules inside keep their training or evaluation mode."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self._program = [program]  # in a list, so that it is no child of this module

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self._program[0](inputs)
        return made

    def _apply(self, move: Callable[[Tensor], Tensor], recurse: bool = True) -> _Program:
        self._program[0]._apply(move)
        return self


@contextmanager
def _limited() -> Iterator[None]:
    """Context manager that raises `DataError` if code registers more modules and weights than a segment should have."""
    found = {"numbers": 0, "parts": 0}

    def count(owner: nn.Module, name: str, value: object) -> None:
        found["parts"] += 1
        found["numbers"] += value.numel() if isinstance(value, Tensor) else 0
        if found["parts"] > _MOST_MODULES or found["numbers"] > _MOST_WEIGHTS:
            raise DataError(
                f"the options of a recorded segment make more than {_MOST_MODULES:,} modules or {_MOST_WEIGHTS:,} "
                "weights; correct recording.json"
            )

    hooks = [
        torch.nn.modules.module.register_module_parameter_registration_hook(count),
        torch.nn.modules.module.register_module_buffer_registration_hook(count),
        torch.nn.modules.module.register_module_module_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
