"""Attack texts of the dataset `definitions`, sent by a transformer cut after a block: words, order, whole texts.

    python benchmarks/run.py texts

Each result is a line of `benchmarks/results/texts/runs.jsonl`; the same command continues with the missing seeds, and
prints means over seeds with 95 % intervals. Control experiments are left out.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from audits import defended, timed_rows
from cells import append, mean_cell, read_lines
from run import machine

from privkit.shared.measures import TOKENS

RUNS = Path(__file__).resolve().parent / "results" / "texts" / "runs.jsonl"
MEASURES = tuple(measure.name for measure in TOKENS.measures)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `texts`."""

    cut: tuple[str, ...] = ("block2",)
    defense: tuple[str, ...] = (
        "none",
        "patch_shuffle",
        *(f"gaussian_noise:sigma={sigma},clip=none" for sigma in (1, 2)),
    )
    attack: tuple[str, ...] = ("token_search", "vocabulary", "token_decoder")
    seeds: tuple[int, ...] = (0, 1, 2)
    budget: str = "quick"
    out: str = "privkit-runs/texts"


def lines(options: Options, cut: str, defense: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one audit."""
    given: dict[str, Any] = {"dataset": "definitions", "model": f"transformer_micro:cut={cut}", "defense": defense}
    given |= {"attack": list(options.attack), "budget": options.budget, "threads": 1}
    out = Path(options.out) / f"{cut}-{defense}-{seed}".replace(":", "-")
    found = []
    for row, seconds in timed_rows(defended(given, seed), out):
        line = {"cut": cut, "defense": defense, "attack": row.attack, "seed": seed, "budget": options.budget}
        line |= {"status": row.status, "reason": row.reason, "victims": row.counts["victims"]}
        recovered = row.recovered.get("unaligned", {})
        line |= {name: round(recovered[name].value, 6) for name in MEASURES if name in recovered}
        floor = max(row.floors[guess.name]["unaligned"]["rouge_1"].value for guess in TOKENS.floors)
        line |= {"floor_rouge_1": round(floor, 6), "cpu_seconds": round(seconds, 1)}
        where = machine(1)
        found.append(line | {key: where[key] for key in ("commit", "date", "processor", "torch")})
    return found


def main(options: Options) -> None:
    """Measure what is missing, append it, and print a row for each cut, defense and attack."""
    done = read_lines(RUNS)
    keys = ("cut", "defense", "seed", "budget")
    for seed, cut, defense in product(options.seeds, options.cut, options.defense):
        had = {line["attack"] for line in done if [line[key] for key in keys] == [cut, defense, seed, options.budget]}
        if set(options.attack) - had:
            new = [line for line in lines(options, cut, defense, seed) if line["attack"] not in had]
            done += new
            append(RUNS, *new)
    keys = ("cut", "defense", "attack", "budget")
    print("cut,defense,attack,seeds," + ",".join(MEASURES) + ",floor ROUGE-1")
    for wanted in product(options.cut, options.defense, options.attack):
        runs = [line for line in done if [line[key] for key in keys] == [*wanted, options.budget]]
        if len(runs) > 1 and all(line["status"] == "done" for line in runs):
            values = [[line[name] for line in runs] for name in (*MEASURES, "floor_rouge_1")]
            cells = map(mean_cell, values)
            print(f'{wanted[0]},"{wanted[1]}",{wanted[2]},{len(runs)},' + ",".join(f'"{cell}"' for cell in cells))
