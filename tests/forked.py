"""Runs programs in forks of this process, which saves the long import of libraries."""

import io
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

Done = subprocess.CompletedProcess[str]


def forked(
    program: Callable[[], object], arguments: tuple[str, ...], folder: Path, *, input: str = "", encoding: str = "utf-8"
) -> Done:
    """Run a program with its own arguments, standard streams, working folder and exit code.

    A real new process differs, for example when it reads the environment; tests/cli/test_start.py and
    tests/run/test_stopping.py start real ones.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode())
        streams = (given, out, err)
        for stream in streams:
            stream.seek(0)
        child = os.fork()
        if child == 0:
            _become(program, arguments, folder, [stream.fileno() for stream in streams], encoding)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return Done(arguments, code, out.read().decode(encoding), err.read().decode(encoding))


def script(path: Path, *arguments: str) -> Done:
    """Run a Python file as a program, in the parent of the file's folder."""

    def program() -> None:
        sys.path.insert(0, str(path.parent))  # as Python does for a file that it runs
        runpy.run_path(str(path), run_name="__main__")

    return forked(program, (str(path), *arguments), path.parents[1])


def _become(
    program: Callable[[], object], arguments: tuple[str, ...], folder: Path, descriptors: list[int], encoding: str
) -> NoReturn:
    """Run the program in a fork, and exit; a program that hangs is ended after five minutes."""
    code = 1
    try:
        signal.alarm(300)
        os.chdir(folder)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding=encoding)
            for number, mode in enumerate("rww")
        )
        sys.argv = list(arguments)
        program()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
