"""Builds command-line flags from the tables of settings and of the accountants' columns, and parses their numbers."""

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
    """Make a command-line flag, as a parameter of a command's function. `kind` is the type of its value, `help_` its
    help text. `words` are its spellings, by default `--name VALUE`."""
    option = typer.Option(*words, help=help_, **more)
    annotation: Any = Annotated[kind | None, option] if default is None else Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def flag_of(setting: Setting) -> inspect.Parameter:
    """Make the flag of a setting. The flag's default is None if a configuration file may hold the setting, so that the
    file decides.
    """
    more: dict[str, Any] = {"parser": seed if setting.many else whole_number} if setting.kind is int else {}
    kind = list[setting.kind] if setting.many else setting.kind  # type: ignore[name-defined]
    words = (setting.flag,) if setting.kind is bool else ()
    default = None if setting.file else setting.default
    return flag(setting.name, kind, setting.text, *words, default=default, **more)


def with_flags(command: Callable[..., Any], flags: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Replace the `**keywords` in the signature of a command's function by `flags`, and return the function. A flag
    with the name of another parameter of the function is left out."""
    signature = inspect.signature(command, eval_str=True)
    own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
    every = [*own.values(), *(each for each in flags if each.name not in own)]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in every}
    return command


class EachOnce(TyperCommand):
    """A command that raises `UsageError` if a flag for one value is given twice; otherwise the first would be lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as Typer does. Raises `UsageError` if a flag for a single value is given twice."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for flag_, count in Counter(given).items():
            if count > 1 and not (flag_.multiple or flag_.is_flag):  # type: ignore[attr-defined]
                raise UsageError(f"{flag_.opts[0]} is given {count} times, and only one value counts; give it once")
        return super().parse_args(ctx, args)


def whole_number(given: str | int) -> int:
    """Parse a flag's text as a whole number of at most 20 digits. Raises `BadParameter` for other text, such as the
    range "0-4", which some libraries would read as -4."""
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", str(given)):
        raise typer.BadParameter(f"one whole number such as 4, got {shortened(given)}")
    return int(given)


def seed(given: str | int) -> int:
    """Parse one seed. Raises `BadParameter` for a list or range, since users repeat the flag for several seeds."""
    if re.search(r"[-,:\s]", str(given).strip().lstrip("-")):
        raise typer.BadParameter(
            f"one whole number, got {shortened(given)}; repeat the flag for several: --seed 0 --seed 1"
        )
    return whole_number(given)
