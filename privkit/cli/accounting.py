"""Commands of the accountants (epsilon, calibrate, permutations, doctor, ledger), which only parse and print."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import tee, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privkit.accountants.columns import COLUMNS, schema
from privkit.cli.flags import flag, whole_number, with_flags
from privkit.cli.show import say, say_json, show
from privkit.errors import StorageError, UsageError, tell, unknown
from privkit.run.stopping import keeping
from privkit.shared.rounding import rounded_up

if TYPE_CHECKING:
    from privkit.cli.budgets import Tally
    from privkit.reports.budgets import BudgetRow
    from privkit.shared.certificate import Certificate

_FORMATS = (".csv", ".json", ".md", ".tex")
_NOISE = ("sigma", "noise_parameter")
_SEARCHED = (*_NOISE, "rounds", "group", "delta")

_Delta = Annotated[float | None, typer.Option(help="δ in (0, 1) for rows without one.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable, on standard output.")]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="Closed forms and Rényi bounds; compose on a coarse grid instead of the fine one."),
]


def _with_columns(command: Callable[..., Any]) -> Callable[..., Any]:
    columns = (column for column in COLUMNS if column.name != "source")
    return with_flags(
        command,
        (flag(each.name, str, each.what + ("" if each.default is None else f" [{each.default}]")) for each in columns),
    )


@_with_columns
def epsilon(
    table: Annotated[
        str | None, typer.Argument(help="Parameter table: CSV, TOML or JSON; - reads CSV from standard input.")
    ] = None,
    delta: _Delta = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also print the published ε and its ratio to ours.")
    ] = False,
    fast: Fast = False,
    terms: Annotated[
        bool,
        typer.Option(
            "--terms",
            help="Print the guarantee in the terms of NIST SP 800-226, with zCDP and Gaussian DP; --out then takes "
            ".json.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write .csv, .json, .md or .tex.")] = None,
    as_json: Json = False,
    show_schema: Annotated[bool, typer.Option("--schema", help="Print the columns of a table.")] = False,
    **columns: str | None,
) -> None:
    """Compute ε for each row of a parameter table, or for one mechanism that flags describe.

    Rows are checked separately, so an error in one row does not stop the others.
    """
    if show_schema:
        for column in schema():
            default = f" [{column['default']}]" if column["default"] else ""
            say(f"{column['column']:<14} {column['what']}{default}")
        return
    given = {name: value for name, value in columns.items() if value is not None}
    if table is None and not given:
        raise UsageError("give a parameter table or the flags of one mechanism (privkit epsilon --schema shows both)")
    if table is not None and given:
        first = min(given).replace("_", "-")
        raise UsageError(f"{table} and --{first} were given; leave one out: the table has a column for each flag")
    if out is not None and out.suffix not in _FORMATS:
        raise UsageError(f"--out must end in {', '.join(_FORMATS)}, got {out}")
    if terms and out is not None and out.suffix != ".json":
        raise UsageError(f"--terms are printed, or written as .json, got --out {out}")
    from privkit.accountants import table as tables
    from privkit.cli.budgets import Tally, budgets

    entries, tally = tables.read([given] if table is None else _loaded(table), delta), Tally()
    rows = _write(tally.of(budgets(entries, tight=not fast, compare=compare, terms=terms)), out, compare)
    if as_json:
        from privkit.reports.budgets import json_text

        for text in json_text(rows):
            typer.echo(text, nl=False)
    else:
        deque(rows, maxlen=0)
    for sentence in tally.sentences():
        tell(sentence)
    if not tally.rows:
        raise UsageError(f"{table} holds no rows below its header")
    if not as_json:
        _print_table(tally, compare, out)
    if tally.refused:
        raise typer.Exit(3 if tally.computed else 2)


@_with_columns
def calibrate(
    parameter: Annotated[str, typer.Argument(help="sigma, noise_parameter, rounds, group or delta.")],
    epsilon: Annotated[float | None, typer.Option(help="Target ε.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ in (0, 1) for --epsilon; leave it out if δ itself is searched.")
    ] = None,
    advantage: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: the largest TPR − FPR of any attack.")
    ] = None,
    tpr: Annotated[
        str | None, typer.Option(help="Instead of --epsilon: TPR@FPR of any attack, such as .05@.01.")
    ] = None,
    fast: Fast = False,
    as_json: Json = False,
    **columns: str | None,
) -> None:
    """Find the smallest noise, the largest number of rounds, or the smallest group or δ that reaches a target.

    The target is an ε, or a limit on any attack: its advantage, or its true positive rate at a false positive rate. The
    flags describe the mechanism, and the search starts at their value of the parameter. A target that every value meets
    is refused. For randomized response, the parameter is noise_parameter instead of sigma.
    """
    from privkit.accountants import answer, calibration
    from privkit.accountants.table import mechanism_of, without_effect

    given: dict[str, Any] = {name: value for name, value in columns.items() if value is not None}
    if parameter not in _SEARCHED:
        raise unknown("parameter", parameter, _SEARCHED)
    if parameter == "sigma" and "sigma_labels" in given and "sigma" not in given:
        raise UsageError("the search scales sigma_labels with sigma: give --sigma, too, to set their proportion")
    if sum(target is not None for target in (epsilon, advantage, tpr)) != 1:
        raise UsageError(f"calibrate {parameter}: give one target, --epsilon, --advantage or --tpr")
    if epsilon is None:
        if parameter == "delta" or delta is not None:
            raise UsageError(
                f"calibrate {parameter}: --advantage and --tpr have no δ; leave --delta out, or give --epsilon"
            )
    elif (delta is None) != (parameter == "delta"):
        asked = "leave --delta out: δ is what is searched" if parameter == "delta" else "give --delta, in (0, 1)"
        raise UsageError(f"calibrate {parameter}: {asked}")
    how: dict[str, Any] = {"tight": not fast}
    try:
        # a mechanism with the other noise raises its own error
        begun = _NOISE if parameter in _NOISE else () if parameter == "delta" else (parameter,)
        mechanism = mechanism_of(given, dict.fromkeys(begun, 1))
        for sentence in without_effect(mechanism):
            tell(sentence)
        if parameter == "delta":
            least = answer.delta(mechanism, epsilon, **how)  # type: ignore[arg-type]
            return _print_found("delta", least.delta, least, as_json)
        start: Any = (mechanism, parameter)
        if tpr is not None:
            true, false = _rates(tpr)
            solved = calibration.calibrate_rates(*start, true_positives=true, false_positives=false, **how)
        elif advantage is not None:
            solved = calibration.calibrate_advantage(*start, advantage=advantage, **how)
        else:
            solved = calibration.calibrate(*start, epsilon=epsilon, delta=delta, **how)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(str(error)) from error
    labels = solved.mechanism.noise.labels if parameter == "sigma" else None
    limits: dict[str, float] = {}
    if epsilon is None:
        from privkit.accountants.region import region

        left = region(solved.mechanism, tight=not fast)
        limits["advantage"] = left.advantage
        if tpr is not None:
            limits |= {"true_positive_rate": float(left.true_positives(false)), "false_positive_rate": false}
    _print_found(parameter, solved.value, solved.certificate, as_json, labels, limits)


def permutations(
    tokens: Annotated[int, typer.Option(parser=whole_number, help="N, patches per image.")],
    batch: Annotated[int, typer.Option(parser=whole_number, help="B, images per batch; 1 is patch shuffling.")] = 1,
    keep: Annotated[float | None, typer.Option(help="k, share of patches that stay with their image. [0.4]")] = None,
    variant: Annotated[str, typer.Option(help="algorithm_2, final_shuffle or kept_in_place.")] = "final_shuffle",
    as_json: Json = False,
) -> None:
    """Count the orders of tokens after patch or batch shuffling (σ-privacy); this is no differential privacy."""
    from privkit.accountants.shuffles import certificates
    from privkit.accountants.shuffles import permutations as counts

    if keep is not None and not 0 <= keep <= 1:
        meant = keep.is_integer() and 1 < keep <= tokens
        hint = f"; {keep:g} of {tokens} patches are --keep {keep / tokens:.6g}" if meant else ""
        raise UsageError(f"--keep is the share of patches that stay with their image, from 0 to 1, got {keep:g}{hint}")
    if keep is not None and batch == 1:
        raise UsageError("--keep belongs to batch shuffling: give --batch, too (2 or more images), or leave --keep out")
    try:
        if batch == 1:
            certificate = certificates.patch_shuffle(tokens=tokens)
        else:
            kept = counts.kept_tokens(tokens, 0.4 if keep is None else keep)
            certificate = certificates.batch_shuffle(tokens=tokens, batch=batch, kept=kept, variant=variant)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(str(error)) from error
    if as_json:
        say_json(certificate)
    else:
        _print_certificate(certificate)


def doctor(
    everything: Annotated[bool, typer.Option("--all", help="Print every case, not only those that fail.")] = False,
) -> None:
    """Recompute privkit's reference values with the installed libraries; exit 1 if a value differs."""
    from privkit.accountants.golden import cases
    from privkit.accountants.wording import library_versions

    total, failed = 0, 0
    for case in cases():
        passed, value = case.check()
        total, failed = total + 1, failed + (not passed)
        if everything or not passed:
            mark = "ok  " if passed else "FAIL"
            say(f"{mark} {case.id:<44} {value:<24.12g} expected {case.expected:.12g}  {case.what}")
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    say(f"{total - failed} of {total} reference values reproduced ({versions}, Python {sys.version.split()[0]})")
    if failed:
        raise typer.Exit(1)


def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger's file.")],
    delta: Annotated[float | None, typer.Option(help="δ in (0, 1): print the ε that is proven at it.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε ≥ 0: print the δ that is proven at it.")] = None,
    fast: Fast = False,
    as_json: Json = False,
) -> None:
    """Compose all charges (privacy losses) of a ledger: print the ε at a given δ, or the δ at a given ε."""
    if (delta is None) == (epsilon is None):
        raise UsageError("give one of two: --delta for the ε that is proven at it, or --epsilon for the δ")
    if not os.path.isfile(path):
        raise UsageError(f"there is no ledger at {path}: name the file that a Ledger wrote")
    from dataclasses import asdict

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
    _print_certificate(spent)
    if now is not None:
        say(f"  so far: {now.statement}; this bound holds at every moment of the run, so it may exceed the ε above")
    say(*(f"  {remark}" for remark in remarks))


COMMANDS = (epsilon, calibrate, permutations, doctor, ledger)


def _rates(text: str) -> tuple[float, float]:
    true, _, false = text.partition("@")
    try:
        return float(true), float(false)
    except ValueError:
        raise UsageError(f"--tpr is TPR@FPR, such as .05@.01, got {text!r}") from None


def _print_found(
    name: str,
    value: Any,
    certificate: Certificate,
    as_json: bool,
    labels: float | None = None,
    limits: Mapping[str, float] | None = None,
) -> None:
    """Print the result of `calibrate`. Noise and δ are rounded up, so that the printed value reaches the target."""
    if as_json:
        fields = {"parameter": name, "value": value, "sigma_labels": labels, "certificate": certificate}
        fields |= {"limits": dict(limits)} if limits else {}
        say_json(fields)
        return
    say(f"{name} = {int(value):,}" if name in ("rounds", "group") else f"{name} = {rounded_up(value, 6)}")
    if labels is not None:
        say(f"sigma_labels = {rounded_up(labels, 6)}")
    if limits:
        told = f"no attack has an advantage above {rounded_up(limits['advantage'], 4)}"
        if "true_positive_rate" in limits:
            told += f", or a true positive rate above {rounded_up(limits['true_positive_rate'], 4)}"
            told += f" at a false positive rate of {limits['false_positive_rate']:g}"
        say(told)
    _print_certificate(certificate)


def _loaded(table: str) -> Iterator[Mapping[str, Any]]:
    from privkit.accountants import table as tables

    if table == "-" and isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="")
    try:
        yield from tables.load_rows(None, sys.stdin) if table == "-" else tables.load_rows(Path(table))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _write(rows: Iterator[BudgetRow], out: Path | None, compare: bool) -> Iterator[BudgetRow]:
    """Pass the rows on unchanged, and store them in the file `out`, if given. CSV and JSON are written row by row,
    while the rows are computed."""
    from privkit.reports import budgets as reports

    if out is None:
        yield from rows
    elif out.suffix in (".csv", ".json"):
        text, (kept, passed) = reports.csv_text if out.suffix == ".csv" else reports.json_text, tee(rows)
        with _written(out) as keep:
            for line, row in zip_longest(text(kept), passed):  # the heading is one more line
                keep(line)
                if row is not None:
                    yield row
    else:
        every = list(rows)
        with _written(out) as keep:
            keep((reports.budget_markdown if out.suffix == ".md" else reports.budget_latex)(every, compare))
        yield from every


@contextmanager
def _written(path: Path) -> Iterator[Callable[[str], object]]:
    """Open a file for writing, and yield its `write` function. An interruption keeps the lines that were written."""
    try:
        told = keeping(lambda: f"{path} keeps the rows before this one")
        with told, path.open("w", encoding="utf-8", newline="") as file:
            yield file.write
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def _print_table(tally: Tally, compare: bool, out: Path | None) -> None:
    from privkit.reports.budgets import BUDGETS_NOTE, budget_table, remarks
    from privkit.reports.tables import rich_table

    if not (shown := tally.shown):
        return
    show(rich_table(budget_table(shown, compare)))
    notes = (f"[{number}] {remark}" for number, remark in enumerate(remarks(shown, compare), start=1))
    show(BUDGETS_NOTE, *notes, style="dim")
    if tally.computed > len(shown):
        rest = f"; all are in {out}" if out else "; --out FILE stores all"
        say(f"the first {len(shown)} of {tally.computed:,} rows{rest}")
    if tally.last is not None and tally.rows == 1 and not shown[0].terms:
        _print_certificate(tally.last)
    for row in shown:
        if row.terms:
            say(f"{row.name}: {row.statement}", *(f"  {term}: {text}" for term, text in row.terms))


def _print_certificate(certificate: Any) -> None:
    say(certificate.statement)
    if certificate.method:
        say(f"  method: {certificate.method} ({certificate.source})")
    say(*(f"  {sentence}" for sentence in certificate.assumptions))
