"""Whole processes: time to help, and time and memory of the default audit from nothing.

    python benchmarks/audit.py

The audit runs in an empty folder; peak memory is the process's own high-water mark.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter


def process(*arguments: str, cwd: Path) -> float:
    """Seconds of one run of the command line."""
    start = perf_counter()
    subprocess.run([sys.executable, "-m", "privkit", *arguments], cwd=cwd, check=True, capture_output=True)
    return perf_counter() - start


def main() -> None:
    """Print times, memory and the two numbers that the audit is about."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--threads", default="2")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        helps = [process("--help", cwd=here) for _ in range(7)]
        print(f"privkit --help: median {median(helps):.2f} s, largest {max(helps):.2f} s of {len(helps)}")
        seconds = process("audit", "--defense", "batch_shuffle", "--threads", options.threads, "--out", "run", cwd=here)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # KiB on Linux
        print(f"privkit audit --defense batch_shuffle: {seconds:.0f} s, {peak:.2f} GiB, {options.threads} threads")
        for line in (here / "run" / "results.jsonl").read_text().splitlines():
            row = json.loads(line)
            ssim = row["recovers"]["unaligned"]["ssim"]
            print(
                f"  {row['defense']}: accuracy {row['accuracy']['value']:.3f}, SSIM {ssim['mean']:.3f} "
                f"[{ssim['low']:.3f}, {ssim['high']:.3f}], mean image "
                f"{row['floors']['mean_image']['unaligned']['ssim']['mean']:.3f}"
            )


if __name__ == "__main__":
    main()
