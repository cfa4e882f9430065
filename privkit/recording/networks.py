"""The segments of a recording: built by a user's code with recorded weights, or read from a program."""

from __future__ import annotations

import io
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privkit.errors import DataError, PrivkitError, UsageError, one_line
from privkit.import_path import imported
from privkit.recording.files import Files
from privkit.recording.schema import Network

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_OBJECTS = ("custom_obj_", "opaque_obj_")
"""How members of an exported program begin that hold pickled objects."""


def network(described: Network, files: Files, *, training: bool = False) -> nn.Module:
    """A segment without gradients of its weights, in evaluation mode or for good in training mode.

    Raises:
        UsageError: if the builder cannot be imported or called, or its weights do not fit.
        DataError: if a file is a pickle, damaged or missing.
    """
    if described.program:
        return _program(described.program, files)
    built = _built(described, files).train(training).requires_grad_(False)
    return Program(built) if training else built


def _built(described: Network, files: Files) -> nn.Module:
    """What the builder makes, with the recorded weights in it."""
    if ":" not in described.builder or described.builder.partition(".")[0].partition(":")[0] in sys.stdlib_module_names:
        raise UsageError(f"builder {described.builder!r} names no segment; write module:object, such as mynets:Lower")
    builder = imported("the builder", described.builder)
    try:
        module = builder(**described.options)
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


def _program(name: str, files: Files) -> nn.Module:
    """A TorchScript program, or an exported one, neither of which may hold a pickled object."""
    data = files.content(name)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.namelist()
            configured = [archive.read(member) for member in members if member.endswith("_config.json")]
    except zipfile.BadZipFile:
        members, configured = [], []
    scripted = any("/code/" in f"/{member}" for member in members)
    exported = any("/models/" in f"/{member}" for member in members)
    objects = any(member.rpartition("/")[2].startswith(_OBJECTS) for member in members)
    objects = objects or any(b'"use_pickle": true' in text for text in configured)
    if not (scripted or exported) or (exported and objects):
        raise DataError(
            f"{files.folder / name} is no program without pickled objects; save the segment with torch.jit.save or "
            "torch.export.save, or name a builder and weights"
        )
    try:
        with _weights_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if exported:
                program = torch.export.load(io.BytesIO(data)).module()
            else:
                program = torch.jit.load(io.BytesIO(data), map_location="cpu").eval()
    except Exception as error:  # torch raises whatever its reader meets
        raise DataError(f"cannot read the program {files.folder / name} ({one_line(error)}); save it again") from None
    for weight in program.parameters():
        weight.requires_grad_(False)
    return Program(program)


class Program(nn.Module):
    """A program as a module without weights of its own: programs refuse what attacks ask of modules, such as `train`.

    A module in it stays in its mode, too.

    Args:
        program: what computes.
    """

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self._program = [program]  # in a list: no child of this module

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, ...] -> [N, ...]."""
        made: Tensor = self._program[0](inputs)
        return made

    def _apply(self, move: Callable[[Tensor], Tensor], recurse: bool = True) -> Program:
        """Move the program with its wrapper."""
        self._program[0]._apply(move)
        return self


@contextmanager
def _weights_only() -> Iterator[None]:
    """Every `torch.load` inside refuses objects: that of an exported program would take them."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        del os.environ[_FORCE]
        if before is not None:
            os.environ[_FORCE] = before
