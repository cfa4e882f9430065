"""Parameter tables: one row a mechanism, each row checked on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from privkit.accountants import validate
from privkit.accountants.columns import BY_NAME, DEFAULTS, translated
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.noise_laws import NOISE_LAWS, LawName
from privkit.accountants.spec.parts import (
    CutMix,
    EveryRound,
    Mixup,
    Noise,
    NoMixing,
    Poisson,
    ShuffledEpochs,
    WithoutReplacement,
)
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation
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
    """One row of a table, computed or refused.

    Attributes:
        row: 1-based, without the header.
        name: the row's name, or "row N".
        cells: the cells as read; by column name if the row was accepted.
        given: the cells as read, by the names in the file.
        mechanism: None if the row was refused.
        delta: δ of the row, or the default.
        error: why it was refused; empty otherwise.
    """

    row: int
    name: str
    cells: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    mechanism: SplitMechanism | None = None
    delta: float | None = None
    error: str = ""

    @property
    def where(self) -> str:
        """The row's number and name, for an error message."""
        return f"row {self.row}" + (f" ({self.name})" if self.cells.get("name") else "")


def mechanism_of(cells: Mapping[str, Any]) -> SplitMechanism:
    """The mechanism that one row describes.

    Cells are column name -> value, words of other libraries among the names; missing ones take the column's default. A
    ValueError names the column, what is allowed and what was given.

    >>> mechanism_of({"mechanism": "dp_sl", "sigma": "16/255", "dimensions": 10, "clip_high": 0.15}).noise.law
    'gaussian'
    """
    return _mechanism_of_row(translated(cells))


def _mechanism_of_row(given: Mapping[str, Any]) -> SplitMechanism:
    if "variance" in given:
        raise ValueError("noise is given as a standard deviation: put the square root of the variance into sigma")
    values = DEFAULTS | {name: BY_NAME[name].parse(name, value) for name, value in given.items()}
    get = values.__getitem__
    kind = get("mechanism")
    named: LawName = kind if kind in NOISE_LAWS else "gaussian"
    law = NOISE_LAWS[named]
    for name in ("mechanism",) if law.answers else ("mechanism", "sigma"):
        if get(name) is None:
            raise ValueError(f"{name} is empty; it must be {BY_NAME[name].what.removeprefix('required: ')}")
    if unused := [name for name in _foreign(kind) if name in given]:
        raise ValueError(f"{unused[0]} means nothing for mechanism = {kind}: leave it empty")
    labels = _label_set(get)
    sigma_labels = get("sigma_labels") if get("sigma_labels") is not None else get("sigma")
    return SplitMechanism(
        smashed=_clip(get, law.norm, law.answers),
        noise=Noise(
            law=named,
            smashed=_needed(get, "noise_parameter", kind) if law.answers else get("sigma"),
            labels=sigma_labels if labels else None,
            site=get("noise_site"),
        ),
        lower_model=get("lower_model"),
        relation=get("relation"),
        unit=get("unit"),
        labels=labels,
        mixing=_mixing_of_row(get),
        participation=_participation_of_row(get),
        rounds=get("rounds"),
        releases=get("releases"),
    )


def read(rows: Iterable[Mapping[str, Any]], default_delta: float | None = None) -> Iterator[TableEntry]:
    """The rows of a file, each checked on its own. A refused row has its error, and the others are computed.

    Values may be text; `default_delta` is the δ of rows without one.

    >>> [entry.error for entry in read([{"mechanism": "gaussian", "sigma": "-1", "sensitivity": "1"}], 1e-5)]
    ['row 1: sigma must be a finite number > 0, got -1.0']
    """
    for number, cells in zip(count(1), rows):
        name = cells.get("name")
        called = str(name) if name else f"row {number}"
        try:
            row = translated(cells)
            mechanism = _mechanism_of_row(row)  # first: a mistyped mechanism matters more than a missing δ
            given = row.get("delta")
            delta = BY_NAME["delta"].parse("delta", given) if given not in (None, "") else default_delta
            if delta is None:
                raise ValueError("delta is empty; fill the column or give --delta")
            checked = validate.delta(delta)
            yield TableEntry(row=number, name=called, cells=row, given=cells, mechanism=mechanism, delta=checked)
        except ValueError as error:
            refused = TableEntry(row=number, name=called, cells=cells, given=cells)
            yield replace(refused, error=f"{refused.where}: {error}")


def _clip(get: Callable[[str], Any], norm: Norm, answers: bool) -> ClipSet | Categories:
    """The clip set that the row names, exactly one of four ways; or what randomized response answers."""
    if answers:
        return Categories(classes=_needed(get, "classes", "randomized_response"), answers=get("dimensions") or 1)
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
        return PatchBall(radius=get("clip_patch"), patches=_needed(get, "patches", "clip_patch"))
    return Clamp(low=get("clip_low"), high=get("clip_high"), dimensions=get("dimensions"))


def _foreign(kind: str) -> tuple[str, ...]:
    if kind in NOISE_LAWS and NOISE_LAWS[kind].answers:
        return ("sigma", "sigma_labels", "sensitivity", "clip_high", "clip_norm", "clip_patch")
    return ("noise_parameter",) if kind == "hidden_mask" else ("noise_parameter", "kept")


def _label_set(get: Callable[[str], Any]) -> ClipSet | None:
    if get("labels") == "none":
        return None
    return OneHot() if get("labels") == "one_hot" else BoxLabels(classes=_needed(get, "classes", "labels = box"))


def _mixing_of_row(get: Callable[[str], Any]) -> NoMixing | Mixup | CutMix | HiddenMask:
    colluding = get("colluding") == "yes"
    if get("mechanism") == "hidden_mask":
        return HiddenMask(kept=_needed(get, "kept", "hidden_mask"), patches=_needed(get, "patches", "hidden_mask"))
    if get("mechanism") not in ("dp_mixsl", "dp_cutmixsl"):
        return NoMixing(colluding=colluding)
    ratio = _ratio(get)
    if get("mechanism") == "dp_mixsl":
        return Mixup(ratio=ratio, colluding=colluding)  # type: ignore[arg-type]  # it refuses counts with a sentence
    return CutMix(ratio=ratio, patches=_needed(get, "patches", "dp_cutmixsl"), colluding=colluding)


def _ratio(get: Callable[[str], Any]) -> FixedRatio | FixedCounts | DirichletRatio | DirichletCounts:
    law = get("ratio")
    if law == "fixed":
        return FixedRatio(ratios=_needed(get, "ratios", "ratio = fixed"))
    if law == "counts":
        return FixedCounts(counts=_needed(get, "counts", "ratio = counts"))
    group = _needed(get, "group", f"ratio = {law}")
    if law == "equal":
        return FixedRatio.equal(group)
    concentration = _needed(get, "concentration", f"ratio = {law}")
    cls = DirichletRatio if law == "dirichlet" else DirichletCounts
    return cls(concentration=concentration, clients=group, drawn=get("drawn"))


def _participation_of_row(
    get: Callable[[str], Any],
) -> EveryRound | ShuffledEpochs | WithoutReplacement | Poisson | RandomAllocation:
    epoch = get("rounds") if get("epoch_rounds") is None else get("epoch_rounds")
    if get("sampling") == "shuffled_epochs":
        if get("rate") is not None:
            raise ValueError(
                "rate belongs to sampling = poisson, which a loader that shuffles epochs does not draw: leave rate "
                "empty, or let the loader draw each record by a coin of its own"
            )
        return ShuffledEpochs(epoch_rounds=epoch)
    if get("sampling") == "random_allocation":
        return RandomAllocation(participations=get("participations"), epoch_rounds=epoch)
    if get("sampling") == "poisson":
        return Poisson(rate=_needed(get, "rate", "sampling = poisson"))
    if get("sampling") == "without_replacement":
        why = "sampling = without_replacement"
        group, clients = _needed(get, "group", why), _needed(get, "clients", why)
        if group > clients:
            raise ValueError(f"group must be at most clients = {clients}, of whom it is drawn, got {group}")
        return WithoutReplacement(chosen=group, clients=clients)
    return EveryRound()


def _needed(get: Callable[[str], Any], name: str, why: str) -> Any:
    value = get(name)
    if value is None:
        raise ValueError(f"{name} is empty; {why} needs it ({BY_NAME[name].what})")
    return value
