"""`privkit record`: a model of a run folder as a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privkit.cli.say import say
from privkit.cli.whole import whole


def record(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the recording, new or empty.")],
    defense: Annotated[str | None, typer.Option(help="Which of the run's, as its table shows it. [the last]")] = None,
    seed: Annotated[int | None, typer.Option(parser=whole, help="Which of the run's. [the first]")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the official datasets.")] = None,
) -> None:
    """Write a trained model of a run as a recording: its release of the attacked images, weights, own images and truth.

    `privkit audit --recorded` on it gives the same numbers as the run, bit for bit on a CPU. Give it away only if the
    attacked images may be seen.
    """
    from privkit.audit.export import export

    recording = export(run, out, defense=defense, seed=seed, data_root=data_root)
    described = recording.description
    say(
        f"{out}: {described.rounds} rounds of {described.name}, {len(recording.truth)} true and "
        f"{len(recording.own)} own images; audit it with privkit audit --recorded {out}"
    )
