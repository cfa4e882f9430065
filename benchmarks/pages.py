"""Write the pages of measured results: `python benchmarks/pages.py [--check]`.

A page `docs/results/NAME.md` is the template `benchmarks/results/NAME/page.md.j2`, filled with the tables in its folder
(`*.csv` and `*.jsonl`). After a measurement has changed a table, run this command to update the page. The page on
papers shows the output of `privkit papers`. The page on settings ends with the table of `privkit/settings/table.py`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import registry_page
import registry_pictures
import vertical_page
from cells import mean_cell, read_lines
from jinja2 import Environment, StrictUndefined

from privkit.cli.papers import claims_table, coverage_table, deviations_table, methods_table, orderings_table
from privkit.papers import PAPERS, paper
from privkit.papers.accurate_sl import effects
from privkit.papers.coverage import STATES, coverage
from privkit.papers.orderings import on_record, recorded
from privkit.papers.orderings import orderings as orderings_of
from privkit.papers.reproduce import why_not
from privkit.papers.reproduced import claim_patterns, committed, judged_rows, tables, tiny_verdicts
from privkit.papers.summary import findings
from privkit.papers.values import deviations
from privkit.reports.registry import read_registry
from privkit.settings.quick_attacks import AUTO_THREAT_MODELS, TABLE
from privkit.settings.table import FLAGS
from privkit.shared.grouped import grouped
from privkit.shared.measures import floor_title, likeness, measure
from privkit.shared.threat_models import threat_name

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
SETTINGS_PAGE = ROOT / "docs" / "reference" / "settings.md"
SETTING_KINDS = {bool: "switch", Path: "path", str: "text", int: "whole number", float: "number"}


def markdown(path: Path) -> str:
    """A CSV file as a Markdown table; its first row is the heading."""
    with path.open(newline="", encoding="utf-8") as lines:
        heading, *rows = csv.reader(lines)
    ragged = [row for row in rows if len(row) != len(heading)]
    if ragged:
        raise ValueError(f"{path}: every row must have {len(heading)} cells, got {ragged[0]}")
    return table(heading, rows)


def table(heading: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with this heading and these rows."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows))


def claims(name: str) -> str:
    """Markdown table of a paper's claims beside our results."""
    return table(*claims_table(list(paper(name).comparisons())))


def orderings(name: str) -> str:
    """Two Markdown tables: results of a paper's methods, and the verdict on each of its orderings."""
    methods = [one for size in recorded(name).values() for one in size]
    return f"{table(*methods_table(methods))}\n\n{table(*orderings_table(on_record(name), tiny_verdicts(name)))}"


def summary() -> str:
    """Three Markdown lists for each paper: what holds, what fails, and what is open."""
    made = []
    for name in PAPERS:
        made.append(f"**{paper(name).citation.partition(',')[0]}, {paper(name).title}**\n")
        for lead, parts in findings(name).items():
            made += [f"* {lead}:", *("    * " + one.replace("*", r"\*") for one in parts)]
        made.append("")
    return "\n".join(made).rstrip()


def covered(name: str) -> str:
    """Markdown table of our evidence for every number that a paper prints, and of settings that we do not use."""
    made = table(*coverage_table(list(coverage(name).covered())))
    if not (unlike := deviations(name)):
        return made
    told = "The paper prints these settings, which our experiments do not use:"
    return f"{made}\n\n{told}\n\n{table(*deviations_table(unlike))}"


def coverage_counts() -> str:
    """Markdown table that counts each paper's printed numbers by state (measured, configured, …)."""
    rows = []
    for name in PAPERS:
        found = list(coverage(name).covered())
        counts = [sum(len(one.values) for one in found if one.state == state) for state in STATES]
        rows.append([f"`{name}`", *map(str, counts)])
    return table(["paper", *STATES], rows)


def reproduced_tables() -> str:
    """Markdown table of the tables that were measured at tiny scale: cells, CPU seconds, and counts of verdicts."""
    heading = ["paper", "table", "ran on", "cells", "seconds at most", "agree", "reversed", "undecided", "at the floor"]
    made = []
    for (name, source), rows in sorted(committed().items()):
        found, effects_of = judged_rows(name, source, "tiny", rows), paper(name).effects
        verdicts = [one.verdict for one in found.orderings]
        effect_verdicts = [one.verdict for one in effects_of.comparisons(rows)] if effects_of else []
        counts = [
            verdicts.count("ordering agrees")
            + effect_verdicts.count("sign agrees")
            + effect_verdicts.count("reproduced"),
            verdicts.count("reversed") + effect_verdicts.count("differs"),
            verdicts.count("undecided") + effect_verdicts.count("unproven"),
            verdicts.count("at the floor"),
        ]
        data = " and ".join(sorted({row.get("ran", row).get("dataset", row["dataset"]) for row in rows}))
        seconds = sum(row["seconds"] for row in rows)
        made.append([f"`{name}`", source, data, str(len(rows)), f"{seconds:.0f}", *map(str, counts)])
    return table(heading, made)


def reproduced_verdicts() -> str:
    """Markdown table of the verdicts on each ordering and effect at tiny scale."""
    made = []
    for (name, source), rows in sorted(committed().items()):
        _, judged = orderings_table(list(judged_rows(name, source, "tiny", rows).orderings))
        made += [[f"`{name}`", source, claim, quantity, gap, verdict] for claim, _, quantity, _, gap, verdict in judged]
        effects_of = paper(name).effects
        for one in effects_of.comparisons(rows) if effects_of else ():
            made.append([f"`{name}`", source, one.claim, "accuracy", one.why, one.verdict])
    return table(["paper", "table", "published ordering or effect", "quantity", "difference", "verdict"], made)


def not_reproduced() -> str:
    """Markdown table of the papers' tables without rows at tiny scale, with the reasons."""
    made = []
    for name in PAPERS:
        runnable, effects_of = {one.source for one in orderings_of(name)}, paper(name).effects
        for source in tables(name):
            if (name, source) not in committed():
                computed = len(judged_rows(name, source, "tiny", []).claims)
                if source in runnable or (effects_of and effects_of.needed_runs(claim_patterns(name, source))):
                    reason = "the trainings of this table were not run yet"
                else:
                    reason = "" if computed else why_not(name, source, "tiny")
                made.append([f"`{name}`", source, str(computed or ""), reason])
    return table(["paper", "table", "claims that are computed", "why not"], made)


def fault_effects() -> str:
    """Markdown table of accurate_sl's effects with and without the fault of its released code."""
    heading = ["published effect", "printed", "with the fault", "without the fault", "with the derivative"]
    heading += ["ran", "verdict"]
    rows = []
    for one in effects.judged():
        printed = "" if one.effect.published is None else f"{one.effect.published:+.3f}"
        gaps = ["" if gap is None else effects.shown(gap) for gap in (one.released, one.sound, one.exact)]
        gaps[0] = gaps[0] or ("it cannot act" if one.effect.no_fault else "")
        rows.append([one.effect.claim, printed, *gaps, one.length, one.verdict])
    return table(heading, rows)


def noise_bounds() -> str:
    """Markdown table of ε for accurate_sl's runs: published, sound for one release, and for the whole run."""
    epsilons = ("published_epsilon", "sound_epsilon", "epsilon_of_the_run")
    heading = ["experiment", "defense", "steps", "seeds", "accuracy", "published ε", "sound ε of one release"]
    of_noise = (
        row for row in effects.shipped_rows() if "published_epsilon" in row and "in_place" not in row["defense"]
    )
    runs = grouped(of_noise, lambda row: (row["experiment"], row["defense"], row["steps"]))
    made = []
    for (experiment, defense, steps), rows in runs.items():
        mean = sum(row["accuracy"] for row in rows) / len(rows)
        bounds = ["none" if rows[-1][name] is None else f"{rows[-1][name]:.6g}" for name in epsilons]
        made.append([experiment, f"`{defense}`", str(steps), str(len(rows)), f"{mean:.3f}", *bounds])
    return table([*heading, "ε of the run"], made)


def over_seeds(folder: Path, name: str, keys: tuple[str, ...], digits: dict[str, int]) -> str:
    """A Markdown table of a JSONL file's lines: means over seeds, with Student intervals if there are several seeds.

    Lines to which the attack does not apply are left out.

    Args:
        folder: folder of the file.
        name: name of the file.
        keys: names of the fields that identify a row of the table.
        digits: names of the shown values -> their digits after the decimal point.
    """
    lines = [line for line in read_lines(folder / f"{name}.jsonl") if line.get("status", "done") == "done"]
    made = []
    for key, runs in grouped(lines, lambda line: tuple(str(line[key]) for key in keys)).items():
        seeds = sorted(run["seed"] for run in runs)
        cells = [*(f"`{cell}`" for cell in key), ", ".join(map(str, seeds))]
        for value, places in digits.items():
            several = [run[value] for run in runs if value in run]
            if not several:  # an attack may not have this value
                cells.append("–")
                continue
            within = measure(value.removeprefix("floor_")).within
            cells.append(mean_cell(several, places, within) if places else f"{sum(several) / len(several):.0f}")
        made.append(cells)
    return table([*keys, "seeds", *(value.replace("_", " ") for value in digits)], made)


def arrangements(path: Path) -> str:
    """A Markdown table of the results of `benchmarks/arrangements.py`: one row for each defense and arrangement.

    The undefended model comes first. An entry shows SSIM and the share of identified images, as means over the seeds.
    It is in italics if the mean error is not smaller than that of guessing the mean image. The accuracy is that of the
    training on which the attack with queries was run.
    """
    cells: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for line in sorted(read_lines(path), key=lambda line: line["defense"] != "none"):
        cells.setdefault((line["defense"], line["arrangement"]), {}).setdefault(line["threat_model"], []).append(line)

    def mean(runs: list[dict[str, Any]], name: str) -> float:
        return sum(run[name] for run in runs) / len(runs)

    def told(several: list[dict[str, Any]]) -> str:
        runs = [run for run in several if run["status"] == "done"]
        if not runs:
            return "not applicable" if several else "–"
        mark = "" if mean(runs, "mse") < mean(runs, "floor_mse") else "*"
        return f"{mark}{mean(runs, 'ssim'):.2f}, {mean(runs, 'identified'):.0%}{mark}"

    made = []
    for (defense, arrangement), found in cells.items():
        models = [told(found.get(model, [])) for model in ("query", "weights", "many_passes")]
        made.append([f"{defense}, {arrangement}", f"{mean(found['query'], 'accuracy'):.2f}", *models])
    return table(["defense, cut", "accuracy", "queries", "weights", "8 passes"], made)


def strongest_attacks() -> str:
    """Markdown table with a row per defense: for each threat model, the attack that `--attack auto` chooses."""
    with TABLE.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        mark = "" if int(row["falls"]) else "*"
        for model in row["strongest_under"].split():
            cells.setdefault(row["defense"], {})[model] = f"{mark}{row['attack']}, {float(row['ssim']):.2f}{mark}"
    made = [
        [f"`{defense}`", *(found.get(model, "–") for model in AUTO_THREAT_MODELS)] for defense, found in cells.items()
    ]
    return table(["defense", *map(threat_name, AUTO_THREAT_MODELS)], made)


def frontier(path: Path) -> str:
    """The CSV file of a frontier as a Markdown table: each setting with its intervals, then the floors."""
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    metric = likeness(list(rows[0]))

    def measured(row: dict[str, str], name: str) -> str:
        return f"{float(row[name]):.3f} [{float(row[f'{name}_low']):.3f}, {float(row[f'{name}_high']):.3f}]"

    made = [
        [f"`{row['defense']}`", measured(row, "accuracy"), measured(row, metric), epsilon, row["dominated"].lower()]
        for row in rows
        for epsilon in [f"{float(row['epsilon']):.4g}" if row["epsilon"] else "none"]
    ]
    for name, value in rows[0].items():
        if name.startswith("floor_"):
            made.append([floor_title(name.removeprefix("floor_")), "", f"{float(value):.3f}", "", ""])
    return table(
        ["defense", "accuracy", f"{measure(metric).title} of the strongest attack", "proven ε", "dominated"], made
    )


def gpu(path: Path) -> str:
    """Rows of `benchmarks/gpu.py`: the goals, then every number; rows of toy size are left out."""
    rows = [row for row in read_lines(path) if not row["tiny"]]
    if not rows:
        return "No rows yet: no GPU was available."
    goals, numbers = [], []
    for row in rows:
        device = f"{row['device']}, driver {row['driver']}, torch {row['torch']}"
        goals += [[one["goal"], f"{one['value']:.4g}", "yes" if one["met"] else "**no**"] for one in row["goals"]]
        for name, value in row.items():
            several = value if isinstance(value, dict) else {"": value}
            if name not in GPU_ORIGIN:
                for of, one in several.items():
                    shown = f"{one:.4g}" if isinstance(one, float) else str(one)
                    what = " ".join(filter(None, [name.replace("_", " "), of]))
                    numbers.append([row["part"], row["unit"], what, shown, device, row["date"][:10]])
    heading = ["part", "unit", "what", "value", "device", "date"]
    return f"{table(['goal', 'measured', 'met'], goals)}\n\n{table(heading, numbers)}"


GPU_ORIGIN = {"part", "unit", "tiny", "device", "driver", "torch", "cuda", "python", "commit", "date", "seed", "goals"}
"""Fields of a row that are not measured numbers."""


def settings() -> str:
    """Markdown table of the settings of an audit, and of the other flags of its command."""
    rows = [
        [
            f"`{each.flag}`",
            f"`{each.name}`" if each.file else "",
            SETTING_KINDS[each.kind] + (", several" if each.many else ""),
            each.otherwise,
            "yes" if each.answer else "no",
            each.help,
        ]
        for each in FLAGS
    ]
    return table(["flag", "key", "value", "default", "changes an answer", "meaning"], rows)


def pages() -> dict[Path, str]:
    """Path of every generated page and chart -> its text."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    made = {}
    for source in sorted(SOURCES.glob("*/page.md.j2")):
        template = environment.from_string(source.read_text(encoding="utf-8"))
        made[PAGES / f"{source.parent.name}.md"] = template.render(
            table=lambda name, folder=source.parent: markdown(folder / f"{name}.csv"),
            over_seeds=lambda name, keys, digits, folder=source.parent: over_seeds(folder, name, keys, digits),
            frontier=lambda name, folder=source.parent: frontier(folder / f"{name}.csv"),
            arrangements=lambda folder=source.parent: arrangements(folder / "arrangements.jsonl"),
            gpu=lambda folder=source.parent: gpu(folder / "rows.jsonl"),
            summary=summary,
            claims=claims,
            orderings=orderings,
            covered=covered,
            coverage_counts=coverage_counts,
            reproduced_tables=reproduced_tables,
            reproduced_verdicts=reproduced_verdicts,
            not_reproduced=not_reproduced,
            fault_effects=fault_effects,
            noise_bounds=noise_bounds,
            quick_attacks=lambda: markdown(TABLE),
            strongest_attacks=strongest_attacks,
            which=lambda: table(*registry_page.which()),
            every=lambda: table(*registry_page.every()),
            registered=lambda *defenses: table(*registry_page.of(*defenses)),
            guesses=registry_page.guesses,
            seeds=registry_page.seeds,
            breaks=lambda: table(*registry_page.breaks()),
            vertical=vertical_page,
            as_table=table,
        )
    made |= {PAGES.parent / f"defenses-{name}.svg": drawn for name, drawn in registry_page.pictures().items()}
    introduction = SETTINGS_PAGE.read_text(encoding="utf-8").partition("| flag |")[0]
    return made | {SETTINGS_PAGE: f"{introduction}{settings()}\n"}


def main() -> int:
    """Write the pages, and remove pictures that no page shows. With --check, only name them, and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page differs")
    check = parser.parse_args().check
    differing = [
        page for page, text in pages().items() if not page.exists() or page.read_text(encoding="utf-8") != text
    ]
    for page in differing:
        print(f"{page.relative_to(ROOT)} {'differs' if check else 'written'}")
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(pages()[page], encoding="utf-8")
    left_over = registry_pictures.left_over(read_registry())
    for picture in left_over:
        print(f"{picture.relative_to(ROOT)} {'belongs to no row that is shown' if check else 'removed'}")
        if not check:
            picture.unlink()
    return int(check and bool(differing or left_over))


if __name__ == "__main__":
    sys.exit(main())
