"""Builds the command line's flags from the tables of settings and of accountants' columns, and parses their numbers."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from privkit.errors import UsageError, shortened
from privkit.settings.table import Setting


def flag(name: str, kind: Any, help_: str, *words: str, default: Any = None, **more: Any) -> inspect.Parameter:
    """A command-line flag as a parameter of a command's function; `words` are its spellings, if not `--name VALUE`."""
    option = typer.Option(*words, help=help_, **more)
    annotation: Any = Annotated[kind | None, option] if default is None else Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def flag_of(setting: Setting) -> inspect.Parameter:
    """The flag of a setting; its default is None if a configuration file may hold the setting, so that the file
    decides."""
    more: dict[str, Any] = {"parser": seed if setting.many else whole_number} if setting.kind is int else {}
    kind = list[setting.kind] if setting.many else setting.kind  # type: ignore[name-defined]
    words = (setting.flag,) if setting.kind is bool else ()
    default = None if setting.file else setting.default
    return flag(setting.name, kind, setting.text, *words, default=default, **more)


def with_flags(command: Callable[..., Any], flags: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Replace the `**keywords` of a command's function by these flags; its own parameters stay and win over flags."""
    signature = inspect.signature(command, eval_str=True)
    own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
    every = [*own.values(), *(each for each in flags if each.name not in own)]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in every}
    return command


class EachOnce(TyperCommand):
    """A command that refuses two values for a flag that takes one; otherwise the first would be lost silently."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read a command line's flags, and refuse a flag that is given twice."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for flag_, count in Counter(given).items():
            if count > 1 and not (flag_.multiple or flag_.is_flag):  # type: ignore[attr-defined]
                raise UsageError(f"{flag_.opts[0]} is given {count} times, and only one value counts; give it once")
        return super().parse_args(ctx, args)


def whole_number(given: str | int) -> int:
    """Parse a flag's text as a whole number; ranges and lists are refused, since libraries may read "0-4" as -4."""
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", str(given)):
        raise typer.BadParameter(f"one whole number such as 4, got {shortened(given)}")
    return int(given)


def seed(given: str | int) -> int:
    """Parse one seed; users repeat the flag for several seeds."""
    if re.search(r"[-,:\s]", str(given).strip().lstrip("-")):
        raise typer.BadParameter(
            f"one whole number, got {shortened(given)}; repeat the flag for several: --seed 0 --seed 1"
        )
    return whole_number(given)
