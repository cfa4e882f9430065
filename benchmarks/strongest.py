"""Measure which quick attack is the strongest on each defense.

    python benchmarks/run.py strongest

Each cell (one measurement) has one defense under its usual protocol, one attack and one seed, on the embedded digits. A
finished cell is a line of `benchmarks/results/strongest/runs.jsonl`; the same command continues with the missing cells.
From these lines, it also writes the table of `--attack auto`, `privkit/settings/quick_attacks.csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audits import timed_rows
from cells import append, read_lines
from run import machine

from privkit.defenses import DEFENSES
from privkit.reports.schema import Row
from privkit.reports.seed_intervals import over_values
from privkit.reports.strongest import falls
from privkit.settings.config import AuditConfig
from privkit.settings.quick_attacks import AUTO_THREAT_MODELS, TABLE
from privkit.settings.resolve import resolve
from privkit.shared.measures import IMAGES, measure
from privkit.shared.threat_models import INCLUDES, ThreatModel

RUNS = Path(__file__).resolve().parent / "results" / "strongest" / "runs.jsonl"
BUDGET = "quick:private=1000,auxiliary=1000,test=200,victims=50,epochs=3,attack_doublings=0"
COLUMNS = (
    *("defense", "attack", "threat_model", "strongest_under", "seeds", "victims"),
    *("ssim", "ssim_low", "ssim_high", "mse", "floor_mse", "falls", "cpu_seconds", "date"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `strongest`.

    Attributes:
        defense: defenses with options; all defenses of privkit by default.
        attack: the candidates for the strongest attack.
        seeds: the seeds to measure.
        budget: budget of the audits.
        out: folder of unfinished runs.
        measure: whether to run missing cells; otherwise only the table is written.
    """

    defense: tuple[str, ...] = tuple(sorted(DEFENSES))
    attack: tuple[str, ...] = IMAGES.general
    seeds: tuple[int, ...] = (0,)
    budget: str = BUDGET
    out: str = "privkit-runs/strongest"
    measure: bool = True


def audits(options: Options, done: Sequence[dict[str, Any]]) -> Iterator[AuditConfig]:
    """An audit for each defense and seed, with the attacks that were not run yet, without the undefended model."""
    had = {(line["defense"], line["attack"], line["seed"], line["budget"]) for line in done}
    for name in options.defense:
        for seed in options.seeds:
            missing = [attack for attack in options.attack if (name, attack, seed, options.budget) not in had]
            if missing:
                config = resolve({"defense": name, "attack": missing, "budget": options.budget, "threads": 1})
                defense = next(one for one in config.defenses if name.startswith("none") or one.name != "none")
                yield replace(config, defenses=(defense,), seeds=(seed,))


def line(row: Row, budget: str, seconds: float) -> dict[str, Any]:
    """The recorded fields of an audit's row."""
    found: dict[str, Any] = {"defense": row.defense, "attack": row.attack, "seed": row.seed, "budget": budget}
    found |= {"threat_model": row.threat_model, "status": row.status, "victims": row.counts["victims"]}
    if row.status == "done":
        metrics, floor = row.recovered["unaligned"], row.floors["mean_image"]["unaligned"]
        found |= {name: round(metrics[name].value, 6) for name in ("ssim", "mse")}
        found |= {"floor_mse": round(floor["mse"].value, 6), "falls": falls(row)}
    else:
        found |= {"reason": row.reason}
    where = machine(1)
    return found | {"cpu_seconds": round(seconds, 1), **{key: where[key] for key in ("commit", "date", "processor")}}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The table of `auto` as CSV.

    For each threat model, the table names the attack with the largest mean SSIM, among the attacks that the adversary
    can run and that beat the mean image with some seed. If no attack does, it names the attack of exactly this threat
    model with the smallest MSE. If an attack ran with several budgets, only the runs with the most victims count, since
    results of different budgets must not be averaged.
    """
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for one in sorted(lines, key=lambda line: -line["victims"]):
        if one["status"] == "done":
            runs = groups.setdefault(one["defense"], {}).setdefault(one["attack"], [])
            if not runs or one["victims"] == runs[0]["victims"]:
                runs.append(one)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for defense, attacks in sorted(groups.items()):
        picks = {model: _pick(model, attacks) for model in AUTO_THREAT_MODELS}
        for attack, runs in sorted(attacks.items(), key=lambda item: -_mean(item[1], "ssim")):
            writer.writerow(
                _summary(defense, attack, runs, [model for model in AUTO_THREAT_MODELS if picks[model] == attack])
            )
    return out.getvalue()


def _pick(model: ThreatModel, attacks: dict[str, list[dict[str, Any]]]) -> str | None:
    """The attack that `auto` chooses under a threat model; None if no attack was measured."""
    ranked = sorted(attacks, key=lambda attack: _mean(attacks[attack], "mse"))
    within = [attack for attack in ranked if attacks[attack][0]["threat_model"] in INCLUDES[model]]
    own = [attack for attack in within if attacks[attack][0]["threat_model"] == model]
    won = [attack for attack in within if any(run["falls"] for run in attacks[attack])]
    return max(won, key=lambda attack: _mean(attacks[attack], "ssim")) if won else next(iter([*own, *within]), None)


def _mean(runs: Sequence[dict[str, Any]], name: str) -> float:
    """Mean of one field over the seeds."""
    return sum(run[name] for run in runs) / len(runs)


def _summary(defense: str, attack: str, runs: Sequence[dict[str, Any]], under: Sequence[str]) -> dict[str, Any]:
    """One line of the table."""
    ssim = over_values([run["ssim"] for run in runs], 0.95, measure("ssim").within) if len(runs) > 1 else None
    return {
        "defense": defense,
        "attack": attack,
        "threat_model": runs[0]["threat_model"],
        "strongest_under": " ".join(under),
        "seeds": len(runs),
        "victims": runs[0]["victims"],
        "ssim": f"{_mean(runs, 'ssim'):.3f}",
        "ssim_low": "" if ssim is None else f"{ssim.low:.3f}",
        "ssim_high": "" if ssim is None else f"{ssim.high:.3f}",
        "mse": f"{_mean(runs, 'mse'):.4f}",
        "floor_mse": f"{_mean(runs, 'floor_mse'):.4f}",
        "falls": sum(run["falls"] for run in runs),
        "cpu_seconds": f"{_mean(runs, 'cpu_seconds'):.0f}",
        "date": max(run["date"] for run in runs)[:10],
    }


def main(options: Options) -> None:
    """Run what is missing, append it, and write the table."""
    for config in audits(options, read_lines(RUNS)) if options.measure else ():
        for row, seconds in timed_rows(config, Path(options.out) / config.fingerprint):
            found = line(row, options.budget, seconds)
            append(RUNS, found)
            print(found["defense"], found["attack"], found["seed"], found.get("ssim", found.get("reason")), flush=True)
    TABLE.write_text(table(read_lines(RUNS)), encoding="utf-8")
