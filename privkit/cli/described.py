"""Descriptions of parts (defenses, attacks, …) for `list` and `describe`, kept in the user's cache until parts change.

Without the cache, each command would import torch to read them, which takes seconds.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from textwrap import wrap
from typing import Annotated, Any

import typer

from privkit import __version__
from privkit.cli.accounting import Json
from privkit.cli.say import say, say_json
from privkit.errors import PrivkitError, unknown
from privkit.files.caches import cache_folder
from privkit.files.import_path import imported, with_options
from privkit.files.paths import MOST_TEXT, read_bytes, root
from privkit.files.sealed import Broken, opened, sealed
from privkit.parts import entries as entries_of
from privkit.parts.entries import describe_part
from privkit.parts.own_parts import kinds_of, own
from privkit.parts.registry import PART_TABLES, as_written, plug_ins
from privkit.run.sources import own_source
from privkit.settings.early import own_table


def described(kind: str) -> list[dict[str, Any]]:
    """Describe all parts of one kind, such as "defenses": a table for each part, as `privkit list --json` prints it.
    The tables come from the user's cache if it is current. A kind with installed plug-ins is never cached."""
    if any(True for _ in plug_ins(kind)):
        return _read(kind)
    changes = [own_source(), sorted(own_table(kind).items()), __version__, sys.version]  # the cache is valid for these
    file, state = root(cache_folder()) / f"described-{kind}.json", json.dumps(changes)
    with suppress(OSError, Broken):
        return list(opened(read_bytes(file, MOST_TEXT), kind=kind, state=state)["entries"])
    entries = _read(kind)
    if any(entry["summary"].startswith("broken: ") for entry in entries):  # the missing package may be installed later
        return entries
    with suppress(PrivkitError, OSError):  # without a cache, commands are only slower
        from privkit.files.storage import write_bytes

        write_bytes(file, sealed({"kind": kind, "state": state, "entries": entries}).encode())
    return entries


def _read(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(json.dumps(entries_of.part_entries(kind), default=str))
    return found


_WIDTH = 100


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
    lines = [f"{part['name']} ({part['kind']})", "", *_paragraphs(part.get("text", part["summary"]))]
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


def _paragraphs(text: str) -> list[str]:
    blocks = [wrap(" ".join(block.split()), _WIDTH) for block in text.split("\n\n")]
    return [line for number, block in enumerate(blocks) for line in ([""] if number else []) + block]
