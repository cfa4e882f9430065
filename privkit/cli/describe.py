"""One part in words: what it is, what its options mean, where it comes from."""

from __future__ import annotations

from textwrap import wrap
from typing import Annotated, Any

import typer

from privkit.cli.accounting import Json
from privkit.cli.described import described
from privkit.cli.say import say, say_json
from privkit.errors import unknown
from privkit.files.import_path import imported, with_options
from privkit.parts import docstrings
from privkit.parts.own_parts import kinds_of, own
from privkit.parts.registry import TABLES, as_written, describe_part

_WIDTH = 100


def describe(
    name: Annotated[
        str, typer.Argument(help="A defense, attack, dataset, model or other part: its name, or module:object.")
    ],
    as_json: Json = False,
) -> None:
    """Describe a part: what it does, and for each option its default, what is allowed, and what it means."""
    every = {kind: {entry["name"]: entry for entry in described(kind)} for kind in TABLES}
    found = [{"kind": kind, **entries[name]} for kind, entries in every.items() if name in entries]
    if not found and with_options(name) == (name, ""):
        found = [_own(kind, name) for kind in kinds_of(imported("the part", name))]
    if not found:
        raise unknown("part", name, {other for entries in every.values() for other in entries})
    if as_json:
        say_json(found, default=str)
        return
    for number, part in enumerate(found):
        say(*([""] if number else []), *_shown(part))


def _own(kind: str, name: str) -> dict[str, Any]:
    part = own(kind, name)
    entry = describe_part(name, part)
    return {"kind": kind, **entry, "text": docstrings.text(part) or entry["summary"], "source": docstrings.source(part)}


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
