"""Segments of a recording that are programs: TorchScript that only computes, or a trusted exported program."""

from __future__ import annotations

import io
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.jit._recursive import wrap_cpp_module

from privkit.errors import DataError, one_line
from privkit.files.import_path import Untrusted, is_trusted
from privkit.recording.files import Files, archived

_EXPORTED = "torch.export"  # the reader of exported programs, which evaluates text of the file as Python
_OBJECTS = ("custom_obj_", "opaque_obj_")  # beginnings of members that hold pickled objects in an exported program
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_MEMBER = re.compile(
    r"code/[\w/]+\.py(?:\.debug_pkl)?|(?:data|constants|traced_inputs)(?:\.pkl|/\d+)|version|byteorder"
    r"|\.data/(?:version|serialization_id)|\.format_version|\.storage_alignment"
)
"""Allowed members of a TorchScript file, by their path in its folder, as `torch.jit.save` writes them."""
_UNREAD = re.compile(r"\.debug_pkl$|/traced_inputs[./]")
"""Members that a segment does not need: source positions, and the records on which it was traced."""
_RUNS_WHEN_READ = re.compile(rb"__setstate__|torch\s*[.\n]\s*classes")
"""Code that torch would run before operators can be checked: a method of the program, or a C++ object."""
_COMPUTES = frozenset({"aten", "prim", "torchvision"})
"""Namespaces of operators that a program may call; other libraries register their operators elsewhere."""
_REACHES_OUT = (
    *("aten::from_file", "aten::save"),
    *("prim::PythonOp", "prim::IgnoredPythonOp", "prim::rpc_async", "prim::rpc_remote", "prim::rpc_sync"),
)
"""Forbidden operators of `_COMPUTES`: they read or write a file, reach another process, or leave TorchScript."""


def program(name: str, files: Files, trust: Sequence[str]) -> nn.Module:
    """Load a TorchScript or exported program; neither may contain a pickled object. TorchScript may call only operators
    that compute on tensors. torch's reader of exported programs evaluates text as code, so `trust` must name this
    reader ("torch.export"). Raises `DataError` or `Untrusted` otherwise."""
    data, here = files.content(name), files.folder / name
    try:
        members = archived(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            held = {member: archive.read(member) for member in members}
    except zipfile.BadZipFile:
        held = {}
    except Exception as error:  # zipfile and zlib each raise their own kind
        raise DataError(f"cannot read the program {here} ({one_line(error)}); save it again") from None
    scripted = any("/code/" in f"/{member}" for member in held)
    exported = any("models" in member.split("/")[:2] for member in held)  # not a package of that name in code
    objects = any(member.rpartition("/")[2].startswith(_OBJECTS) for member in held)
    objects |= any(b'"use_pickle": true' in held[member] for member in held if member.endswith("_config.json"))
    if not (scripted or exported) or (exported and objects):
        raise DataError(
            f"{here} is not a program without pickled objects; save the segment with torch.jit.save or "
            "torch.export.save, or name a builder and weights"
        )
    if exported and not is_trusted(_EXPORTED, trust):
        raise Untrusted(
            f"{here} is an exported program, and torch runs text of such a file as Python when it reads "
            f"it; if you know who wrote it, give --trust {_EXPORTED}, or trust=['{_EXPORTED}'] in Python"
        )
    if not exported and (strange := _strange(held)):
        raise DataError(f"{here} {strange}; record a segment that only computes, as torch.jit.save writes it")
    try:
        with _weights_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if exported:
                made: nn.Module = torch.export.load(io.BytesIO(data)).module()
                called = frozenset[str]()
            else:
                made, called = _scripted(held)
    except Exception as error:  # torch raises whatever its reader meets
        raise DataError(f"cannot read the program {here} ({one_line(error)}); save it again") from None
    if outside := sorted(one for one in called if one in _REACHES_OUT or one.partition("::")[0] not in _COMPUTES):
        raise DataError(
            f"{here} uses {outside[0]}, by which a program leaves its tensors; record a segment that only computes"
        )
    for weight in made.parameters():
        weight.requires_grad_(False)
    return made


def _strange(held: dict[str, bytes]) -> str:
    """A phrase that names content which a TorchScript file does not need; empty if there is none. torch
    ignores the case of names, so two names that differ only in case are refused, too."""
    for member in held:
        folder, _, inside = member.partition("/")
        if not _MEMBER.fullmatch(inside) or folder != next(iter(held)).partition("/")[0]:
            return f"holds {member!r}, which is not part of a TorchScript program"
    if len({member.casefold() for member in held}) < len(held):
        return "holds two members whose names differ in their case alone"
    read = (content for member, content in held.items() if not _UNREAD.search(member))
    found = next(filter(None, map(_RUNS_WHEN_READ.search, read)), None)
    return f"has {''.join(found[0].decode().split())}, which runs when it is read" if found else ""


def _scripted(held: dict[str, bytes]) -> tuple[nn.Module, frozenset[str]]:
    """Compile a TorchScript module without running it; returns the module, and all operators that its functions call.

    The archive is rewritten from the checked members, since torch and zipfile may read one file differently. Operators
    are read from the compiled graphs, since source text can name an operator in many ways.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in held.items():
            if not _UNREAD.search(member):
                archive.writestr(member, content)
    reader: Any = torch._C  # like torch.jit.load, which drops the unit that lists all functions
    unit = reader.CompilationUnit()
    module = reader.import_ir_module_from_buffer(unit, buffer.getvalue(), torch.device("cpu"), {}, False)
    called = frozenset(one for function in unit.get_functions() for one in _called(function.graph))
    made: nn.Module = wrap_cpp_module(module).eval()
    return made, called


def _called(block: Any) -> Iterator[str]:
    """Kinds of all nodes in a graph or block, at any depth, and for nodes that make C++ objects also their types."""
    for node in block.nodes():
        yield node.kind()
        yield from (f"class::{made.type()}" for made in node.outputs() if "torch.classes" in str(made.type()))
        graphs = [node.g(name) for name in node.attributeNames() if node.kindOf(name) == "g"]
        for inner in (*node.blocks(), *graphs):
            yield from _called(inner)


@contextmanager
def _weights_only() -> Iterator[None]:
    """Context manager in which `torch.load` refuses pickled objects, also in the reader of exported programs."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        del os.environ[_FORCE]
        if before is not None:
            os.environ[_FORCE] = before
