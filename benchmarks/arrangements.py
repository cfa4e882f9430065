"""Measure how much a shuffle reveals, depending on the cut layer and on whether a frozen block t follows the shuffle.

    python benchmarks/run.py arrangements

Each cell (one measurement) has one defense in one arrangement (cut layer, with or without t), one attack and one seed,
on the embedded digits with the budget `quick`; the undefended model is measured for comparison. A finished cell is a
line of `benchmarks/results/shuffling/arrangements.jsonl`; the same command continues with the missing cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audits import defended, timed_rows
from cells import append, read_lines
from strongest import line

from privkit.settings.budgets import DEFAULT
from privkit.settings.config import AuditConfig

LINES = Path(__file__).resolve().parent / "results" / "shuffling" / "arrangements.jsonl"
T2T = "t2t_vit:width=96,depth=4,heads=4,stride=2"
"""T2T-ViT for images of 28×28 pixels: as in the paper, the client has overlapping patches and attention (16 tokens)."""

ARRANGEMENTS = {
    "block1": ("vit_micro", "false"),
    "block1 + t": ("vit_micro", "first"),
    "embedding + t": ("vit_micro:cut=embedding", "first"),
    "embedding": ("vit_micro:cut=embedding", "false"),
    "tokens-to-token + t": (T2T, "first"),
}
"""Arrangement (cut, "+ t" if block t follows the shuffle) -> the model, and the value of the option `frozen_block`."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `arrangements`.

    Attributes:
        seeds: seeds to measure; all arrangements of a seed are measured before the next seed.
        defense: the defenses; "none" is the undefended model.
        arrangement: cut layers, with "+ t" if the frozen block follows; see `ARRANGEMENTS`.
        attack: the attacks on a shuffle, one for each threat model.
        undefended: the attacks on the undefended model.
        out: folder of unfinished runs.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    defense: tuple[str, ...] = ("batch_shuffle", "patch_shuffle", "none")
    arrangement: tuple[str, ...] = ("block1", "block1 + t", "embedding + t", "embedding")
    attack: tuple[str, ...] = ("jigsaw", "jigsaw_white_box", "jigsaw:passes=8")
    undefended: tuple[str, ...] = ("black_box", "white_box")
    out: str = "privkit-runs/arrangements"


def audits(options: Options, done: Sequence[dict[str, Any]]) -> Iterator[tuple[str, AuditConfig]]:
    """For each seed, defense and arrangement: the arrangement, and an audit with the attacks that were not run yet."""
    had = {(one["defense"], one["arrangement"], one["attack"], one["seed"]) for one in done}
    for seed in options.seeds:
        for name in options.defense:
            for where in options.arrangement:
                model, block = ARRANGEMENTS[where]
                if name == "none" and block != "false":
                    continue
                attacks = options.undefended if name == "none" else options.attack
                missing = [attack for attack in attacks if (name, where, attack, seed) not in had]
                if missing:
                    spec = name if name == "none" else f"{name}:frozen_block={block}"
                    yield where, defended({"defense": spec, "model": model, "attack": missing, "threads": 1}, seed)


def measured(where: str, config: AuditConfig, options: Options) -> Iterator[dict[str, Any]]:
    """The cells of one audit as lines."""
    for row, seconds in timed_rows(config, Path(options.out) / config.fingerprint):
        found = line(row, DEFAULT, seconds) | {"model": row.model, "arrangement": where}
        found["defense"] = row.defense.partition(":")[0]
        if row.accuracy is not None:
            found["accuracy"] = round(row.accuracy.value, 6)
        if row.status == "done":
            found["identified"] = round(row.recovered["unaligned"]["identified"].value, 6)
            found |= {
                f"floor_{name}": round(row.floors["mean_image"]["unaligned"][name].value, 6)
                for name in ("ssim", "identified")
            }
        yield found


def main(options: Options) -> None:
    """Run the missing cells, and append their lines."""
    for where, config in audits(options, read_lines(LINES)):
        for found in measured(where, config, options):
            append(LINES, found)
            told = found.get("ssim", found.get("reason"))
            print(found["defense"], where, found["attack"], found["seed"], told, found["cpu_seconds"], flush=True)
