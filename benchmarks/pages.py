"""Write the pages of measured results: `python benchmarks/pages.py [--check]`.

A page `docs/results/NAME.md` is the text `benchmarks/results/NAME/page.md.j2` around the tables beside it (`*.csv`).
A measurement changes a table, and this command changes the page.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from jinja2 import Environment, StrictUndefined

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"


def markdown(path: Path) -> str:
    """A CSV file as a Markdown table; its first row is the heading."""
    with path.open(newline="", encoding="utf-8") as lines:
        heading, *rows = csv.reader(lines)
    ragged = [row for row in rows if len(row) != len(heading)]
    if ragged:
        raise ValueError(f"{path}: every row must have {len(heading)} cells, got {ragged[0]}")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows))


def pages() -> dict[Path, str]:
    """Every page that is to be written, with its text."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    made = {}
    for source in sorted(SOURCES.glob("*/page.md.j2")):
        template = environment.from_string(source.read_text(encoding="utf-8"))
        made[PAGES / f"{source.parent.name}.md"] = template.render(
            table=lambda name, folder=source.parent: markdown(folder / f"{name}.csv")
        )
    return made


def main() -> int:
    """Write the pages; with --check, name those that differ and exit with 1."""
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
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
