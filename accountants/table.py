"""Read parameter tables: from a file (CSV with commas, semicolons or tabs; TOML; or JSON) to rows, and from rows to
mechanisms. A row describes a mechanism, and each row is checked on its own."""

from __future__ import annotations

import csv
import errno
import json
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from privkit.accountants import columns, validate
from privkit.accountants.spec import mixing, parts, secrets
from privkit.accountants.spec.mechanism import Mixing, Participation, SplitMechanism
from privkit.accountants.spec.noise_laws import NOISE_LAWS, LawName
from privkit.accountants.spec.sensitivity import (
    Ball,
    BoxLabels,
    Categories,
    Clamp,
    ClipSet,
    Known,
    Norm,
    OneHot,
    PatchBall,
)

_MOST_BYTES = 1 << 26  # size limit of a TOML or JSON table, which is read whole
_MOST_DOTS = 200
_SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers")
_DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One row of a parameter table: its mechanism, or the reason why the row was refused."""

    row: int  # number of the row, from 1, without the header
    name: str  # the row's name, or "line N" in a CSV file and "row N" elsewhere
    cells: Mapping[str, Any]  # the cells as read: by column name if the row was accepted, else as `given`
    given: Mapping[str, Any] = field(default_factory=dict)  # the cells as read, by the names in the file
    mechanism: SplitMechanism | None = None  # None if the row was refused
    delta: float | None = None  # δ of the row, or the default
    error: str = ""  # why the row was refused; empty otherwise
    line: int = 0  # the row's line in its file, as an editor counts; 0 if the file is not CSV

    @property
    def where(self) -> str:
        """The row's line or number, and its name, for an error message."""
        at = f"line {self.line}" if self.line else f"row {self.row}"
        return at + (f" ({self.name})" if self.cells.get("name") else "")


class _Row:
    def __init__(self, cells: Mapping[str, Any], said: Mapping[str, str], start: Mapping[str, Any]) -> None:
        self.said = said  # column -> another library's word by which the row gives it
        self.given: dict[str, Any] = {}  # the parsed cells by column name
        wrong = []
        for name, value in cells.items():
            try:
                self.given[name] = columns.BY_NAME[name].parse(said.get(name, name), value)
            except ValueError as error:
                wrong.append(str(error))
        if wrong:
            raise ValueError("; ".join(wrong))
        self._values = {**columns.COLUMN_DEFAULTS, **start, **self.given}
        self._asked: set[str] = set()

    def __call__(self, name: str) -> Any:
        self._asked.add(name)
        return self._values[name]

    def needed(self, name: str, why: str) -> Any:
        value = self(name)
        if value is None:
            raise ValueError(f"{name} is empty; {why} needs it ({columns.BY_NAME[name].what})")
        return value

    def check_all_asked(self) -> None:
        for name, value in self.given.items():
            column = columns.BY_NAME[name]
            if column.belongs and name not in self._asked and value != column.default:
                said = self.said.get(name, name)
                raise ValueError(
                    f"{said} would be ignored, as it belongs to {column.belongs}: leave {said} empty, or give what it "
                    "belongs to"
                )


def mechanism_of(cells: Mapping[str, Any], start: Mapping[str, Any] | None = None) -> SplitMechanism:
    """Build the mechanism that one row of a parameter table describes.

    `cells` maps column names (`columns.COLUMNS`), or other libraries' names for these columns, to values. A missing
    cell takes the value in `start` (the start of a search), or else the column's default. A ValueError names the
    column, the allowed range and the given value. A cell without any effect is an error, too.

    >>> mechanism_of({"mechanism": "dp_sl", "sigma": "16/255", "dimensions": 10, "clip_high": 0.15}).noise.law
    'gaussian'
    """
    return _mechanism_of_row(columns.translated(cells), columns.words(cells), start or {})


def without_effect(mechanism: SplitMechanism) -> tuple[str, ...]:
    """A sentence for each of the columns noise_site and colluding that was given although it changes no ε, because the
    mechanism does not mix clients.

    >>> row = {"mechanism": "dp_sl", "sigma": 1, "clip_norm": 1, "noise_site": "client"}
    >>> [sentence.partition(",")[0] for sentence in without_effect(mechanism_of(row))]
    ['noise_site = client has no effect']
    """
    if not isinstance(mechanism.mixing, parts.NoMixing):
        return ()
    said = []
    if mechanism.noise.site == "client":
        said.append("noise_site = client has no effect, as nothing is mixed and each client adds its noise anyway")
    if mechanism.mixing.colluding and not isinstance(mechanism.participation, parts.WithoutReplacement):
        said.append("colluding = yes has no effect, as nothing is mixed and no group of clients is drawn")
    return tuple(f"{sentence}; leave it out" for sentence in said)


def _mechanism_of_row(cells: Mapping[str, Any], said: Mapping[str, str], start: Mapping[str, Any]) -> SplitMechanism:
    if "variance" in cells:
        raise ValueError("noise is given as a standard deviation: put the square root of the variance into sigma")
    get = _Row(cells, said, start)
    kind = get("mechanism")
    named: LawName = kind if kind in NOISE_LAWS else "gaussian"
    law = NOISE_LAWS[named]
    for name in ("mechanism",) if law.answers else ("mechanism", "sigma"):
        if get(name) is None:
            raise ValueError(f"{name} is empty; it must be {columns.BY_NAME[name].what.removeprefix('required: ')}")
    labels: ClipSet | None = None
    if (labelled := get("labels")) != "none":
        labels = OneHot() if labelled == "one_hot" else BoxLabels(classes=get.needed("classes", "labels = box"))
    smashed = _clip(get, law.norm, law.answers)
    noise = parts.Noise(
        law=named,
        smashed=get.needed("noise_parameter", kind) if law.answers else get("sigma"),
        labels=None if labels is None else get("sigma_labels") or get("sigma") or 1.0,  # 1 without a sigma
        site="mixer" if law.answers or kind == "hidden_mask" else get("noise_site"),
    )
    mixed, participation = _mixing_of_row(get), _participation_of_row(get)
    get.check_all_asked()
    return SplitMechanism(
        smashed=smashed,
        noise=noise,
        lower_model=get("lower_model"),
        relation=get("relation"),
        unit=get("unit"),
        labels=labels,
        mixing=mixed,
        participation=participation,
        rounds=get("rounds"),
        releases=get("releases"),
    )


def read(rows: Iterable[Mapping[str, Any]], default_delta: float | None = None) -> Iterator[TableEntry]:
    """Yield an entry for each row of a parameter table: its mechanism, or the error if this row is refused.
    `default_delta` is the δ of rows that give none."""
    for number, cells in zip(count(1), rows):
        name, line = cells.get("name"), getattr(cells, "line", 0)
        called = str(name) if name else f"line {line}" if line else f"row {number}"
        try:
            row = columns.translated(cells)
            # The mechanism comes first: an error in it matters more than a missing δ.
            mechanism = _mechanism_of_row(row, columns.words(cells), {})
            given = row.get("delta")
            delta = columns.BY_NAME["delta"].parse("delta", given) if given not in (None, "") else default_delta
            if delta is None:
                raise ValueError("delta is empty; fill the column or give --delta")
            checked = validate.delta(delta)
            yield TableEntry(
                row=number, line=line, name=called, cells=row, given=cells, mechanism=mechanism, delta=checked
            )
        except ValueError as error:
            refused = TableEntry(row=number, line=line, name=called, cells=cells, given=cells)
            yield replace(refused, error=f"{refused.where}: {error}")


def _clip(get: _Row, norm: Norm, answers: bool) -> ClipSet | Categories:
    if answers:
        return Categories(classes=get.needed("classes", "randomized_response"), answers=get("dimensions") or 1)
    ways = [name for name in ("sensitivity", "clip_norm", "clip_patch", "clip_high") if get(name) is not None]
    if len(ways) > 1:
        raise ValueError(f"{ways[0]} and {ways[1]} are both given; one of them must be empty")
    if not ways or (ways == ["clip_high"] and get("dimensions") is None):
        empty = "dimensions" if get("dimensions") is None else "clip_high"
        raise ValueError(
            f"{empty} is empty; a clamp needs dimensions and clip_high (or give clip_norm, clip_patch or sensitivity)"
        )
    if ways == ["sensitivity"]:
        return Known(value=get("sensitivity"), relation=get("relation"), norm=norm)
    if ways == ["clip_norm"]:
        return Ball(radius=get("clip_norm"))
    if ways == ["clip_patch"]:
        return PatchBall(radius=get("clip_patch"), patches=get.needed("patches", "clip_patch"))
    low = get("clip_low")
    return Clamp(low=low, high=validate.real("clip_high", get("clip_high"), above=low), dimensions=get("dimensions"))


def _mixing_of_row(get: _Row) -> Mixing:
    kind = get("mechanism")
    if kind == "hidden_mask":
        return secrets.HiddenMask(kept=get.needed("kept", "hidden_mask"), patches=get.needed("patches", "hidden_mask"))
    if kind == "randomized_response":
        return parts.UNMIXED
    colluding = get("colluding") == "yes"
    if kind not in ("dp_mixsl", "dp_cutmixsl"):
        return parts.NoMixing(colluding=True) if colluding else parts.UNMIXED
    ratio = _ratio(get)
    if kind == "dp_mixsl":
        return parts.Mixup(ratio=ratio, colluding=colluding)  # type: ignore[arg-type]  # Mixup refuses counts
    return parts.CutMix(ratio=ratio, patches=get.needed("patches", "dp_cutmixsl"), colluding=colluding)


def _ratio(get: _Row) -> mixing.Ratio:
    law = get("ratio")
    if law in ("fixed", "counts"):
        name = "ratios" if law == "fixed" else "counts"
        values = get.needed(name, f"ratio = {law}")
        if "group" in get.given and get("group") != len(values):
            raise ValueError(f"group must be {len(values)}, as many as {name}, or left empty, got {get('group')}")
        return mixing.FixedRatio(ratios=values) if law == "fixed" else mixing.FixedCounts(counts=values)
    group = validate.whole("group", get.needed("group", f"ratio = {law}"), most=mixing.LARGEST)
    if law == "equal":
        return mixing.FixedRatio.equal(group)
    concentration = get.needed("concentration", f"ratio = {law}")
    cls = mixing.DirichletRatio if law == "dirichlet" else mixing.DirichletCounts
    return cls(concentration=concentration, clients=group, drawn=get("drawn"))


def _participation_of_row(get: _Row) -> Participation:
    way = get("sampling")
    if way == "shuffled_epochs":
        if get("rate") is not None:
            raise ValueError(
                "rate belongs to sampling = poisson, but a loader that shuffles epochs does not sample that way: "
                "leave rate empty, or let the loader draw each record independently"
            )
        return secrets.ShuffledEpochs(epoch_rounds=get("epoch_rounds") or get("rounds"), records=get("records"))
    if way == "random_allocation":
        return secrets.RandomAllocation(
            participations=get("participations"), epoch_rounds=get("epoch_rounds") or get("rounds")
        )
    if way == "poisson":
        return parts.Poisson(rate=get.needed("rate", "sampling = poisson"))
    if way == "without_replacement":
        why = "sampling = without_replacement"
        group, clients = get.needed("group", why), get.needed("clients", why)
        if group > clients:
            raise ValueError(f"group must be at most clients = {clients}, got {group}")
        return parts.WithoutReplacement(chosen=group, clients=clients)
    return parts.ALWAYS


class Cells(dict[str, Any]):
    """The cells of one row of a CSV file."""

    line = 0  # number of the line on which the row ends, as an editor counts


def load_rows(path: Path | None, stream: TextIO | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a parameter table, each as a dict from header to cell. A file named *.toml holds `[[row]]`
    tables, and *.json a list of objects. Any other file is CSV, and so is a stream.

    The delimiter of CSV is the comma, semicolon or tab that yields the most known column names. Empty lines and lines
    that begin with # are skipped. A cell that a row lacks is empty. Raises ValueError if the file cannot be read in its
    format, or if a CSV header names an unknown column.
    """
    where = "standard input" if path is None else str(path)
    try:
        if path is None:
            assert stream is not None
            yield from _csv(stream, where)
        elif path.suffix == ".toml":
            yield from _objects(tomllib.loads(_whole_text(path)).get("row"), path)
        elif path.suffix == ".json":
            yield from _objects(json.loads(_whole_text(path)), path)
        else:
            _check_kind(path)
            if path.suffix.lower() in _SHEETS:
                raise ValueError(f"{where} is a spreadsheet ({path.suffix}); save its table as CSV in UTF-8")
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield from _csv(file, where)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ValueError(f"{where} is nested too deeply") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ValueError(f"{where}: {error}") from error


def _check_kind(path: Path) -> None:
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a file")


def _whole_text(path: Path) -> str:
    _check_kind(path)
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES >> 20} MiB; save it as CSV, which is read row by row")
    text = data.decode("utf-8-sig")
    for number, line in enumerate(text.splitlines() if path.suffix == ".toml" else (), start=1):
        if line.count(".") > _MOST_DOTS:  # a dotted key takes time and memory in the square of its parts
            raise ValueError(f"{path} line {number} has more than {_MOST_DOTS} dots")
    return text


def _csv(file: Iterable[str], where: str) -> Iterator[Mapping[str, Any]]:
    counted = _Counted(file)
    lines = _content(counted)
    first = next(lines, "")
    if "\0" in first:
        raise ValueError(f"{where} is not text: it holds zero bytes; save the table as CSV in UTF-8")
    if not first.strip():
        raise ValueError(f"{where} is empty; its first line must name columns (see privkit epsilon --schema)")
    headers = {
        mark: [columns.spelled(name) for name in next(csv.reader([first], delimiter=mark))] for mark in _DELIMITERS
    }
    delimiter = max(_DELIMITERS, key=lambda mark: sum(columns.known(name) for name in headers[mark]))
    names = headers[delimiter]
    while names and not names[-1]:  # a delimiter at the end of the line
        names.pop()
    try:
        columns.check_known(names)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{where} names the column {twice[0]!r} twice")
    for cells in csv.reader(lines, delimiter=delimiter):
        values = [cell.strip() for cell in cells]
        if any(values):
            row = Cells(zip(names, values + [""] * (len(names) - len(values)), strict=False))
            row.line = counted.line
            if any(values[len(names) :]):
                row[columns.TOO_MANY] = values[len(names) :]
            yield row


class _Counted:
    def __init__(self, file: Iterable[str]) -> None:
        self._file, self.line = file, 0

    def __iter__(self) -> Iterator[str]:
        for self.line, text in enumerate(self._file, start=1):  # noqa: B020
            yield text


def _content(file: Iterable[str]) -> Iterator[str]:
    """The lines without comments and without empty lines before the header; a line inside quotes is not a comment."""
    quoted, begun = False, False
    for line in file:
        if not quoted and (line.lstrip().startswith("#") or not (begun or line.strip())):
            continue
        begun = True
        quoted ^= line.count('"') % 2 == 1
        yield line


def _objects(value: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        wanted = "[[row]] tables" if path.suffix == ".toml" else "a list of objects"
        raise ValueError(f"{path} must hold {wanted}, one per row")
    names = dict.fromkeys(columns.spelled(name) for row in value for name in row)
    for row in value:
        yield names | {columns.spelled(name): cell for name, cell in row.items()}
