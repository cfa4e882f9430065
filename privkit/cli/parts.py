"""Commands for parts (defenses, attacks, …): `list` and `describe` show them, `new` and `check` help to add one."""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from privkit import __version__
from privkit.cli.accounting import Json
from privkit.cli.show import say, say_json
from privkit.errors import PrivkitError, UsageError, shortened, unknown
from privkit.files.caches import cache_folder
from privkit.files.import_path import imported, with_options
from privkit.files.paths import MOST_TEXT, read_bytes, root
from privkit.files.sealed import Broken, opened, sealed
from privkit.files.storage import write_bytes, writing
from privkit.parts import entries as entries_of
from privkit.parts.entries import describe_part
from privkit.parts.own_parts import kind_noun, kinds_of, own
from privkit.parts.registry import PART_TABLES, as_written, plug_ins
from privkit.run.sources import own_source
from privkit.settings.early import own_table
from privkit.settings.table import DATA_ROOT_VARIABLE, SETTINGS

_WIDTH = 100  # characters of a line of text
_KINDS = ("defense", "attack", "model", "dataset", "metric")
_TEST = '''"""{class_name} keeps the laws of its kind."""

from privkit.testing import assert_laws


def test_it_keeps_the_laws_of_its_kind() -> None:
    assert_laws("{name}:{class_name}")
'''


def described(kind: str) -> list[dict[str, Any]]:
    """Describe all parts of one kind, such as "defenses", by a table for each part, as `part_entries` makes it.
    The tables come from the user's cache if it is current. A kind with installed plug-ins is never cached."""
    if any(True for _ in plug_ins(kind)):
        return _read(kind)
    # the cache is valid as long as none of these changes
    changes = [own_source(), sorted(own_table(kind).items()), __version__, sys.version]
    file, state = root(cache_folder()) / f"described-{kind}.json", json.dumps(changes)
    with suppress(OSError, Broken):
        return list(opened(read_bytes(file, MOST_TEXT), kind=kind, state=state)["entries"])
    entries = _read(kind)
    if any(entry["summary"].startswith("broken: ") for entry in entries):  # the missing package may be installed later
        return entries
    with suppress(PrivkitError, OSError):  # without a cache, commands are only slower
        write_bytes(file, sealed({"kind": kind, "state": state, "entries": entries}).encode())
    return entries


def _read(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(json.dumps(entries_of.part_entries(kind), default=str))
    return found


def list_(
    kind: Annotated[str | None, typer.Argument(help="|".join(PART_TABLES))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List all parts (defenses, attacks, …) with their options and defaults; for one kind, also the allowed values.
    `privkit describe NAME` explains the options."""
    if kind is not None and kind not in PART_TABLES:
        raise unknown("kind", kind, PART_TABLES)
    about = ("text", "source")
    tables = {
        name: [{key: value for key, value in entry.items() if key not in about} for entry in described(name)]
        for name in ([kind] if kind else PART_TABLES)
    }
    if as_json:
        say_json(tables)
        return
    for name, entries in tables.items():
        say(name)
        width = max(14, *(len(entry["name"]) for entry in entries))
        for entry in entries:
            domain = f"[{entry['domain']}] " if "domain" in entry else ""
            say(f"  {entry['name']:<{width}} {domain}{entry['summary']}")
            for line in _option_lines(entry, apart=kind is not None):
                say(f"  {'':<{width}} {line}")


def _option_lines(entry: Mapping[str, Any], *, apart: bool) -> list[str]:
    written = {key: f"{key}={as_written(value)}" for key, value in entry["options"].items()}
    if apart:
        return [": ".join(filter(None, [text, entry["allowed"].get(key)])) for key, text in written.items()]
    return [f"options: {', '.join(written.values())}"] if written else []


def describe(
    name: Annotated[
        str, typer.Argument(help="A defense, attack, dataset, model or other part: its name, or module:object.")
    ],
    as_json: Json = False,
) -> None:
    """Describe a part: its purpose, and the default, the allowed values and the meaning of each option."""
    every = {kind: {entry["name"]: entry for entry in described(kind)} for kind in PART_TABLES}
    found = [{"kind": kind, **entries[name]} for kind, entries in every.items() if name in entries]
    if not found and with_options(name) == (name, ""):
        found = [
            {"kind": kind, **describe_part(name, own(kind, name))} for kind in kinds_of(imported("the part", name))
        ]
    if not found:
        raise unknown("part", name, {other for entries in every.values() for other in entries}, "privkit list")
    if as_json:
        say_json(found)
        return
    for number, part in enumerate(found):
        say(*([""] if number else []), *_shown(part))


def _shown(part: dict[str, Any]) -> list[str]:
    lines = [f"{part['name']} ({part['kind']})"]
    for block in part.get("text", part["summary"]).split("\n\n"):
        lines += ["", *wrap(" ".join(block.split()), _WIDTH)]
    if part["options"]:
        lines += ["", "Options:"]
    for option, default in part["options"].items():
        allowed = part["allowed"].get(option)
        lines.append(f"  {option}={as_written(default)}{f': {allowed}' if allowed else ''}")
        meaning = part["meaning"].get(option, "")
        lines += wrap(meaning, _WIDTH, initial_indent="      ", subsequent_indent="      ")
    if part.get("source"):
        lines += ["", *wrap(f"Source: {part['source']}", _WIDTH)]
    return lines


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
