"""Columns of a parameter table: the only list of parameters. Light to import: the command line's flags are these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from re import fullmatch, split
from typing import Any

from privkit.accountants import validate

MECHANISMS = ("gaussian", "laplace", "dp_sl", "dp_mixsl", "dp_cutmixsl", "hidden_mask", "randomized_response")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a parameter table.

    Attributes:
        name: as in the header.
        parse: text or JSON value -> value; raises ValueError with what is allowed.
        default: where the cell is empty or the column absent.
        what: for `privkit epsilon --schema`.
    """

    name: str
    parse: Callable[[str, Any], Any]
    default: Any = None
    what: str


def _decimal(name: str, value: Any) -> float:
    """A finite number, with a fraction of two numbers such as 16/255 allowed."""
    if isinstance(value, str):
        top, slash, bottom = value.partition("/")
        try:
            value = float(top) / float(bottom) if slash else float(top)
        except (ValueError, ZeroDivisionError):
            if fullmatch(r"\s*-?\d*,\d+\s*", value):
                raise ValueError(f"{name} must have a decimal point, such as 0.5, got {value!r}") from None
            raise ValueError(f"{name} must be a number such as 0.5 or 16/255, got {value!r}") from None
    return value if type(value) is float and isfinite(value) else validate.real(name, value)


def _whole(name: str, value: Any) -> int:
    """A whole number; 3.0 and 1e6 are, 3.5 is not."""
    number = _decimal(name, value) if isinstance(value, str) else value
    if isinstance(number, float) and isfinite(number) and number == int(number):
        number = int(number)
    return validate.whole(name, number, least=0)


def _word(*allowed: str) -> Callable[[str, Any], str]:
    """One of a few words, in any spelling of capitals, spaces and hyphens."""

    def parsed(name: str, value: Any) -> str:
        word = "_".join(value.lower().replace("-", " ").split()) if isinstance(value, str) else value
        fields: str = validate.choice(name, word if word in allowed else value, allowed)
        return fields

    return parsed


def _any_text(name: str, value: Any) -> str:
    return str(value)


def _several_numbers(parse: Callable[[str, Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    """Values with semicolons or spaces between them, or a JSON list."""

    def parsed(name: str, value: Any) -> tuple[Any, ...]:
        parts = split(r"\s*;\s*|\s+", value.strip()) if isinstance(value, str) else value
        if not isinstance(parts, list):
            raise ValueError(f"{name} must be a list such as 0.7;0.3, got {value!r}")
        return tuple(parse(name, part) for part in parts)

    return parsed


COLUMNS: tuple[Column, ...] = (
    Column(name="name", parse=_any_text, what="any text; names the row in the answer"),
    Column(name="mechanism", parse=_word(*MECHANISMS), what=f"required: {', '.join(MECHANISMS)}"),
    Column(
        name="sigma",
        parse=_decimal,
        what="required: noise's standard deviation, or scale b for laplace; > 0; empty for randomized_response",
    ),
    Column(
        name="noise_parameter",
        parse=_decimal,
        what="for randomized_response: probability in (0, 1] of a uniform answer instead of the true one",
    ),
    Column(name="sigma_labels", parse=_decimal, what="the same on labels; the value of sigma if labels are released"),
    Column(
        name="sensitivity",
        parse=_decimal,
        what="for gaussian (L2) and laplace (L1): known sensitivity instead of a clip",
    ),
    Column(
        name="dimensions",
        parse=_whole,
        what="coordinates of one record's smashed data, with clip_high; answers in a release, for randomized_response",
    ),
    Column(name="clip_low", parse=_decimal, default=0.0, what="lower end of the coordinate clamp"),
    Column(name="clip_high", parse=_decimal, what="upper end of the coordinate clamp (Δ)"),
    Column(name="clip_norm", parse=_decimal, what="L2 norm of the whole release, instead of the clamp"),
    Column(name="clip_patch", parse=_decimal, what="L2 norm of every patch, with patches, instead of the clamp"),
    Column(
        name="labels", parse=_word("none", "one_hot", "box"), default="none", what="none, one_hot, or box for [0,1]^L"
    ),
    Column(name="classes", parse=_whole, what="L, for labels = box; categories of an answer, for randomized_response"),
    Column(name="group", parse=_whole, what="clients that are mixed, k; for dp_sl clients drawn a round"),
    Column(name="clients", parse=_whole, what="n, for sampling = without_replacement"),
    Column(
        name="sampling",
        parse=_word("every_round", "without_replacement", "poisson", "random_allocation"),
        default="every_round",
        what="every_round (partition, round-robin), without_replacement (group of clients), poisson (rate) or "
        "random_allocation (participations of epoch_rounds)",
    ),
    Column(
        name="participations", parse=_whole, default=1, what="k of every t rounds, for sampling = random_allocation"
    ),
    Column(name="epoch_rounds", parse=_whole, what="t, for sampling = random_allocation; empty means all rounds"),
    Column(name="rate", parse=_decimal, what="for sampling = poisson, in (0, 1]"),
    Column(
        name="rounds",
        parse=_whole,
        default=1,
        what="rounds T; for a record, its releases (k of n: rounds that would release it if its client were drawn)",
    ),
    Column(name="releases", parse=_whole, default=1, what="releases a round that belong to one client"),
    Column(name="delta", parse=_decimal, what="in (0, 1); --delta where empty"),
    Column(name="relation", parse=_word("replace_one", "add_or_remove_one"), default="replace_one", what="neighbors"),
    Column(name="unit", parse=_word("record", "client"), default="record", what="record or client"),
    Column(name="lower_model", parse=_word("frozen", "trained", "averaged"), default="frozen", what="what trains it"),
    Column(
        name="ratio",
        parse=_word("equal", "fixed", "counts", "dirichlet", "dirichlet_counts"),
        default="equal",
        what="law of the mixing ratios",
    ),
    Column(name="ratios", parse=_several_numbers(_decimal), what="for ratio = fixed: 0.7;0.3"),
    Column(name="counts", parse=_several_numbers(_whole), what="for ratio = counts: 32;32"),
    Column(name="concentration", parse=_decimal, what="α_M, for ratio = dirichlet and dirichlet_counts"),
    Column(
        name="drawn",
        parse=_word("every_round", "once"),
        default="every_round",
        what="when ratio = dirichlet and dirichlet_counts are drawn: every_round, or once and kept for all rounds",
    ),
    Column(name="patches", parse=_whole, what="N, for dp_cutmixsl, hidden_mask and clip_patch"),
    Column(name="kept", parse=_whole, what="patches that a hidden mask keeps, for hidden_mask"),
    Column(name="noise_site", parse=_word("mixer", "client"), default="mixer", what="where noise is added"),
    Column(
        name="colluding",
        parse=_word("no", "yes"),
        default="no",
        what="yes if other clients may tell the server their data, their noise and who took part",
    ),
    Column(name="source", parse=_any_text, what="any text; copied to the answer"),
)
"""The reader, the schema and the flags of the command line come from this list."""

BY_NAME = {column.name: column for column in COLUMNS}
DEFAULTS = {column.name: column.default for column in COLUMNS}


def schema() -> list[dict[str, str]]:
    """The columns, for people.

    >>> schema()[1]["column"]
    'mechanism'
    """
    return [
        {
            "column": column.name,
            "default": "" if column.default is None else str(column.default),
            "what": column.what,
        }
        for column in COLUMNS
    ]
