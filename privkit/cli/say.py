"""The only way to standard output: text of unknown origin is shown there and never interpreted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer

from privkit.reports.escape import terminal, terminal_json


def say(*lines: str) -> None:
    """Print lines. A line end inside a line is escaped, since it can only come from a name of unknown origin."""
    for line in lines:
        typer.echo(terminal(line))


def say_json(value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> None:
    """Print a value as JSON."""
    typer.echo(terminal_json(json.dumps(value, indent=indent, ensure_ascii=False, default=default)))
