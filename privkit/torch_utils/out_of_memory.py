"""Recognizes out-of-memory errors (of Python, NumPy, torch and the loader), and splits work into smaller chunks."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_PHRASES = (
    "can't allocate memory",  # torch on a CPU
    "Cannot allocate memory",  # the system's loader and mmap
    "out of memory",  # torch on a GPU
    "bad_alloc",
    "failed to map segment",  # a shared library under a limit
    "can't start new thread",
    "PyObject pointer is null",  # Rust libraries, if Python has no memory for them
)

_ON_A_GPU = re.compile(
    r"Tried to allocate (?P<wanted>[\d.]+ \w+)\. GPU \d+ has a total capacity of (?P<all>[\d.]+ \w+) "
    r"of which (?P<free>[\d.]+ \w+) is free"
)
_ROOM = 32 * 2**20


def ran_out(error: BaseException) -> bool:
    """Whether an exception, or its cause, is an out-of-memory error, or less than 32 MiB of memory are left.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    (True, True)
    >>> ran_out(RuntimeError("shapes do not fit"))
    False
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    said = isinstance(error, RuntimeError | ImportError | SystemError | OSError)
    said = said or type(error).__name__ == "PanicException"  # PyO3's class, which cannot be imported
    if said and any(phrase in str(error) for phrase in _PHRASES):
        return True
    return ran_out(error.__cause__) if error.__cause__ is not None else _scarce()


def _scarce() -> bool:
    """Whether even 32 MiB of main memory cannot be allocated. Imports then fail; their errors may hide the cause."""
    try:
        return not bytearray(_ROOM)
    except MemoryError:
        return True


def shortage(error: BaseException) -> str:
    """A phrase that says how much memory was requested; if the error does not say so, the start of its message.

    >>> shortage(RuntimeError("alloc_cpu.cpp: can't allocate memory: you tried to allocate 800 bytes. Error code 12"))
    'you tried to allocate 800 bytes'
    >>> gpu = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.12 GiB is free. Process"
    >>> shortage(RuntimeError(f"CUDA out of memory. {gpu} 1 has 9 GiB memory in use."))
    'Tried to allocate 2.00 GiB; 1.12 GiB of 139.81 GiB are free'
    """
    text = " ".join(str(error).split())
    if found := _ON_A_GPU.search(text):
        return "Tried to allocate {}; {} of {} are free".format(*found.group("wanted", "free", "all"))
    for mark in ("you tried to allocate", "Tried to allocate", "Unable to allocate"):
        if mark in text:
            return text[text.index(mark) :].split(". ")[0].rstrip(".")
    return text[:120] or "an allocation failed"


def advice(error: BaseException) -> str:
    """A phrase that tells the user what to do after an out-of-memory error.

    >>> advice(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    'lower batch_size in --training, end other programs on the GPU, or use --device cpu'
    """
    if "CUDA" in str(error):
        return "lower batch_size in --training, end other programs on the GPU, or use --device cpu"
    return "free some, or raise the limit (ulimit -v)"


def in_chunks(work: Callable[[slice], Tensor], rows: int, most: int) -> Tensor:
    """Apply `work` to the rows 0, …, `rows` − 1 in chunks of at most `most` rows, and concatenate the results.

    If memory runs out, the size of chunks is halved. The error is raised if even a single row does not fit into memory.

    Args:
        work: function from a slice of row numbers to results [len(slice), ...]; a row's result must not depend on other
            rows.
    """
    import torch  # here, since code that only reports errors has not loaded it

    parts: list[Tensor] = []
    done = 0
    while done < rows:
        try:
            parts.append(work(slice(done, min(done + most, rows))))
        except (MemoryError, RuntimeError) as error:
            if most == 1 or not ran_out(error):
                raise
            most = (most + 1) // 2
        else:
            done += most
    return torch.cat(parts)
