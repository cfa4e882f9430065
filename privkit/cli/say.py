"""Prints to standard output. Text of unknown origin is printed literally, never interpreted as markup."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from typing import Any

import typer

from privkit.reports.escape import console, terminal, terminal_json


def say(*lines: str) -> None:
    """Print lines. A line break inside a line is escaped, since it can only come from a name of unknown origin."""
    for line in lines:
        typer.echo(terminal(line))


def show(shown: Any, **style: Any) -> None:
    """Print a table or a text, wrapped at words to the terminal's width, or to 160 characters elsewhere."""
    console(width=None if sys.stdout.isatty() else 160).print(shown, highlight=False, markup=False, **style)


def say_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON. Dataclasses become objects, and infinite numbers and NaN become null."""
    plain = json.loads(json.dumps(value, default=_fields), parse_constant=lambda _: None)
    typer.echo(terminal_json(json.dumps(plain, indent=indent, ensure_ascii=False)))


def _fields(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return json.loads(value.model_dump_json()) if hasattr(value, "model_dump_json") else str(value)
