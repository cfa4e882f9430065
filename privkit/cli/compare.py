"""Commands on finished runs: `compare` two runs, `place` a run among privkit's defenses, `record` its trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privkit.cli.accounting import Json
from privkit.cli.flags import whole_number
from privkit.cli.say import say, say_json, show


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another run folder, on the same data.")],
    as_json: Json = False,
) -> None:
    """Compare run B with run A: differences with intervals, a paired test over records, and differences in settings."""
    from privkit.audit.compare import compare as compared
    from privkit.reports.comparison import COMPARISON_NOTE, comparison_table
    from privkit.reports.tables import rich_table

    found = compared(first, second)
    if as_json:
        say_json(found)
        return
    for run, path in (("A", found.first), ("B", found.second)):
        show(f"{run}: {path}")
    show(rich_table(comparison_table(found)))
    show(COMPARISON_NOTE, style="dim")
    same = ("the same",)
    told = {"configuration": found.configuration or same, "made of": found.made_of or same}
    for title, lines in {**told, "not compared": found.unpaired}.items():
        for line in lines:
            show(f"{title}: {line}")


def place(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Json = False,
) -> None:
    """Compare a run with the defenses in the registry, by accuracy and by the share of records that attacks identify.

    The registry is a table of results of privkit's defenses at several strengths, on the same data under the strongest
    quick attacks.
    """
    from privkit.audit.report import placed
    from privkit.reports.registry import REGISTRY_NOTE, place_table
    from privkit.reports.tables import rich_table

    places, remarks = placed(run)
    if as_json:
        say_json({"places": places, "remarks": remarks})
        return
    for one in places:
        show(f"{one.sentence}.", soft_wrap=True)
    show(rich_table(place_table(places)))
    for line in (*remarks, REGISTRY_NOTE):
        show(line, style="dim")


def record(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the recording, new or empty.")],
    defense: Annotated[str | None, typer.Option(help="Defense of the run, as its table shows it. [the last]")] = None,
    seed: Annotated[int | None, typer.Option(parser=whole_number, help="Seed of the run. [the first]")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the official datasets.")] = None,
) -> None:
    """Write a run's trained model as a recording: its releases, weights, the attacked records and the adversary's
    records.

    `privkit audit --recorded` on the recording gives the numbers of the run, on a CPU bit for bit. The recording
    contains the attacked images, so share it only if others may see them.
    """
    from privkit.audit.export import export

    recording = export(run, out, defense=defense, seed=seed, data_root=data_root)
    described = recording.description
    say(
        f"{out}: {described.rounds} rounds of {described.name}, {len(recording.truth)} true and "
        f"{len(recording.own)} own {recording.domain.records}; audit it with privkit audit --recorded {out}"
    )
