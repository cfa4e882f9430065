"""Sections of the page of vertical splits: SecretFlow's benchmark beside privkit's parts, and what was measured."""

from __future__ import annotations

import csv
from collections import Counter
from typing import Any

from cells import read_lines
from vertical import ATTACKS, DEFENSES, RUNS, chained

from privkit.reports.seed_intervals import over_values
from privkit.reports.tables import interval
from privkit.shared.measures import measure

FOLDER = RUNS.parent
TABLES_ALONE = ("drive", "creditcard", "bank", "movielens", "criteo")
"""Its datasets that are no images."""
IMAGES_ALONE = ("fsha",)
"""Its attacks whose counterpart here reads images alone."""
FLOORS = ("floor_ssim", "floor_cells")
SHOWN = {"label_leak": ("auc",), "release_clustering": ("cluster_accuracy",), "black_box": ("ssim", "cells")}
"""Attack -> the measures of its cell, of which one is there; other attacks on labels show the share of right ones."""


def lines(name: str) -> list[dict[str, str]]:
    """A table of this folder: its lines by column."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def code(names: str) -> str:
    """Names of parts as code; a dash for none."""
    return ", ".join(f"`{one}`" for one in names.split()) or "–"


def matched(name: str) -> tuple[list[str], list[list[str]]]:
    """Its attacks or defenses, each beside privkit's."""
    found = lines(name)
    heading = list(found[0])
    parts = (heading[0], "privkit")
    return heading, [[code(line[key]) if key in parts else line[key] for key in heading] for line in found]


def fate(cell: dict[str, str], attack: str) -> str:
    """What privkit does with one supported cell of its benchmark."""
    match = {line[kind]: line["match"] for kind in ("attack", "defense") for line in lines(f"{kind}s")}
    if match[attack] == "none":
        return "attacks integrity"
    if attack in IMAGES_ALONE and cell["dataset"] in TABLES_ALONE:
        return f"`{attack}` reads images only"
    both = {match[attack], match[cell["defense"]]}
    return "a command runs it" if both == {"same"} else "a command runs the nearest parts"


def counted() -> tuple[list[str], list[list[str]]]:
    """How many of its supported cells a command of privkit runs, and why not the others."""
    counts = Counter(fate(cell, attack) for cell in lines("cells") for attack in cell["attacks"].split())
    rows = [[what, str(count)] for what, count in counts.most_common()]
    return ["cells marked as supported", str(sum(counts.values()))], rows


def commands() -> str:
    """The audits of both adversaries, on images and on a table."""
    made = []
    for dataset in ("digits", "breast_cancer"):
        for adversary, attacks in ATTACKS.items():
            party = adversary == "party"
            given = [f"--defense {chained(one) if party else one}" for one in DEFENSES[adversary]]
            given += [f"--attack {one}" for one in attacks] + ["--parts part_1"] * party
            made.append(f"privkit audit --dataset {dataset} --model vertical {' '.join(given)}")
    return "\n".join(made)


def measured(dataset: str, adversary: str) -> tuple[list[str], list[list[str]]]:
    """Defenses by attacks: means over seeds with 95 % Student intervals, the undefended split first."""
    runs = [run for run in read_lines(RUNS) if (run["dataset"], run["adversary"]) == (dataset, adversary)]
    theirs = {part: line["defense"] for line in lines("defenses") for part in line["privkit"].split()}
    attacks = [one for one in ATTACKS[adversary] if any(run["attack"] == one for run in runs)]
    rows = []
    for defense in DEFENSES[adversary]:
        found = [run for run in runs if run["defense"] == defense]
        per_attack = [[run for run in found if run["attack"] == one] for one in attacks]
        rows.append([f"`{defense}`", code(theirs.get(defense, "")), said(per_attack[0], ("accuracy",))])
        rows[-1] += [said(several, SHOWN.get(one, ("label_accuracy", "ssim", "cells")))
                     for one, several in zip(attacks, per_attack, strict=True)]  # fmt: skip
    if floors := [name for name in FLOORS if any(name in run for run in runs)]:
        known = [run for run in runs if floors[0] in run]
        rows.append(["a constant guess", "–", "–", said(known, (floors[0],)), *["–"] * (len(attacks) - 1)])
    return ["defense", "stands for", "accuracy", *(f"`{one}`" for one in attacks)], rows


def said(runs: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """The mean of the first measure that is there, with its interval; else why there is none."""
    name = next((one for one in names if all(one in run for run in runs)), None)
    if name is None:
        reason = runs[0]["reason"]
        return "images only" if "reconstructs images" in reason else reason
    return interval(over_values([run[name] for run in runs], 0.95, measure(name.removeprefix("floor_")).within), 2)
