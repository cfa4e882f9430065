"""Read parameter tables. A row describes a mechanism, and each row is checked on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from privkit.accountants import validate
from privkit.accountants.columns import BY_NAME, COLUMN_DEFAULTS, translated, words
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import LARGEST, DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.noise_laws import NOISE_LAWS, LawName
from privkit.accountants.spec.parts import (
    ALWAYS,
    UNMIXED,
    CutMix,
    EveryRound,
    Mixup,
    Noise,
    NoMixing,
    Poisson,
    WithoutReplacement,
)
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, ShuffledEpochs
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
from privkit.accountants.table_files import load_rows as load_rows  # a part of this module's interface


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One row of a parameter table: its mechanism, or the reason why the row was refused."""

    row: int  # number of the row, from 1, without the header
    name: str  # the row's name, or "line N" in a CSV file and "row N" elsewhere
    cells: Mapping[str, Any]  # the cells as read; by column name if the row was accepted
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
                self.given[name] = BY_NAME[name].parse(said.get(name, name), value)
            except ValueError as error:
                wrong.append(str(error))
        if wrong:
            raise ValueError("; ".join(wrong))
        self._values = {**COLUMN_DEFAULTS, **start, **self.given}
        self._asked: set[str] = set()

    def __call__(self, name: str) -> Any:
        self._asked.add(name)
        return self._values[name]

    def needed(self, name: str, why: str) -> Any:
        value = self(name)
        if value is None:
            raise ValueError(f"{name} is empty; {why} needs it ({BY_NAME[name].what})")
        return value

    def check_all_asked(self) -> None:
        for name, value in self.given.items():
            column = BY_NAME[name]
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
    return _mechanism_of_row(translated(cells), words(cells), start or {})


def _mechanism_of_row(cells: Mapping[str, Any], said: Mapping[str, str], start: Mapping[str, Any]) -> SplitMechanism:
    if "variance" in cells:
        raise ValueError("noise is given as a standard deviation: put the square root of the variance into sigma")
    get = _Row(cells, said, start)
    kind = get("mechanism")
    named: LawName = kind if kind in NOISE_LAWS else "gaussian"
    law = NOISE_LAWS[named]
    for name in ("mechanism",) if law.answers else ("mechanism", "sigma"):
        if get(name) is None:
            raise ValueError(f"{name} is empty; it must be {BY_NAME[name].what.removeprefix('required: ')}")
    labels = _label_set(get)
    smashed = _clip(get, law.norm, law.answers)
    noise = Noise(
        law=named,
        smashed=get.needed("noise_parameter", kind) if law.answers else get("sigma"),
        labels=None if labels is None else get("sigma_labels") or get("sigma") or 1.0,  # 1 without a sigma
        site="mixer" if law.answers or kind == "hidden_mask" else get("noise_site"),
    )
    mixing, participation = _mixing_of_row(get), _participation_of_row(get)
    get.check_all_asked()
    return SplitMechanism(
        smashed=smashed,
        noise=noise,
        lower_model=get("lower_model"),
        relation=get("relation"),
        unit=get("unit"),
        labels=labels,
        mixing=mixing,
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
            row = translated(cells)
            # The mechanism comes first: an error in it matters more than a missing δ.
            mechanism = _mechanism_of_row(row, words(cells), {})
            given = row.get("delta")
            delta = BY_NAME["delta"].parse("delta", given) if given not in (None, "") else default_delta
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


def _label_set(get: _Row) -> ClipSet | None:
    if get("labels") == "none":
        return None
    return OneHot() if get("labels") == "one_hot" else BoxLabels(classes=get.needed("classes", "labels = box"))


def _mixing_of_row(get: _Row) -> NoMixing | Mixup | CutMix | HiddenMask:
    kind = get("mechanism")
    if kind == "hidden_mask":
        return HiddenMask(kept=get.needed("kept", "hidden_mask"), patches=get.needed("patches", "hidden_mask"))
    if kind == "randomized_response":
        return UNMIXED
    colluding = get("colluding") == "yes"
    if kind not in ("dp_mixsl", "dp_cutmixsl"):
        return NoMixing(colluding=True) if colluding else UNMIXED
    ratio = _ratio(get)
    if kind == "dp_mixsl":
        return Mixup(ratio=ratio, colluding=colluding)  # type: ignore[arg-type]  # Mixup refuses counts
    return CutMix(ratio=ratio, patches=get.needed("patches", "dp_cutmixsl"), colluding=colluding)


def _ratio(get: _Row) -> FixedRatio | FixedCounts | DirichletRatio | DirichletCounts:
    law = get("ratio")
    if law in ("fixed", "counts"):
        name = "ratios" if law == "fixed" else "counts"
        values = get.needed(name, f"ratio = {law}")
        if "group" in get.given and get("group") != len(values):
            raise ValueError(f"group must be {len(values)}, as many as {name}, or left empty, got {get('group')}")
        return FixedRatio(ratios=values) if law == "fixed" else FixedCounts(counts=values)
    group = validate.whole("group", get.needed("group", f"ratio = {law}"), most=LARGEST)
    if law == "equal":
        return FixedRatio.equal(group)
    concentration = get.needed("concentration", f"ratio = {law}")
    cls = DirichletRatio if law == "dirichlet" else DirichletCounts
    return cls(concentration=concentration, clients=group, drawn=get("drawn"))


def _participation_of_row(get: _Row) -> EveryRound | ShuffledEpochs | WithoutReplacement | Poisson | RandomAllocation:
    way = get("sampling")
    if way == "shuffled_epochs":
        if get("rate") is not None:
            raise ValueError(
                "rate belongs to sampling = poisson, but a loader that shuffles epochs does not sample that way: "
                "leave rate empty, or let the loader draw each record independently"
            )
        return ShuffledEpochs(epoch_rounds=get("epoch_rounds") or get("rounds"), records=get("records"))
    if way == "random_allocation":
        return RandomAllocation(participations=get("participations"), epoch_rounds=get("epoch_rounds") or get("rounds"))
    if way == "poisson":
        return Poisson(rate=get.needed("rate", "sampling = poisson"))
    if way == "without_replacement":
        why = "sampling = without_replacement"
        group, clients = get.needed("group", why), get.needed("clients", why)
        if group > clients:
            raise ValueError(f"group must be at most clients = {clients}, got {group}")
        return WithoutReplacement(chosen=group, clients=clients)
    return ALWAYS
