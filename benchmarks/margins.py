"""Measure how safely tests with random numbers pass: the margins of their comparisons, over seeds and kinds of
arithmetic (instruction sets of the CPU).

    python benchmarks/run.py margins --tests tests/attacks/order --seeds 20   # measures, and resumes where it stopped
    python benchmarks/run.py margins                                          # prints the table of recorded margins
    python benchmarks/run.py margins --quick                                  # runs the tests of smallest margin

A test runs with its own seeds under each of three kinds of arithmetic. It also runs with its seeds plus 1, 2, …, under
these kinds in turn (`tests/margins.py` says which seeds are changed). The margin of a comparison in a test is the mean
distance of its two sides, in standard deviations over the seeds. A comparison whose sides are the same in every run is
not shown. Margins assume a normal distribution, which a share near 1 does not have; so "held" counts the runs in which
the comparison was true. "mean" and "sd" are of the left side, and "asked" is the right side.

A comparison *moves* if another arithmetic changes its distance, at the test's own seeds, by more than a hundredth of
the standard deviation. Then training or a search amplifies rounding errors, and another machine gets another number. If
the comparison does not move, every machine gets the same number, and a small margin depends only on the chosen seed.
"Over arithmetic" is the margin that decides whether the test passes on another machine: the mean distance at the test's
own seeds, in standard deviations over the three kinds of arithmetic.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cells import append, read_lines
from run import machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where the tests lie

from tests.margins import digest, signed  # noqa: E402

RECORD = ROOT / "benchmarks" / "results" / "margins" / "runs.jsonl"
TABLE = RECORD.with_name("table.md")
NUMERICS: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}
TRIED = 2
"""Number of seed shifts after which a test is not run any more, if the sides of its comparisons never changed."""
ENOUGH = 4.0
"""Margin in standard deviations below which a test may fail on some machine."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `margins`.

    Attributes:
        tests: tests to measure, as pytest takes them; without tests, the table is printed.
        seeds: number of runs of each test, ≥ 1.
        below: measure only tests that have a recorded margin below this number of standard deviations; all tests by
            default.
        marked: pytest's expression of marks, which selects tests.
        minutes: time after which no further run starts.
        quick: run the recorded tests of smallest margin, with their own seeds under "default" and "avx2", and fail if a
            test fails.
        seconds: total recorded time of the tests that `quick` selects for each kind of arithmetic.
    """

    tests: tuple[str, ...] = ()
    seeds: int = 20
    below: float | None = None
    marked: str = "not slow"
    minutes: float = 30.0
    quick: bool = False
    seconds: float = 60.0


@dataclass(frozen=True)
class Margin:
    """One comparison in one test, with its two sides in each run."""

    test: str
    text: str
    runs: list[tuple[str, int, list[Any]]]  # arithmetic, shift of seeds, sides

    @property
    def gaps(self) -> list[float]:
        """For each run, the distance of the two sides; negative if the comparison was false."""
        return [signed(sides) for _, _, sides in self.runs]

    @property
    def seeds(self) -> list[list[Any]]:
        """The two sides for each seed, from its first run."""
        return list({shift: sides for _, shift, sides in reversed(self.runs)}.values())

    @property
    def spread(self) -> float:
        """Standard deviation of the sides' difference over seeds."""
        differences = [sides[0] - sides[2] for sides in self.seeds]
        return stdev(differences) if len(differences) > 1 else 0.0

    @property
    def deviations(self) -> float:
        """The mean gap in standard deviations; for an equality, the gap from the mean difference to its tolerance."""
        gaps, (_, sign, _, *tolerance) = [signed(sides) for sides in self.seeds], self.runs[0][2]
        if any(gap != gap for gap in gaps):
            return float("-inf")
        equal = sign == "=="
        mean = tolerance[0] - abs(fmean(sides[0] - sides[2] for sides in self.seeds)) if equal else fmean(gaps)
        return mean / self.spread if self.spread else float("inf")

    @property
    def own(self) -> list[list[Any]]:
        """The two sides at the test's own seeds, for each kind of arithmetic."""
        return [sides for _, shift, sides in self.runs if shift == 0]

    @property
    def moves(self) -> bool | None:
        """Whether another arithmetic moves the comparison at the test's own seeds; None if a kind was not run."""
        own = [sides[0] - sides[2] for sides in self.own]
        return None if len(own) < len(NUMERICS) else max(own) - min(own) > self.spread / 100

    @property
    def over_arithmetic(self) -> float:
        """The mean gap at the test's own seeds, in standard deviations over kinds of arithmetic."""
        gaps = [signed(sides) for sides in self.own]
        spread = stdev(gaps) if len(gaps) > 1 else 0.0
        return fmean(gaps) / spread if spread else float("inf")

    @property
    def measured(self) -> bool:
        """Whether the gap differs between runs by more than rounding errors."""
        gaps = self.gaps
        return len(gaps) > 1 and max(gaps) - min(gaps) > 1e-6 * max(map(abs, gaps))


def recorded() -> dict[str, list[dict[str, Any]]]:
    """The lines of each test whose text is that of its newest line."""
    lines = read_lines(RECORD)
    newest = {line["test"]: line["digest"] for line in lines}
    found = defaultdict(list)
    for line in lines:
        if line["digest"] == newest[line["test"]]:
            found[line["test"]].append(line)
    return found


def margins(lines: list[dict[str, Any]]) -> list[Margin]:
    """The comparisons in one test's lines whose sides vary, the smallest margin first."""
    texts: dict[str, list[tuple[str, int, list[Any]]]] = defaultdict(list)
    for line in lines:
        for text, sides in line["noted"].items():
            texts[text].append((line["numerics"], line["shift"], sides))
    found = [Margin(lines[0]["test"], text, runs) for text, runs in texts.items()]
    return sorted((one for one in found if one.measured), key=lambda one: one.deviations)


def plan(seeds: int) -> Iterator[tuple[str, int]]:
    """(arithmetic, shift of seeds) of each run: shift 0 under every kind, then each further shift under one kind."""
    kinds = list(NUMERICS)
    yield from ((kind, 0) for kind in kinds)
    yield from ((kinds[shift % len(kinds)], shift) for shift in range(1, seeds))


def pytest_command(numerics: str, *arguments: str) -> int:
    """Run pytest in a new process, since the arithmetic is fixed when torch is loaded. Returns the exit code."""
    environment = os.environ | NUMERICS[numerics] | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def measure(options: Options) -> None:
    """Run the tests in one process per arithmetic and seed. Each appends its lines, so a stopped run can continue."""
    end, where = time.monotonic() + 60 * options.minutes, machine(1)
    about = {key: where[key] for key in ("commit", "date", "processor", "torch")}
    for numerics, shift in plan(options.seeds):
        if time.monotonic() > end:
            print(f"stopped before shift {shift} under {numerics}: {options.minutes:g} minutes are over")
            break
        lines = recorded()
        skip = {
            name: some[0]["digest"]
            for name, some in lines.items()
            if any((line["numerics"], line["shift"]) == (numerics, shift) for line in some)
            or (shift > TRIED and not margins(some))
            or (options.below is not None and not any(one.deviations < options.below for one in margins(some)))
        }
        tests = list(options.tests)
        if options.below is not None:
            tests = [name for name in lines if name not in skip and any(name.startswith(one) for one in tests)]
        if not tests:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out, skipped = Path(folder) / "out.jsonl", Path(folder) / "skip.json"
            skipped.write_text(json.dumps(skip), encoding="utf-8")
            plug_in = ("-p", "tests.margins", "--assert=plain", "--tb=line", "-r", "", "-m", options.marked)
            flags = ("--margins-shift", str(shift), "--margins-out", str(out), "--margins-skip", str(skipped))
            pytest_command(numerics, *plug_in, *flags, *tests)
            append(RECORD, *(line | {"numerics": numerics, "shift": shift} | about for line in read_lines(out)))


def table(tests: tuple[str, ...] = ()) -> str:
    """Markdown table of recorded comparisons, smallest margin first; and tests that failed for another reason."""
    lines = {name: some for name, some in recorded().items() if not tests or name.startswith(tests)}
    found = sorted((one for some in lines.values() for one in margins(some)), key=lambda one: one.deviations)
    thin = [one for one in found if one.deviations < ENOUGH and one.moves is not False]
    fragile = sum(one.over_arithmetic < ENOUGH for one in found if one.moves)
    measuring = len({one.test for one in found})
    out = [
        "# Margins of the tests",
        "",
        "`python benchmarks/run.py margins` prints this table, and `--help` explains its columns.",
        "",
        f"{len(lines)} tests were run. In {measuring} of them, {len(found)} comparisons differ between runs. Of these, "
        f"{len(thin)} that move lie below {ENOUGH:g} standard deviations over seeds, and {fragile} over arithmetic.",
        "",
        "| test | comparison | moves | runs | held | mean | sd | asked "
        "| margin in sd | over arithmetic | worst | own seeds |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in found:
        left, right = ([sides[at] for _, _, sides in one.runs] for at in (0, 2))
        worst = one.runs[min(range(len(one.runs)), key=lambda at: one.gaps[at])][2]
        own = [
            f"{kind} {fmean(of_kind):.3g}"
            for kind in NUMERICS
            if (of_kind := [sides[0] for name, shift, sides in one.runs if name == kind and shift == 0])
        ]
        cells = [
            f"`{one.test.removeprefix('tests/')}`",
            f"`{one.text}`".replace("|", "\\|"),
            {True: "yes", False: "no", None: "?"}[one.moves],
            str(len(one.runs)),
            str(sum(gap >= 0 for gap in one.gaps)),
            f"{fmean(left):.4g}",
            f"{stdev(left):.2g}",
            f"{one.runs[0][2][1]} {fmean(right):.4g}",
            f"{one.deviations:.1f}",
            f"{one.over_arithmetic:.1f}" if one.moves else "",
            f"{worst[0]:.4g} {worst[1]} {worst[2]:.4g}",
            ", ".join(own),
        ]
        out.append(f"| {' | '.join(cells)} |")
    for name, some in lines.items():
        failed = [line["shift"] for line in some if line["outcome"] != "passed"]
        if failed:
            often = f"{len(failed)} of {len(some)} runs"
            out += ["", f"`{name}` fails for another reason in {often}, with its seeds plus {failed}."]
    return "\n".join([*out, ""])


def quick(seconds: float) -> int:
    """Run the recorded tests of smallest margin with their own seeds, under the arithmetic of other machines.

    Returns the largest exit code.
    """
    lines = recorded()
    moving = {name: [one for one in margins(some) if one.moves is not False] for name, some in lines.items()}
    chosen: list[str] = []
    left = seconds
    for name in sorted((name for name, some in moving.items() if some), key=lambda name: moving[name][0].deviations):
        path, function = ROOT / name.partition("::")[0], name.partition("::")[2].partition("[")[0]
        now = digest(path, function) if path.exists() else ""
        cost = max(line["seconds"] for line in lines[name])
        if now and cost <= left:  # a changed test runs with all its parameters
            chosen.append(name if now == lines[name][0]["digest"] else name.partition("[")[0])
            left -= cost
    return max(pytest_command(numerics, *chosen) for numerics in ("default", "avx2"))


def main(options: Options) -> None:
    """Measure tests, run the tests of smallest margin (`quick`), or print the table.

    Raises:
        SystemExit: if a test fails with `quick`.
    """
    if options.quick:
        sys.exit(quick(options.seconds))
    if options.tests:
        measure(options)
        TABLE.write_text(table(), encoding="utf-8")
    print(table(options.tests), end="")
