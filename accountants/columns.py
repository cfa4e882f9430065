"""The columns of a parameter table, whose rows describe mechanisms. The command line's flags come from this list.

A header may contain capitals and spaces. Names from opacus, TF Privacy and dp_accounting are understood, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from re import IGNORECASE, fullmatch, split
from typing import Any

from privkit.accountants import validate

_MECHANISMS = ("gaussian", "laplace", "dp_sl", "dp_mixsl", "dp_cutmixsl", "hidden_mask", "randomized_response")


@dataclass(frozen=True)
class Column:
    """One column of a parameter table."""

    name: str  # the column's name in the header
    parse: Callable[[str, Any], Any]  # text or JSON value -> value; raises ValueError with what is allowed
    what: str  # description for `privkit epsilon --schema`
    default: Any = None  # the value if the cell is empty or the column absent
    belongs: str = ""  # the settings in which the column has a meaning; empty if it always has one


def _number(name: str, text: str) -> float:
    top, slash, bottom = text.partition("/")
    try:
        if "_" in text:  # Python reads 1_0 as 10
            raise ValueError
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError):
        if fullmatch(r"\s*-?\d*,\d+(e[+-]?\d+)?\s*", text, IGNORECASE):
            raise ValueError(f"{name} must have a decimal point, such as 0.5, got {text!r}") from None
        if fullmatch(r"\s*\d*[.,]?\d*\s*%\s*", text):
            raise ValueError(f"{name} must be a share, such as 0.01 for 1 %, got {text!r}") from None
        raise ValueError(f"{name} must be a number such as 0.5 or 16/255, got {text!r}") from None


def _decimal(**limits: float) -> Callable[[str, Any], float]:
    def parsed(name: str, value: Any) -> float:
        return validate.real(name, _number(name, value) if isinstance(value, str) else value, **limits)

    return parsed


def _whole(least: int = 1) -> Callable[[str, Any], int]:
    def parsed(name: str, value: Any) -> int:
        if isinstance(value, str) and fullmatch(r"\s*[1-9]\d{0,2}\.000\s*", value):
            few = value.strip().removesuffix(".000")
            raise ValueError(f"{name}={value!r} may mean {few} or {few}000; write one of them")
        number = _number(name, value) if isinstance(value, str) else value
        if isinstance(number, float) and isfinite(number) and number == int(number):
            number = int(number)
        return validate.whole(name, number, least=least)

    return parsed


_positive = _decimal(above=0)


def _word(*allowed: str) -> Callable[[str, Any], str]:
    def parsed(name: str, value: Any) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        word = "_".join(value.lower().replace("-", " ").split()) if isinstance(value, str) else value
        chosen: str = validate.choice(name, word if word in allowed else value, allowed)
        return chosen

    return parsed


def _any_text(name: str, value: Any) -> str:
    return str(value)


def _list_of(parse: Callable[[str, Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    def parsed(name: str, value: Any) -> tuple[Any, ...]:
        parts = split(r"\s*;\s*|\s+", value.strip()) if isinstance(value, str) else value
        if not isinstance(parts, list):
            raise ValueError(f"{name} must be a list such as 0.7;0.3, got {value!r}")
        return tuple(parse(name, part) for part in parts)

    return parsed


def _one_of(name: str, allowed: tuple[str, ...], what: str, default: str, belongs: str = "") -> Column:
    return Column(name, _word(*allowed), f"{', '.join(allowed)}: {what}", default, belongs)


_WAYS = ("every_round", "shuffled_epochs", "without_replacement", "poisson", "random_allocation")
_RATIOS = ("equal", "fixed", "counts", "dirichlet", "dirichlet_counts")

_NUMBERS = "every mechanism but randomized_response, which has noise_parameter"
_OTHERS = "every mechanism but hidden_mask and randomized_response"
_MIXES = "mechanism = dp_mixsl or dp_cutmixsl"
_RANDOM = "ratio = dirichlet or dirichlet_counts"

COLUMNS: tuple[Column, ...] = (
    Column("name", _any_text, "any text; names the row in the answer"),
    Column("mechanism", _word(*_MECHANISMS), f"required: {', '.join(_MECHANISMS)}"),
    Column(
        "sigma",
        _positive,
        "required: noise's standard deviation, or scale b for laplace; > 0; empty for randomized_response",
        belongs=_NUMBERS,
    ),
    Column(
        "noise_parameter",
        _decimal(above=0, most=1),
        "for randomized_response: probability in (0, 1] of a uniform answer instead of the true one",
        belongs="mechanism = randomized_response",
    ),
    Column(
        "sigma_labels",
        _positive,
        "the same for noise on labels; by default sigma, if labels are released",
        belongs="labels = one_hot or box",
    ),
    Column(
        "sensitivity",
        _positive,
        "for gaussian (L2) and laplace (L1): known sensitivity instead of a clip",
        belongs=_NUMBERS,
    ),
    Column(
        "dimensions",
        _whole(),
        "number of coordinates of one record's smashed data, with clip_high; for randomized_response, of answers in a "
        "release",
        belongs="clip_high, or mechanism = randomized_response",
    ),
    Column("clip_low", _decimal(), "lower end of the coordinate clamp", 0.0, belongs="clip_high"),
    Column("clip_high", _decimal(), "upper end of the coordinate clamp (Δ)", belongs=_NUMBERS),
    Column("clip_norm", _positive, "L2 norm of the whole release, instead of the clamp", belongs=_NUMBERS),
    Column("clip_patch", _positive, "L2 norm of every patch, with patches, instead of the clamp", belongs=_NUMBERS),
    Column("labels", _word("none", "one_hot", "box"), "none, one_hot, or box for [0,1]^L", "none"),
    Column(
        "classes",
        _whole(),
        "L, for labels = box; categories of an answer, for randomized_response",
        belongs="labels = box, or mechanism = randomized_response",
    ),
    Column(
        "group",
        _whole(),
        "k, number of clients that are mixed; for dp_sl, of clients drawn in a round",
        belongs=f"{_MIXES}, or sampling = without_replacement",
    ),
    Column("clients", _whole(), "n, for sampling = without_replacement", belongs="sampling = without_replacement"),
    Column(
        "sampling",
        _word(*_WAYS),
        "who takes part in a round: every_round (all, also round-robin groups), shuffled_epochs (each record in one of "
        "epoch_rounds batches, as loaders deal them), without_replacement (group of clients), poisson (each with "
        "probability rate) or random_allocation (each in participations of epoch_rounds)",
        "every_round",
    ),
    Column(
        "participations",
        _whole(),
        "k, the rounds of every t in which each unit takes part, for sampling = random_allocation",
        1,
        belongs="sampling = random_allocation",
    ),
    Column(
        "epoch_rounds",
        _whole(),
        "t, the rounds of an epoch, for sampling = random_allocation or shuffled_epochs; empty means all rounds",
        belongs="sampling = random_allocation or shuffled_epochs",
    ),
    Column(
        "records",
        _whole(2),
        "n, number of one client's records, for sampling = shuffled_epochs with a secret uniform order and each "
        "record alone in a row; empty gives no credit for the order",
        belongs="sampling = shuffled_epochs",
    ),
    Column("rate", _decimal(above=0, most=1), "for sampling = poisson, from 1e-300 to 1", belongs="sampling = poisson"),
    Column(
        "rounds",
        _whole(),
        "T; if the unit is a record, how often it is released (k of n: in how many rounds it would be released if "
        "its client were drawn; shuffled_epochs: all batches of the run)",
        1,
    ),
    Column("releases", _whole(), "number of releases of a client in a round", 1),
    Column("delta", _decimal(above=0, below=1), "in (0, 1); --delta if empty"),
    _one_of("relation", ("replace_one", "add_or_remove_one"), "neighbors", "replace_one"),
    Column("unit", _word("record", "client"), "record or client", "record"),
    _one_of("lower_model", ("frozen", "trained", "averaged"), "how the clients' segment changes", "frozen"),
    _one_of("ratio", _RATIOS, "law of the mixing ratios", "equal", belongs=_MIXES),
    Column("ratios", _list_of(_decimal()), "for ratio = fixed: 0.7;0.3", belongs=f"ratio = fixed, with {_MIXES}"),
    Column("counts", _list_of(_whole(0)), "for ratio = counts: 32;32", belongs=f"ratio = counts, with {_MIXES}"),
    Column(
        "concentration",
        _positive,
        "α_M, for ratio = dirichlet and dirichlet_counts",
        belongs=f"{_RANDOM}, with {_MIXES}",
    ),
    Column(
        "drawn",
        _word("every_round", "once"),
        "when ratio = dirichlet and dirichlet_counts are drawn: every_round, or once and kept for all rounds",
        "every_round",
        belongs=f"{_RANDOM}, with {_MIXES}",
    ),
    Column(
        "patches",
        _whole(),
        "N, for dp_cutmixsl, hidden_mask and clip_patch",
        belongs="mechanism = dp_cutmixsl or hidden_mask, or clip_patch",
    ),
    Column("kept", _whole(), "number of patches that a mask keeps, for hidden_mask", belongs="mechanism = hidden_mask"),
    _one_of(
        "noise_site",
        ("mixer", "client"),
        "who adds the noise: the mixer, once to the mixture, or each client, before mixing weakens it; the defense "
        "dp_cutmixsl has site=client by default",
        "mixer",
        belongs=_OTHERS,
    ),
    Column(
        "colluding",
        _word("no", "yes"),
        "yes if other clients may reveal to the server their data, their noise and who took part",
        "no",
        belongs=_OTHERS,
    ),
    Column("source", _any_text, "any text; copied to the answer"),
)
"""The reader, the schema and the flags of the command line come from this list."""
BY_NAME = {column.name: column for column in COLUMNS}
COLUMN_DEFAULTS = {column.name: column.default for column in COLUMNS}


def schema() -> list[dict[str, str]]:
    """A description of every column of the parameter table: dicts of texts with the keys column, default and what."""
    return [
        {"column": one.name, "default": "" if one.default is None else str(one.default), "what": one.what}
        for one in COLUMNS
    ]


_SAME = {
    "sample_rate": "rate",
    "sampling_rate": "rate",
    "sampling_probability": "rate",
    "steps": "rounds",
    "num_steps": "rounds",
    "num_buckets": "classes",
    "max_grad_norm": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "target_delta": "delta",
}
"""Another library's word -> the column with the same meaning."""
_LONGEST, _NAMED = 60, 8
TOO_MANY = ""  # name under which a reader keeps cells that no header names
_MULTIPLIER = "noise_multiplier"
_RATES = frozenset(("sample_rate", "sampling_rate", "sampling_probability"))
DP_SGD = _RATES | {_MULTIPLIER, "max_grad_norm", "l2_norm_clip"}
"""Column names of DP-SGD libraries. They imply neighbors by adding or removing a record, if the row gives no
relation."""
_KNOWN = frozenset((*BY_NAME, *_SAME, _MULTIPLIER, "variance"))


def spelled(name: str) -> str:
    """A header in the spelling of column names: small letters, with underscores for spaces and hyphens."""
    return "_".join(name.strip().lower().replace("-", " ").split())


def known(name: str) -> bool:
    """Whether a spelled header is the name of a column, or another library's word for a column."""
    return name in _KNOWN


def check_known(names: Iterable[str]) -> None:
    """Raise ValueError if a name is not a column of the parameter table, and suggest the nearest known names."""
    if TOO_MANY in (given := list(names)):
        raise ValueError("the row has more cells than the header; put cells that hold the delimiter into quotes")
    if strange := [name for name in given if name not in _KNOWN]:
        words = [*BY_NAME, *_SAME, _MULTIPLIER]
        near = [repr(one) for name in strange for one in get_close_matches(name[:_LONGEST], words, n=1)]
        cut = [repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}...") for name in strange[:_NAMED]]
        more = f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
        hint = f"; did you mean {', '.join(near[:_NAMED])}?" if near else ""
        raise ValueError(
            f"unknown column{'s' * (len(strange) > 1)} {', '.join(cut)}{more}{hint} "
            "(privkit epsilon --schema lists the columns)"
        )


def translated(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a table row's cells to privkit's column names, and drop empty cells. Some names imply further values.

    `sample_rate` implies Poisson sampling. `noise_multiplier` is σ divided by the L2 sensitivity under adding or
    removing a record; this sensitivity is the clipping norm, or 1 without a clip.

    Source: opacus `PrivacyEngine`; dp_accounting `GaussianDpEvent`, `PoissonSampledDpEvent`.

    >>> row = translated({"noise_multiplier": "1.1", "sample_rate": "0.01", "steps": "1000"})
    >>> row["sigma"], row["rate"], row["rounds"], row["relation"]
    (1.1, '0.01', '1000', 'add_or_remove_one')
    """
    given = {name: value for name, value in cells.items() if value is not None and value != ""}
    check_known(given)
    row: dict[str, Any] = {}
    for name, value in given.items():
        column = _SAME.get(name, name)
        if column in row:
            raise ValueError(f"{column} is given twice, as {name} too; keep one of them")
        row[column] = value
    if not _RATES.isdisjoint(given):
        row.setdefault("sampling", "poisson")
    if not DP_SGD.isdisjoint(given):
        row.setdefault("relation", "add_or_remove_one")
    return _with_sigma(row, words(given)) if _MULTIPLIER in row else row


def words(cells: Mapping[str, Any]) -> dict[str, str]:
    """Map each column that a row names by another library's word to this word, for error messages."""
    return {_SAME[name]: name for name, value in cells.items() if name in _SAME and value not in (None, "")}


def _with_sigma(row: dict[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    multiplier = BY_NAME["sigma"].parse(_MULTIPLIER, row.pop(_MULTIPLIER))
    kind = row.setdefault("mechanism", "gaussian")
    if kind not in ("gaussian", "dp_sl"):
        raise ValueError(f"{_MULTIPLIER} is defined for Gaussian noise without mixing; for {kind} give sigma")
    for other in ("sigma", "sensitivity", "clip_patch", "clip_high"):
        if other in row:
            raise ValueError(f"{_MULTIPLIER} is σ divided by the clipping norm; leave {other} empty, or give sigma")
    if row["relation"] != "add_or_remove_one":
        raise ValueError(
            f"{_MULTIPLIER} is defined for relation = add_or_remove_one; for {row['relation']} give sigma and clip_norm"
        )
    norm = row.get("clip_norm")
    if norm is None:
        return {**row, "sigma": multiplier, "sensitivity": 1.0}
    return {**row, "sigma": multiplier * BY_NAME["clip_norm"].parse(said.get("clip_norm", "clip_norm"), norm)}
