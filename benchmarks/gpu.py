"""Measure privkit on a GPU, part by part: `python benchmarks/gpu.py [--part NAME] [--out FILE]`.

    python benchmarks/gpu.py                            # every part that has no row of this device yet
    python benchmarks/gpu.py --part speed
    python benchmarks/gpu.py --device cpu --tiny        # every part at toy size, to try the script itself

A part consists of units (single measurements). A unit appends a row to `--out`, and is skipped if its row exists. A
part ends after eight minutes; the same command continues with the missing units. `python benchmarks/pages.py` writes
docs/results/gpu.md from the rows. Parts: tests, capture, speed, training, white_box, fsha, attacks, shuffle, scoring,
audit, paper.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Literal, get_args

import torch
from cells import append, read_lines
from gpu_parts import PARTS, Part
from gpu_units import Setting
from run import machine
from run import main as run

ROWS = Path(__file__).parent / "results" / "gpu" / "rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `gpu`.

    Attributes:
        part: the part to measure; all parts by default.
        out: the file of results.
        tiny: whether to use toy sizes, for which performance goals are not judged.
        seconds: time limit of a part.
        data_root: folder with MNIST (for fsha) and CIFAR-10 (for paper). Without it, fsha uses 5,000 digits and its
            goal is not judged, and paper is left out.
    """

    part: Part | None = None
    out: str = str(ROWS)
    device: Literal["cuda", "cpu"] = "cuda"
    tiny: bool = False
    seconds: float = 480
    data_root: str | None = None


class TimeUp(BaseException):
    """The time of a part is over. It derives from `BaseException`, so that no handler of errors swallows it."""


def device_of(options: Options) -> dict[str, str]:
    """The device and its driver."""
    if options.device == "cpu":
        return {"device": "cpu", "driver": "none"}
    driver = "unknown"
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
        driver = answer[0] if answer else driver
    return {"device": torch.cuda.get_device_name(), "driver": driver}


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeUp` inside when the time is over."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measured(part: Part, options: Options, where: dict[str, Any]) -> None:
    """Run every unit of a part whose row is missing, and append its row."""
    path = Path(options.out)
    done = {
        (row["part"], row["unit"])
        for row in read_lines(path)
        if (row["device"], row["tiny"]) == (where["device"], options.tiny)
    }
    setting = Setting(
        device=torch.device(options.device),
        tiny=options.tiny,
        data_root=options.data_root,
        ends=monotonic() + options.seconds,
    )
    try:
        with limited(options.seconds):
            for name, measure in PARTS[part](setting):
                if (part, name) in done:
                    print(f"{part}: {name}: is there already")
                    continue
                try:
                    values = measure()
                except Exception as error:  # the other units go on
                    print(f"{part}: {name}: failed: {type(error).__name__}: {error}")
                    continue
                goals = values.pop("goals", [])
                if options.device == "cpu" or options.tiny:
                    goals = []
                row = {"part": part, "unit": name, "tiny": options.tiny, **where, "seed": 0, **values, "goals": goals}
                append(path, row)
                print(f"{part}: {name}: {json.dumps(values, ensure_ascii=False)}", flush=True)
    except TimeUp:
        print(f"{part}: {options.seconds:g} seconds are over; the same command goes on with the units that are missing")


def main(options: Options) -> None:
    """Measure, and print which goals are met."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device; --device cpu --tiny tries the script without one")
    if options.device == "cpu" and not options.tiny:
        raise ValueError("--device cpu goes with --tiny, since a CPU would take days at full size")
    about = machine(torch.get_num_threads())
    kept = ("commit", "date", "python", "torch")
    where = {**device_of(options), **{key: about[key] for key in kept}, "cuda": torch.version.cuda or "none"}
    for part in [options.part] if options.part else get_args(Part):
        measured(part, options, where)
    print("\nGoals")
    judged = [one for row in read_lines(Path(options.out)) if row["device"] == where["device"] for one in row["goals"]]
    for one in judged:
        print(f"  {'met    ' if one['met'] else 'NOT MET'} {one['goal']}: {one['value']:.4g}")
    if not judged:
        print("  none was judged: goals are those of a GPU at full size")


if __name__ == "__main__":
    sys.argv.insert(1, "gpu")
    sys.exit(run())
