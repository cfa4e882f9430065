"""`privkit reproduce`: repeats a paper's experiments, and prints the results beside the printed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privkit.cli.accounting import Json
from privkit.cli.papers import TextTable, claims_table, interval_text, ordering_json, orderings_table, print_table
from privkit.cli.say import say, say_json
from privkit.errors import unknown
from privkit.run.stopping import keeping
from privkit.settings.table import SETTINGS
from privkit.shared.grouped import grouped

if TYPE_CHECKING:
    from privkit.papers.reproduce import Work
    from privkit.papers.reproduced import Reproduced

_OUT = Path("privkit-runs/reproduce")


def reproduce(
    name: Annotated[str, typer.Argument(metavar="PAPER", help="Name of the paper, as privkit papers lists it.")],
    table: Annotated[str, typer.Argument(help="A table or figure, such as 'Table 3'.")],
    scale: Annotated[
        str,
        typer.Option(
            help="tiny (embedded digits), small (the paper's data at reduced size), medium (the paper's network "
            "as well, for a GPU) or paper."
        ),
    ] = "tiny",
    data_root: Annotated[Path | None, typer.Option(help=SETTINGS["data_root"].help)] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; the repeated command resumes them.")] = _OUT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the experiments and an estimate; run none.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a table of a paper: each method's number beside the printed one, and a verdict on each ordering."""
    from privkit.papers import reproduce as reproducing
    from privkit.papers.reproduced import SCALES
    from privkit.run.progress import progress_display

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    root = None if data_root is None else str(data_root)
    if dry_run:
        _preview(reproducing.needed_cells(name, table, scale, root), scale, out / scale)
        return
    with keeping(lambda: f"{out} keeps the finished cells"), progress_display() as progress:
        found = reproducing.reproduce(name, table, scale=scale, data_root=root, out=out, progress=progress)
    if as_json:
        say_json(_json(found))
        return
    say(f"{found.paper}, {found.table}, scale {found.scale}")
    if found.claims:
        print_table(*claims_table(list(found.claims)))
    if found.methods:
        print_table(*_methods(found))
        print_table(*orderings_table(list(found.orderings)))
        say("brackets: 95 % Student intervals over seeds; differences are of the same seeds")
    if found.methods and found.scale != "paper":
        say("at another scale than the paper's only the orderings can be compared, not the numbers")


def _preview(cells: Sequence[Work], scale: str, out: Path) -> None:
    groups = grouped(cells, lambda one: replace(one.config, seeds=(0,)).fingerprint)
    ordered = [one for group in groups.values() for one in group]
    if not cells:
        say(f"0 cells at scale {scale}")
        return
    from privkit.cli.estimate import estimate

    seeds = [tuple(one.row["seed"] for one in group) for group in groups.values()]
    found = estimate([replace(group[0].config, seeds=own) for group, own in zip(groups.values(), seeds, strict=True)])
    for one, (_, timed) in zip(ordered, found.cells, strict=True):
        say(f"{_called(one)}: about {timed.seconds:.0f} s")
    say(f"{len(cells)} cells at scale {scale}, {found.sentence}; run folders in {out}", *found.needs)


def _called(one: Work) -> str:
    config = one.config
    parts = [config.dataset.label, config.model.label, one.row["protocol"], one.row["partition"]]
    parts += [f"auxiliary {config.auxiliary}", f"seed {one.row['seed']}", f"of {one.experiment}"]
    return f"{one.row['defense']} / {one.row['attack']}, {', '.join(parts)}"


def _methods(found: Reproduced) -> TextTable:
    rows = []
    for one in found.methods:
        printed = found.published.get((one.method, one.quantity))
        published = "" if printed is None else f"{printed:.3f}"
        ours = interval_text(one.interval) or f"{sum(one.values.values()) / len(one.values):.3f}"
        rows.append([one.method, one.quantity, published, ours, str(len(one.values)), found.verdict(one)])
    return ["method", "quantity", "published", "ours", "seeds", "verdict"], rows


def _json(found: Reproduced) -> dict[str, Any]:
    methods = [
        asdict(one) | {"published": published, "interval": one.interval, "verdict": found.verdict(one)}
        for one in found.methods
        for published in [found.published.get((one.method, one.quantity))]
    ]
    about = {"paper": found.paper, "table": found.table, "scale": found.scale, "claims": found.claims}
    return about | {"methods": methods, "orderings": list(map(ordering_json, found.orderings))}
