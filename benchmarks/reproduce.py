"""Measure the papers' tables at tiny scale: `python benchmarks/run.py reproduce`.

Each table from which an ordering of methods or an effect is claimed is measured as `privkit reproduce PAPER TABLE`
does. A finished cell (defense, attack, seed) is one line of `privkit/papers/tiny.jsonl`; the same command continues
with the missing cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import process_time

from cells import append, read_lines, today

from privkit.papers import PAPERS
from privkit.papers.reproduce import measure_cell, needed_cells
from privkit.papers.reproduced import tables

TINY = Path(__file__).resolve().parents[1] / "privkit" / "papers" / "tiny.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `reproduce`.

    Attributes:
        table: tables such as "cutmixsl:Table 1", measured in this order; by default all tables, the smallest first.
        out: folder of the runs.
        record_to: the file of results.
    """

    table: tuple[str, ...] | None = None
    out: str = "privkit-runs/reproduce/tiny"
    record_to: str = str(TINY)


def main(options: Options) -> None:
    """Run the missing cells, and append a line for each."""
    record = Path(options.record_to)
    named = [tuple(one.split(":", 1)) for one in options.table or ()]
    named = named or [(name, table) for name in PAPERS for table in tables(name)]
    planned = {(name, table): needed_cells(name, table, "tiny") for name, table in named}
    for (name, table), cells in sorted(planned.items(), key=lambda item: 0 if options.table else len(item[1])):
        lines = read_lines(record)
        done = {line["configuration"] for line in lines if (line["paper"], line["table"]) == (name, table)}
        seconds = {line["configuration"]: line["seconds"] for line in lines}  # several tables share a cell
        for one in cells:
            configuration = one.config.fingerprint
            if configuration in done:
                continue
            started = process_time()
            row = measure_cell(one, Path(options.out))
            line = {
                "paper": name,
                "table": table,
                **row,
                "configuration": configuration,
                "seconds": seconds.get(configuration, round(process_time() - started, 1)),
                **today(),
            }
            append(record, line)
        if cells:
            print(name, table, flush=True)
