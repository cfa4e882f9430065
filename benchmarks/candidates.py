"""Measure how many noisy releases an adversary assigns to the right image, if it has the attacked images and others.

    python benchmarks/run.py candidates

Each cell (one measurement) has one defense, one attack and one seed, on the embedded digits with the default budget;
the adversary has 2,000 images, among them the 100 attacked images. A finished cell is a line of
`benchmarks/results/defenses/candidates.jsonl`; the same command continues with the missing cells. Control experiments
are left out; `privkit audit --auxiliary candidates` runs them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from audits import defended, timed_rows
from cells import append, read_lines
from strongest import line

from privkit.settings.budgets import DEFAULT
from privkit.settings.config import AuditConfig
from privkit.settings.quick_attacks import AMONG_CANDIDATES

LINES = Path(__file__).resolve().parent / "results" / "defenses" / "candidates.jsonl"
NOISE = (
    "gaussian_noise:sigma=1.5",
    "gaussian_noise:sigma=3.0",
    "laplace_noise:scale=3.0",
    "information_bottleneck",
    "information_bottleneck:weight=0.01",
    "dp_sl:sigma=0.3",
    "dp_sl:sigma=1.0",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `candidates`.

    Attributes:
        seeds: seeds to measure; all defenses of a seed are measured before the next seed.
        defense: the defenses, with their options.
        out: folder of unfinished runs.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    defense: tuple[str, ...] = NOISE
    out: str = "privkit-runs/candidates"


def audits(options: Options) -> Iterator[AuditConfig]:
    """An audit for each missing seed and defense, without the undefended model."""
    had = {(one["defense"], one["seed"]) for one in read_lines(LINES)}
    for seed in options.seeds:
        for name in options.defense:
            asked = {"defense": name, "attack": AMONG_CANDIDATES, "auxiliary": "candidates", "threads": 1}
            config = defended(asked, seed)
            if (config.defenses[-1].label, seed) not in had:
                yield config


def main(options: Options) -> None:
    """Run the missing audits, and append their lines."""
    for config in audits(options):
        for row, seconds in timed_rows(config, Path(options.out) / config.fingerprint):
            assert row.accuracy is not None
            found = line(row, DEFAULT, seconds) | {
                "accuracy": round(row.accuracy.value, 6),
                "identified": round(row.recovered["unaligned"]["identified"].value, 6),
            }
            append(LINES, found)
            print(*(found[name] for name in ("defense", "attack", "seed", "identified", "cpu_seconds")), flush=True)
