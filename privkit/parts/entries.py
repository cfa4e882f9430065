"""Describes parts (defenses, attacks, …) by their fields and docstrings, for `privkit list` and `privkit describe`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from privkit.constraints import allowed
from privkit.errors import UsageError
from privkit.parts.registry import NAME, load, part_table, plug_ins


def misnamed(kind: str) -> list[str]:
    """Names of plug-ins of one kind that are ignored, because the names are not usable in paths, tables or commands."""
    return sorted({entry.name for entry in plug_ins(kind) if not NAME.match(entry.name)})


def part_entries(kind: str) -> list[dict[str, Any]]:
    """Describe all parts of a kind (such as "defenses"), each by a table: name, docstring, and options with defaults.
    The summary of a plug-in that cannot be loaded starts with "broken: "."""
    rows = []
    for name, target in sorted(part_table(kind).items()):
        try:
            rows.append(describe_part(name, load(target)))
        except UsageError as error:  # other plug-ins are still listed
            rows.append(_row(name, f"broken: {error}"))
    rule = "a name has letters, digits, _ and -, at most 64 of them"
    return rows + [_row(repr(name), f"left out: {rule}") for name in misnamed(kind)]


def _row(name: str, summary: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "summary": summary, "options": {}, "allowed": {}, "meaning": {}} | more


def describe_part(name: str, target: Any) -> dict[str, Any]:
    """Describe one part (defense, attack, …), registered or a user's own, as an entry of `part_entries`. Raises
    `UsageError` if `target` is neither a class, a function nor a dataclass."""
    spec = dataclasses.is_dataclass(target)
    if not (spec or isinstance(target, type) or callable(target)):
        raise UsageError("it is neither a class, a function nor a dataclass")
    summary = (target.__doc__ or "").strip().split("\n")[0]
    domain = getattr(target, "domain", None)  # what a dataset holds and a model reads; other parts have none
    more = {"domain": domain} if domain else {}
    if spec:
        more["options"] = {f.name: getattr(target, f.name, None) for f in dataclasses.fields(target)}
        more["allowed"] = _allowed(target)
        more["meaning"] = meanings_of(target if isinstance(target, type) else type(target))
    return _row(name, summary, **more, text=text_of(target) or summary, source=source_of(target))


def _allowed(target: Any) -> dict[str, str]:
    try:
        words = allowed(target if isinstance(target, type) else type(target))
    except (NameError, TypeError) as error:  # a plug-in's annotations may be faulty
        raise UsageError(f"its annotations cannot be read: {error}") from None
    cuts = getattr(target, "cuts", None)
    return words | {"cut": f"one of {', '.join(cuts)}"} if isinstance(cuts, tuple) else words


_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Examples?):$|^Source:|^>>> ")
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): +(.*)$")


def text_of(part: object) -> str:
    """The paragraphs of a docstring before its first section."""
    lines = _lines(part)
    end = next((number for number, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    return "\n".join(lines[:end]).strip()


def source_of(part: object) -> str:
    """The "Source:" section of a part's docstring, in one line; empty if there is none."""
    lines = _lines(part)
    start = next((number for number, line in enumerate(lines) if line.startswith("Source:")), len(lines))
    end = next((number for number in range(start, len(lines)) if not lines[number].strip()), len(lines))
    return " ".join(line.strip() for line in lines[start:end]).removeprefix("Source:").strip()


def meanings_of(cls: type) -> dict[str, str]:
    """The meanings of a class's fields by name, from the "Attributes" sections of the class and its base classes."""
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
