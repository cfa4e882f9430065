"""Commands for a user's own parts: `privkit new` writes a first file, `privkit check` tests a part against its laws."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from privkit.cli.accounting import Json
from privkit.cli.say import say, say_json
from privkit.errors import UsageError, shortened, unknown
from privkit.files.storage import writing
from privkit.parts.own_parts import kind_noun
from privkit.settings.table import DATA_ROOT_VARIABLE, SETTINGS

_KINDS = ("defense", "attack", "model", "dataset", "metric")
_TEST = '''"""{class_name} keeps the laws of its kind."""

from privkit.testing import assert_laws


def test_it_keeps_the_laws_of_its_kind() -> None:
    assert_laws("{name}:{class_name}")
'''


def new(
    kind: Annotated[str, typer.Argument(help="|".join(_KINDS))],
    name: Annotated[str, typer.Argument(help="Name of the file and part, such as my_noise.")],
) -> None:
    """Write NAME.py with a small working part, and test_NAME.py, into the current folder; nothing is overwritten."""
    if kind not in _KINDS:
        raise unknown("kind", kind, _KINDS)
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        raise UsageError(
            f"a new {kind} is named with small letters, digits and _, at most 40 of them, got {shortened(name)}; "
            "the name becomes a Python module"
        )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if keyword.iskeyword(name) or keyword.iskeyword(class_name):
        raise UsageError(
            f"{name!r} is a word of Python's own, and no {kind} can have it; take another, such as my_{name}"
        )
    text = files("privkit.templates").joinpath(f"{kind}.py").read_text(encoding="utf-8")
    written = {
        f"{name}.py": re.sub(r"\btemplate\b", name, re.sub(r"\bTemplate\b", class_name, text)),
        f"test_{name}.py": _TEST.format(name=name, class_name=class_name),
    }
    if not Path(f"{name}.py").exists() and find_spec(name) is not None:
        raise UsageError(f"{name!r} is a module already, which {name}.py would hide; take another, such as my_{name}")
    if there := [path for path in written if Path(path).exists()]:
        raise UsageError(f"{there[0]} exists and is not overwritten; take another name, or move it away")
    for path, content in written.items():
        with writing(Path(path)), open(path, "x", encoding="utf-8") as file:
            file.write(content)
    say(f"wrote {' and '.join(written)}; go on with:")
    say(f"  privkit check {name}:{class_name}")
    say(f"  privkit audit --{kind} {name}:{class_name}")
    say(f"  pytest test_{name}.py")


def check(
    part: Annotated[str, typer.Argument(help="module:object or NAME, with options as in privkit audit.")],
    kind: Annotated[
        str | None, typer.Option(help="defense, attack, dataset, model or metric. [what the object is]")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Dataset whose records the model reads: NAME or NAME:key=value,…. [images of usual sizes]"),
    ] = None,
    data_root: Annotated[Path | None, typer.Option(envvar=DATA_ROOT_VARIABLE, help=SETTINGS["data_root"].help)] = None,
    as_json: Json = False,
) -> None:
    """Check one part, your own or privkit's, against the laws (required properties) of its kind; the part is run.

    Exit codes: 0 if every law holds, 1 if a law is broken, 2 if there is no such part.
    """
    from privkit.laws.parts import KINDS_WITH_LAWS, kind_of, laws

    kinds = {kind_noun(kind): kind for kind in KINDS_WITH_LAWS}
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
