"""Attack shuffles by queries: the adversary sends its own images, chosen such that it can identify their tokens.

    python benchmarks/run.py own_tokens --folder DIR --seeds 0 1 2

Each audit attacks 100 of the embedded digits, with the defaults of `privkit audit`, except for one setting: the share
of tokens that batch shuffling keeps, the number of images in a message (batch of smashed data), fewer rounds of
queries, or no copies of an image in a round. An audit with one setting and seed is a line of
`results/tokens/runs.jsonl` and is not repeated. The folder holds unfinished audits, which the same command continues.
"""

from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from audits import defended, timed_rows
from cells import append, read_lines
from run import machine

RUNS = Path(__file__).parent / "results" / "tokens" / "runs.jsonl"
BARE = "frozen_block=false"
"""Option of a shuffle after which clients run no frozen block."""
PATCH = f"patch_shuffle:{BARE}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `own_tokens`."""

    folder: Path
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One audit, which is repeated at each seed."""

    defense: str
    attack: str = "jigsaw"
    batch: int = 50
    rounds: int | None = None
    copies: bool = True


def settings() -> list[Setting]:
    """The audits to run, the most important first."""
    batch = f"batch_shuffle:keep={{}},{BARE}"
    found = [Setting(defense=batch.format(0.4)), Setting(defense=PATCH)]
    found += [Setting(defense=batch.format(0.4), attack="jigsaw:passes=8")]
    found += [Setting(defense=batch.format(0.4), rounds=rounds) for rounds in (100, 300)]
    found += [Setting(defense=batch.format(0.4), copies=False)]
    found += [Setting(defense=batch.format(keep)) for keep in (0.2, 0.8)]
    found += [Setting(defense=batch.format(keep), batch=10) for keep in (0.2, 0.4, 0.8)]
    return [*found, Setting(defense=PATCH, rounds=5)]


def measured(setting: Setting, seed: int, folder: Path) -> dict[str, Any]:
    """Run one audit: scores and CPU seconds of its attack, or the reason why it cannot run."""
    rules = {"copies": setting.copies, **({} if setting.rounds is None else {"rounds": setting.rounds})}
    name = "-".join(str(value).replace(":", "_").replace("=", "_") for value in asdict(setting).values())
    asked: dict[str, Any] = {"defense": setting.defense, "attack": [setting.attack], "queries": rules}
    asked |= {"budget": "small:victims=100", "threads": torch.get_num_threads()}
    asked |= {"training": {"batch_size": setting.batch}}
    row, seconds = timed_rows(defended(asked, seed), folder / f"{name}-{seed}")[-1]
    if row.status != "done":
        return {"refusal": row.reason}
    found, floor = row.recovered["unaligned"], row.floors["mean_image"]["unaligned"]
    return {
        **{name: found[name].value for name in ("ssim", "mse")},
        **{f"floor_{name}": floor[name].value for name in ("ssim", "mse")},
        "queries": row.queries,
        "cpu_seconds": round(seconds, 1),
    }


def main(options: Options) -> None:
    """Measure what is not there yet."""
    there = read_lines(RUNS)
    for seed, setting in product(options.seeds, settings()):  # a run that is stopped has measured everything once
        told = {**asdict(setting), "rounds": setting.rounds or "any number", "seed": seed}
        if any(told.items() <= line.items() for line in there):
            continue
        result = measured(setting, seed, options.folder)
        print(told, result)
        if "refusal" in result:
            continue
        append(RUNS, {**told, **result, **machine(torch.get_num_threads())})
