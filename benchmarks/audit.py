"""Measure whole processes: the time of `privkit --help`, and the time and memory of the default audit.

    python benchmarks/run.py audit

The audit starts in an empty folder. Peak memory is the process's high-water mark.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `audit`."""


def process(*arguments: str, cwd: Path) -> float:
    """Wall seconds of one run of privkit's command with these arguments, in the folder `cwd`."""
    start = perf_counter()
    subprocess.run([sys.executable, "-m", "privkit", *arguments], cwd=cwd, check=True, capture_output=True)
    return perf_counter() - start


def main(options: Options) -> None:
    """Print the times, the peak memory, and the accuracy and SSIM of each cell of the audit."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        helps = [process("--help", cwd=here) for _ in range(7)]
        print(f"privkit --help: median {median(helps):.2f} s, largest {max(helps):.2f} s of {len(helps)}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = process(
            "audit", "--defense", "batch_shuffle", "--threads", os.environ["OMP_NUM_THREADS"], "--out", "run", cwd=here
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        peak = after.ru_maxrss / 2**20  # KiB on Linux
        print(f"privkit audit --defense batch_shuffle: {seconds:.0f} s, {cpu:.0f} CPU s, {peak:.2f} GiB")
        for line in (here / "run" / "results.jsonl").read_text().splitlines():
            row = json.loads(line)
            ssim = row["recovered"]["unaligned"]["ssim"]
            print(
                f"  {row['defense']} / {row['attack']}: "
                f"accuracy {row['accuracy']['value']:.3f}, SSIM {ssim['value']:.3f} "
                f"[{ssim['low']:.3f}, {ssim['high']:.3f}], mean image "
                f"{row['floors']['mean_image']['unaligned']['ssim']['value']:.3f}"
            )
