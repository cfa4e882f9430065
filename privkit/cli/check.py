"""`privkit check`: one part against its laws, a line a law."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privkit.cli.accounting import Json
from privkit.cli.say import say, say_json
from privkit.errors import unknown
from privkit.parts.own_parts import one_of
from privkit.settings.table import DATA_ROOT_VARIABLE, SETTINGS


def check(
    part: Annotated[str, typer.Argument(help="module:object or NAME, with options as in privkit audit.")],
    kind: Annotated[
        str | None, typer.Option(help="defense, attack, dataset, model or metric. [what the object is]")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Whose records a model reads, NAME or NAME:key=value,…. [images of usual sizes]")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(envvar=DATA_ROOT_VARIABLE, help=SETTINGS["data_root"].help)] = None,
    as_json: Json = False,
) -> None:
    """Check one part, your own or privkit's, against the laws of its kind; the part is imported and run.

    Exit codes: 0 if every law holds, 1 if one is broken, 2 if there is no such part.
    """
    from privkit.laws.parts import KINDS, kind_of, laws

    kinds = {one_of(kind): kind for kind in KINDS}
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    found = []
    for law, broken in laws(part, kinds[kind] if kind else kind_of(part), dataset, data_root):
        found.append({"law": law, "holds": not broken, "detail": broken})
        if not as_json:
            say(f"{'broken' if broken else 'holds '}  {law}{f': {broken}' if broken else ''}")
    if as_json:
        say_json(found)
    raise typer.Exit(int(not all(line["holds"] for line in found)))
