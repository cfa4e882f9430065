"""Attack texts of the dataset `definitions`, sent by a transformer cut after a block: words, order, whole texts.

    python benchmarks/run.py texts

Each result is a line of `benchmarks/results/texts/runs.jsonl`; the same command continues with the missing seeds, and
prints means over seeds with 95 % intervals. Control experiments are left out.
"""

import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from run import machine
from strongest import Clock, without_controls

from privkit.audit.run import run_audit
from privkit.reports.seed_intervals import over_values
from privkit.settings.resolve import resolve
from privkit.shared.measures import TOKENS, UNIT

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
    """The lines of one audit."""
    clock = Clock()
    given: dict[str, Any] = {"dataset": "definitions", "model": f"transformer_micro:cut={cut}", "defense": defense}
    given |= {"attack": list(options.attack), "budget": options.budget, "seed": [seed], "threads": 1}
    config = resolve(given)
    config = replace(config, defenses=config.defenses[-1:])  # without the undefended model
    out = Path(options.out) / f"{cut}-{defense}-{seed}".replace(":", "-")
    with without_controls():
        run = run_audit(config, out=out, progress=clock)
    clock.stage("")
    found = []
    for row in run.rows:
        line = {"cut": cut, "defense": defense, "attack": row.attack, "seed": seed, "budget": options.budget}
        line |= {"status": row.status, "reason": row.reason, "victims": row.counts["victims"]}
        recovered = row.recovered.get("unaligned", {})
        line |= {name: round(recovered[name].value, 6) for name in MEASURES if name in recovered}
        floor = max(row.floors[guess.name]["unaligned"]["rouge_1"].value for guess in TOKENS.floors)
        line |= {"floor_rouge_1": round(floor, 6), "cpu_seconds": round(clock.of(row), 1)}
        where = machine(1)
        found.append(line | {key: where[key] for key in ("commit", "date", "processor", "torch")})
    return found


def main(options: Options) -> None:
    """Measure the missing seeds, append their lines, and print a row for each cut, defense and attack."""
    done = [json.loads(text) for text in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []
    keys = ("cut", "defense", "seed", "budget")
    for seed, cut, defense in product(options.seeds, options.cut, options.defense):
        had = {line["attack"] for line in done if [line[key] for key in keys] == [cut, defense, seed, options.budget]}
        if set(options.attack) - had:
            new = [line for line in lines(options, cut, defense, seed) if line["attack"] not in had]
            done += new
            with RUNS.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in new)
    keys = ("cut", "defense", "attack", "budget")
    print("cut,defense,attack,seeds," + ",".join(MEASURES) + ",floor ROUGE-1")
    for wanted in product(options.cut, options.defense, options.attack):
        runs = [line for line in done if [line[key] for key in keys] == [*wanted, options.budget]]
        if len(runs) > 1 and all(line["status"] == "done" for line in runs):
            cells = [_said([line[name] for line in runs]) for name in (*MEASURES, "floor_rouge_1")]
            print(f'{wanted[0]},"{wanted[1]}",{wanted[2]},{len(runs)},' + ",".join(f'"{cell}"' for cell in cells))


def _said(values: list[float]) -> str:
    """The mean over seeds with its interval."""
    found = over_values(values, 0.95, UNIT)
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
