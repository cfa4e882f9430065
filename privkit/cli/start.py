"""The process around the command line: output streams, memory limits and exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from privkit.errors import PrivkitError, tell
from privkit.reports.escape import terminal
from privkit.run.stopping import Stopped, heeded
from privkit.torch_utils.out_of_memory import advice, ran_out, shortage

INTERNAL_FAULT = 70  # exit code of an error that is privkit's own: EX_SOFTWARE of sysexits.h
_LEAST_MEMORY = 300 * 2**20
"""Bytes of address space below which NumPy cannot load: OpenBLAS then ends the process without an error."""
_HEAVY = {"audit": "privkit.audit.run, privkit.audit.report", "list": "torch"}
"""Command -> the modules it imports. They load torch, which may also end the process if memory is limited."""
_READER_GONE = 141  # a shell's exit code for a program that SIGPIPE ended


class _Output(io.FileIO):
    """A stream that drops text which cannot be written, so that no computation stops; `failed` is the first error."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the data, and return the number of bytes. An error is kept in `failed`. Only if the reader of standard
        output is gone, `BrokenPipeError` is raised."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            if self.fileno() == 1:
                raise
        except OSError as error:
            self.failed = self.failed or error
        return memoryview(data).nbytes


def main() -> NoReturn:
    """Run the command line. A user's error becomes one sentence and an exit code."""
    # Waiting threads give up their core. If they spin instead, two audits side by side on two cores are much slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    output = _streams()
    try:
        with heeded():
            _refuse_small_limits()
            from privkit.cli.app import app

            status = app(standalone_mode=False)
        code = status if isinstance(status, int) else 0
    except BaseException as error:
        code = _told(error)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        if output.failed is not None:
            tell(f"cannot write to standard output ({output.failed.strerror}); files that were written are complete")
            code = code or 3
        sys.exit(code)
    _reader_gone()


def _told(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
    ):
        _reader_gone()
    if isinstance(error, SystemExit):  # exit codes of the command line are returned, not raised
        tell(f"an imported module ended the program (sys.exit({error.code!r})); remove that call and run it again")
        return 2
    if isinstance(error, PrivkitError):
        tell(str(error))
        return error.exit_code
    if isinstance(error, Stopped):
        tell(error.sentence)
        return error.exit_code
    if ran_out(error):
        tell(
            f"memory ran out ({shortage(error)}); {advice(error)}, and run the same command again: "
            "what was finished is kept"
        )
        return 3
    if hasattr(error, "format_message"):  # an error of click
        tell(_usage(error))
        return 2
    for line in "".join(traceback.format_exception(error)).splitlines():
        print(terminal(line), file=sys.stderr)
    tell(
        f"internal fault of privkit ({type(error).__name__}); what was finished is kept. Please "
        "report it with the trace above, your command and the output of privkit --version"
    )
    return INTERNAL_FAULT


def _streams() -> _Output:
    """Make standard output and standard error always writable, and return standard output. A closed descriptor is
    opened on the null device, so that no file of the run gets its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    outputs = []
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        given, raw = getattr(sys, name), _Output(descriptor)
        with suppress(AttributeError, OSError):
            given.flush()
        encoding, through = getattr(given, "encoding", "utf-8"), getattr(given, "write_through", False)
        lines = descriptor == 2 or raw.isatty()
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", None, lines, through))
        outputs.append(raw)
    return outputs[0]


def _refuse_small_limits() -> None:
    """Raise `MemoryError` if there is too little memory to load the libraries. Without this check, the process would
    end without an error. A child process tests whether the libraries load."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    modules, fails = _HEAVY.get(next(iter(sys.argv[1:]), "")), False
    if modules is not None:
        import subprocess

        fails = subprocess.run([sys.executable, "-c", f"import {modules}"], capture_output=True).returncode != 0
    if fails or limit < _LEAST_MEMORY:
        raise MemoryError(f"{limit >> 20} MiB are too few for the libraries to load")


def _usage(error: Any) -> str:
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    where = context.command_path.replace("python -m privkit", "privkit") if context else "privkit"
    return f"{message.rstrip('.')}; see {where} --help"


def _reader_gone() -> NoReturn:
    """Exit quietly after the reader closed the pipe, as in `privkit list | head -1`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the last flush
    sys.exit(_READER_GONE)


@contextmanager
def uncollected() -> Iterator[None]:
    """A context manager that pauses garbage collection, so that torch loads faster. Collection would take a seventh of
    a command's start. Memory that is allocated inside can stay in use afterwards."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
