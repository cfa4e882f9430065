"""Tables of the page on vertical splits: SecretFlow's benchmark beside privkit's parts, and measured results."""

from __future__ import annotations

import csv
from collections import Counter
from typing import Any

from cells import mean_cell, read_lines
from vertical import ATTACKS, DEFENSES, RUNS, chained

from privkit.shared.measures import measure

FOLDER = RUNS.parent
TABLES_ALONE = ("drive", "creditcard", "bank", "movielens", "criteo")
"""Datasets of SecretFlow's benchmark that are tables, not images."""
IMAGES_ALONE = ("fsha",)
"""Attacks of SecretFlow's benchmark whose counterpart in privkit works for images only."""
FLOORS = ("floor_ssim", "floor_cells")
SHOWN = {"label_leak": ("auc",), "release_clustering": ("cluster_accuracy",), "black_box": ("ssim", "cells")}
"""Attack -> its measures, of which the first that exists is shown; other attacks on labels show the label accuracy."""


def lines(name: str) -> list[dict[str, str]]:
    """The rows of a CSV table of this folder, each as column -> cell."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def code(names: str) -> str:
    """Names of parts in Markdown's code style; a dash if there are none."""
    return ", ".join(f"`{one}`" for one in names.split()) or "–"


def matched(name: str) -> tuple[list[str], list[list[str]]]:
    """Table of SecretFlow's attacks or defenses, with privkit's counterparts."""
    found = lines(name)
    heading = list(found[0])
    parts = (heading[0], "privkit")
    return heading, [[code(line[key]) if key in parts else line[key] for key in heading] for line in found]


def fate(cell: dict[str, str], attack: str) -> str:
    """What privkit does with one supported cell of SecretFlow's benchmark."""
    match = {line[kind]: line["match"] for kind in ("attack", "defense") for line in lines(f"{kind}s")}
    if match[attack] == "none":
        return "attacks integrity"
    if attack in IMAGES_ALONE and cell["dataset"] in TABLES_ALONE:
        return f"`{attack}` reads images only"
    both = {match[attack], match[cell["defense"]]}
    return "a command runs it" if both == {"same"} else "a command runs the nearest parts"


def counted() -> tuple[list[str], list[list[str]]]:
    """Table of SecretFlow's supported cells, counted by what privkit does with them."""
    counts = Counter(fate(cell, attack) for cell in lines("cells") for attack in cell["attacks"].split())
    rows = [[what, str(count)] for what, count in counts.most_common()]
    return ["cells marked as supported", str(sum(counts.values()))], rows


def commands() -> str:
    """Commands that audit both adversaries, on images and on a table."""
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
    """Mean and interval of the first measure that the runs have; if they have none, the reason."""
    name = next((one for one in names if all(one in run for run in runs)), None)
    if name is None:
        reason = runs[0]["reason"]
        return "images only" if "reconstructs images" in reason else reason
    return mean_cell([run[name] for run in runs], 2, measure(name.removeprefix("floor_")).within)
