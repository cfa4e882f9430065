"""`privkit new`: a file to start a part of one's own from, with its test."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from privkit.cli.say import say
from privkit.errors import UsageError, shortened, unknown
from privkit.files.storage import writing

KINDS = ("defense", "attack", "model", "dataset", "metric")
_TEST = '''"""{class_name} keeps the laws of its kind."""

from privkit.testing import assert_laws


def test_it_keeps_the_laws_of_its_kind() -> None:
    assert_laws("{name}:{class_name}")
'''


def new(
    kind: Annotated[str, typer.Argument(help="|".join(KINDS))],
    name: Annotated[str, typer.Argument(help="Of the file and the part, such as my_noise.")],
) -> None:
    """Write NAME.py, a small part that works, and test_NAME.py into the current folder; nothing is overwritten."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
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
