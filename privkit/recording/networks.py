"""The segments of a recording: built by a user's code with recorded weights, or read from a program."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from privkit.domains.domain import Domain
from privkit.errors import DataError, PrivkitError, UsageError, one_line
from privkit.files.import_path import Untrusted, imported, is_trusted
from privkit.recording.files import Files, archived
from privkit.recording.schema import Network

_EXPORTED = "torch.export"
"""The reader of exported programs, which evaluates text of the file as Python."""
_REACHES_OUT = re.compile(rb"\b(?:from_file|save|load_tensor|rpc_\w+|PythonOp|torch\.classes|inductor\w*)\b")
"""Words of TorchScript that read or write a file, reach another process, or leave TorchScript."""
_MOST_WEIGHTS, _MOST_MODULES = 1 << 30, 100_000
"""Of a segment of privkit's: numbers, and modules and tensors, either before a loop in its options runs for ever."""
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_OBJECTS = ("custom_obj_", "opaque_obj_")
"""How members of an exported program begin that hold pickled objects."""


def network(
    described: Network, files: Files, domain: Domain, *, trust: Sequence[str] = (), training: bool = False
) -> nn.Module:
    """A segment whose weights need no gradients, permanently in evaluation or in training mode.

    Args:
        domain: what a record is, for a builder that asks for it.
        trust: modules that the command named; other import paths are refused (`privkit.files.import_path.only`).
        training: whether it stays in training mode.

    Raises:
        UsageError: if the builder is not trusted, cannot be imported or called, or its weights do not fit.
        DataError: if a file is a pickle, damaged or missing.
    """
    if described.program:
        return _program(described.program, files, trust)
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


def _program(name: str, files: Files, trust: Sequence[str]) -> nn.Module:
    """A TorchScript program, or an exported one, neither of which may hold a pickled object.

    TorchScript may not touch files or other processes. The reader of exported programs evaluates text, so it must be
    trusted by name.
    """
    data, code = files.content(name), b""
    try:
        members = archived(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            configured = [archive.read(member) for member in members if member.endswith("_config.json")]
            code = b"\n".join(archive.read(member) for member in members if member.endswith(".py"))
    except zipfile.BadZipFile:
        members, configured = [], []
    except Exception as error:  # zipfile and zlib each raise their own kind
        raise DataError(f"cannot read the program {files.folder / name} ({one_line(error)}); save it again") from None
    scripted = any("/code/" in f"/{member}" for member in members)
    exported = any("models" in member.split("/")[:2] for member in members)  # not a package of that name in code
    objects = any(member.rpartition("/")[2].startswith(_OBJECTS) for member in members)
    objects = objects or any(b'"use_pickle": true' in text for text in configured)
    if not (scripted or exported) or (exported and objects):
        raise DataError(
            f"{files.folder / name} is no program without pickled objects; save the segment with torch.jit.save or "
            "torch.export.save, or name a builder and weights"
        )
    if exported and not is_trusted(_EXPORTED, trust):
        raise Untrusted(
            f"{files.folder / name} is an exported program, and torch runs text of such a file as Python when it reads "
            f"it; if you know who wrote it, give --trust {_EXPORTED}, or trust=['{_EXPORTED}'] in Python"
        )
    if not exported and (word := _REACHES_OUT.search(code)):
        raise DataError(
            f"{files.folder / name} uses {word[0].decode()}, by which a program leaves its tensors; record a segment "
            "that only computes"
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
    return _Program(program)


class _Program(nn.Module):
    """A TorchScript or exported program as a module without parameters.

    Programs refuse methods such as `train` that attacks call.

    The modules inside stay in their mode.
    """

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self._program = [program]  # in a list: no child of this module

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, ...] -> [N, ...]."""
        made: Tensor = self._program[0](inputs)
        return made

    def _apply(self, move: Callable[[Tensor], Tensor], recurse: bool = True) -> _Program:
        self._program[0]._apply(move)
        return self


@contextmanager
def _limited() -> Iterator[None]:
    """Stop code that registers more modules and weights than a segment has."""
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
