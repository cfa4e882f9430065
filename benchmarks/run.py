"""Run a benchmark: `python benchmarks/run.py NAME [--option value …] [--threads N] [--record]`.

A benchmark is a module of this folder with a frozen dataclass `Options`, whose fields are the flags, and a function
`main(Options)` that prints a table. Without a name, this command lists the benchmarks. `--record` also appends the
printed text to `benchmarks/results/runs.jsonl`, one line per run, with command, machine, versions, commit and date.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TextIO, get_args, get_origin, get_type_hints

HERE = Path(__file__).resolve().parent
RUNS = HERE / "results" / "runs.jsonl"


def flag(parser: argparse.ArgumentParser, field: Field[Any], kind: Any) -> None:
    """Add a flag for one field: a tuple takes several values, a Literal one of its choices, a boolean is a switch."""
    name = f"--{field.name.replace('_', '-')}"
    required = field.default is MISSING
    default = None if required else field.default
    inner = [one for one in get_args(kind) if one is not NoneType]
    if NoneType in get_args(kind):
        (kind,) = inner
    if kind is bool:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default)
    elif get_origin(kind) is tuple:
        parser.add_argument(name, type=get_args(kind)[0], nargs="+", default=default, required=required)
    elif get_origin(kind) is Literal:
        parser.add_argument(name, choices=get_args(kind), default=default, required=required)
    else:
        parser.add_argument(name, type=kind, default=default, required=required)


class Both(io.TextIOBase):
    """Writes to a stream and keeps what was written."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.kept = stream, io.StringIO()

    def write(self, text: str) -> int:
        """Write the text to the stream, and keep it."""
        self.stream.write(text)
        self.stream.flush()
        return self.kept.write(text)


def machine(threads: int) -> dict[str, object]:
    """Commit, date, machine and versions, which are recorded with each measurement."""
    import numpy
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    return {
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "gpu": gpu,
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def titled(data: str) -> tuple[str, str]:
    """Split TITLE=DATASET into title and dataset; without a title, the dataset's text is the title.

    >>> titled("faces=folder:path=DIR"), titled("folder:path=DIR")
    (('faces', 'folder:path=DIR'), ('folder:path=DIR', 'folder:path=DIR'))
    """
    title, written, dataset = data.partition("=")
    return (title, dataset) if written and title.isidentifier() else (data, data)


def _processor() -> str:
    """The processor's name, or its architecture if the system does not say its name."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> int:
    """Parse the command line, run the benchmark, and record its output with `--record`."""
    names = sorted(path.stem for path in HERE.glob("*.py") if "\nclass Options" in path.read_text(encoding="utf-8"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"{__doc__}\nBenchmarks: {', '.join(names)}")
        return 2 * (len(sys.argv) > 1 and sys.argv[1] not in ("-h", "--help"))
    name = sys.argv[1]
    threads = argparse.ArgumentParser(add_help=False)
    threads.add_argument("--threads", type=int, default=1)
    threads.add_argument("--record", action="store_true")
    common, rest = threads.parse_known_args(sys.argv[2:])
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(common.threads)  # before numpy is loaded
    sys.path.insert(0, str(HERE))
    module = import_module(name)
    about = f"{module.__doc__}\n{module.Options.__doc__}"
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/run.py {name}",
        description=about,
        parents=[threads],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = get_type_hints(module.Options)
    for field in fields(module.Options):
        flag(parser, field, kinds[field.name])
    given = vars(parser.parse_args(rest))
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items() if key in kinds}
    import torch

    torch.set_num_threads(common.threads)
    out = Both(sys.stdout)
    where = machine(common.threads)
    try:
        with redirect_stdout(out):
            module.main(module.Options(**values))
    except ValueError as error:
        parser.error(str(error))
    print(f"\n{where['processor']}, {common.threads} threads, torch {where['torch']}, {where['date']}", file=sys.stderr)
    if common.record:
        line = {"benchmark": name, "arguments": sys.argv[2:], **where, "output": out.kept.getvalue()}
        with RUNS.open("a", encoding="utf-8") as records:
            records.write(json.dumps(line, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
