"""Parses a part's docstring: its text, the meaning of each option, and its source."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?):$|^Source:|^>>> ")
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): +(.*)$")


def text(part: object) -> str:
    """The paragraphs of a docstring before its first section."""
    lines = _lines(part)
    end = next((number for number, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    return "\n".join(lines[:end]).strip()


def source(part: object) -> str:
    """The "Source:" section of a docstring, in one line; empty if there is none."""
    lines = _lines(part)
    start = next((number for number, line in enumerate(lines) if line.startswith("Source:")), len(lines))
    end = next((number for number in range(start, len(lines)) if not lines[number].strip()), len(lines))
    return " ".join(line.strip() for line in lines[start:end]).removeprefix("Source:").strip()


def meanings(cls: type) -> dict[str, str]:
    """The meanings of a class's fields, from its and its base classes' "Attributes" sections: name -> meaning.

    >>> from privkit.shared.interval import Interval
    >>> meanings(Interval)["n"]
    'number of trials, records or seeds behind the value.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = _lines(base)
        names: list[str] = []
        for line in lines[lines.index("Attributes:") + 1 :] if "Attributes:" in lines else []:
            if entry := _ENTRY.match(line):
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, entry[2])
            elif line.startswith("        ") and names:
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            elif line.strip():
                break
    return found


def _lines(part: object) -> list[str]:
    return inspect.cleandoc(part.__doc__ or "").split("\n")
