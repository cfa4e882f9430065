"""Names of columns as people write them: capitals, spaces, and the words of opacus, TF Privacy and dp_accounting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from privkit.accountants import validate
from privkit.accountants.columns import BY_NAME

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
_LONGEST = 60
TOO_MANY = ""
"""Name under which a reader keeps cells that no header names."""
_MULTIPLIER = "noise_multiplier"
_RATES = ("sample_rate", "sampling_rate", "sampling_probability")
_ADD_OR_REMOVE = (_MULTIPLIER, *_RATES, "max_grad_norm", "l2_norm_clip")
"""Words of DP-SGD: whoever writes one means neighbors by adding or removing a record, unless the row says otherwise."""


def spelled(name: str) -> str:
    """A header in the form of a column's name.

    >>> spelled(" Noise Multiplier")
    'noise_multiplier'
    """
    return "_".join(name.strip().lower().replace("-", " ").split())


def known(name: str) -> bool:
    """Whether a spelled header is a column or a word for one."""
    return name in BY_NAME or name in _SAME or name in (_MULTIPLIER, "variance")


def check_known(names: Iterable[str]) -> None:
    """Refuse a name that is no column, with the nearest one that is.

    >>> check_known(["sensitivty"])
    Traceback (most recent call last):
    ValueError: unknown column 'sensitivty'; did you mean 'sensitivity'? (privkit epsilon --schema lists the columns)
    """
    for name in names:
        if name == TOO_MANY:
            raise ValueError("the row has more cells than the header; put cells that hold the delimiter into quotes")
        if not known(name):
            near = get_close_matches(name[:_LONGEST], [*BY_NAME, *_SAME, _MULTIPLIER], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            cut = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
            raise ValueError(f"unknown column {cut!r}{hint} (privkit epsilon --schema lists the columns)")


def translated(cells: Mapping[str, Any]) -> dict[str, Any]:
    """A row with privkit's own names: empty cells left out, other libraries' words replaced, what they imply filled in.

    `sample_rate` implies Poisson sampling. `noise_multiplier` is σ divided by the L2 sensitivity under adding or
    removing a record, which is the clipping norm; without one, sensitivity 1 stands for it.

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
    if any(name in given for name in _RATES):
        row.setdefault("sampling", "poisson")
    if any(name in given for name in _ADD_OR_REMOVE):
        row.setdefault("relation", "add_or_remove_one")
    return _with_sigma(row) if _MULTIPLIER in row else row


def _with_sigma(row: dict[str, Any]) -> dict[str, Any]:
    """The same row with σ in place of the noise multiplier."""
    multiplier = BY_NAME["sigma"].parse(_MULTIPLIER, row.pop(_MULTIPLIER))
    multiplier = validate.real(_MULTIPLIER, multiplier, above=0)
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
    return {**row, "sigma": multiplier * BY_NAME["clip_norm"].parse("clip_norm", norm)}
