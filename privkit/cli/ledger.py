"""`privkit ledger`: the composed privacy loss of all mechanisms (charges) in a ledger file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from privkit.cli.accounting import Json, print_certificate
from privkit.cli.say import say, say_json
from privkit.errors import UsageError


def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger's file.")],
    delta: Annotated[float | None, typer.Option(help="δ in (0, 1): print the ε that is proven at it.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε ≥ 0: print the δ that is proven at it.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Leave numerical composition out.")] = False,
    as_json: Json = False,
) -> None:
    """Compose all charges (privacy losses) of a ledger: the ε at a given δ, or the δ at a given ε."""
    if (delta is None) == (epsilon is None):
        raise UsageError("give one of two: --delta for the ε that is proven at it, or --epsilon for the δ")
    if not path.is_file():
        raise UsageError(f"there is no ledger at {path}: name the file that a Ledger wrote")
    from privkit.accountants.ledger import Ledger

    try:
        with Ledger(path, tight=not fast) as book:
            spent = book.epsilon(delta) if delta is not None else book.delta(epsilon or 0.0)
            now = book.so_far(delta) if delta is not None and book.adaptive else None
            remarks = book.remarks
    except ValueError as error:
        raise UsageError(str(error)) from error
    if as_json:
        say_json(asdict(spent) | ({} if now is None else {"so_far": now}))
        return
    print_certificate(spent)
    if now is not None:
        say(f"  so far: {now.statement}; this bound holds at every moment of the run, so it may exceed the ε above")
    for remark in remarks:
        say(f"  {remark}")
