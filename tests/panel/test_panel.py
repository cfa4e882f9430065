"""The panel: what was recorded before a change of shape is what is answered after it. README.md says how to read it."""

import csv
import importlib
import json
import sys
from collections.abc import Iterable
from functools import cache
from math import isclose
from pathlib import Path
from random import Random
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
record = importlib.import_module("record")
Record = dict[str, Any]

RENAMED: dict[str, str] = {
    "proves.quantities.cells_seen": "proves.quantities.positions_seen",
    "proves.quantities.most_cells_drawn": "proves.quantities.most_positions_drawn",
    "proves": "certificate",
    "recovers": "recovered",
    "empirical": "empirical_bound",
    "gates": "checks",
    "images": "counts",
    ".mean": ".value",
    "batch_shuffle": "batch_shuffle:frozen_block=false",
    "patch_shuffle": "patch_shuffle:frozen_block=false",
}
"""A word of a key, the start of a dotted path or, with a dot before it, its end, as recorded -> as it is called now."""
EXACT = "ε is 0 by the exact profile, which stands alone now; a Rényi bound of 0 and its order stood here"
INTENDED: dict[str, str] = {f"{way}|{row} order": EXACT for way in ("tight", "fast") for row in ("r120", "r272")}
INTENDED["attack jigsaw|batch_shuffle|*"] = "own tokens are read by chosen queries, and their order is found"
INTENDED["attack jigsaw|none|*"] = "a patch deviates from its place's mean as far as patches of own images were right"
INTENDED["attack jigsaw_white_box|batch_shuffle|*"] = "a token's image is found in the whole message"
INTENDED["attack adaptive|batch_shuffle|*"] = "own tokens are read by chosen queries, and shuffled again without one"
INTENDED["protocol standalone|none|mid_grey|standalone:clients=4|disjoint|private|0 costs.*"] = (
    "a standalone client sends nothing, and computes the whole network"
)
INTENDED |= {
    f"attack white_box|{defense}|white_box:epochs=10|sl|disjoint|private|0 gates.converged.passed": (
        "a cosine schedule flattens its curve, which therefore claims no convergence"
    )
    for defense in ("none", "batch_shuffle")
}
INTENDED |= {
    f"none|2 of 20|T=100|sigma=0.5|gaussian|{site}|no labels|frozen delta": (
        "the end of a profile's grid is found in fewer steps, which raised δ by 1.6e-9 of itself"
    )
    for site in ("mixer", "client")
}
"""A key, or `key path`, whose value changed on purpose -> why; both may end in `*`."""

FELL = ("epsilon", "epsilon_fast", "delta_fast")
"""Values of fast answers, which may only have become smaller: a tighter bound of sampled Gaussians was added."""

UNTRAINED = ("proves.", "images.", "costs.", "batch_size", "data_range", "floors.mid_grey.", "floors.mean_image.")
"""Paths of an audit's row that no trained weight enters: they are the same on every machine, but for rounding."""
ACCOUNTING = 1e-9
"""Relative difference that another machine's rounding may make in ε or δ; for the grid, on every machine."""
ALLOCATED = 1e-5
"""The same of ε of records whose places in an epoch are secret: the last digit of one logarithm decides where their
profile meets its floor of rounding. Changes of that digit, and another processor, moved ε by up to 1.3e-6."""
GRID = 1e-6
"""The same by which a grid of losses raised ε and δ of one release; there is an exact profile now."""
AUDIT = 1e-3
"""The same for what an audit computes without training."""
CHANGED = (
    *("answers.tpr_at_1_percent.", "answers.advantage."),
    *(f"proves.quantities.log10_{of}" for of in ("permutations", "target_permutations", "target_share", "outcomes")),
)
"""Paths that are not compared: limits are those of the true false positive rate now, in the direction that leaks; equal
patches are counted once."""
LIMITS = (".low", ".high")
"""Ends of paths that are not compared: limits over records were a percentile bootstrap's, and are Student's now."""


QUICK_DEFENSES = ("gaussian_noise", "dp_cutmixsl")
QUICK_SPECIFICATIONS = 50


@cache
def same_machine() -> bool:
    """Whether processor and libraries are those of the record, so that the last digit can be asked for."""
    return bool(json.loads((HERE / "machine.json").read_text("utf-8"))["machine"] == record.machine())


def renamed(text: str, separator: str) -> str:
    """A recorded key or path in today's words."""
    if separator == "|":
        return "|".join(RENAMED.get(word, word) for word in text.split("|"))
    for old, new in RENAMED.items():
        if old.startswith(".") and text.endswith(old):
            text = text.removesuffix(old) + new
        elif text == old or text.startswith(old + "."):
            text = new + text.removeprefix(old)
    return text


def intended(key: str, path: str = "") -> bool:
    """Whether a difference is declared."""
    given = {key, f"{key} {path}"}
    starts = tuple(name[:-1] for name in INTENDED if name.endswith("*"))
    return bool(given & set(INTENDED)) or (bool(starts) and any(name.startswith(starts) for name in given))


def equal(old: Any, new: Any, tolerance: float) -> bool:
    """Equal as they stand, or as numbers within a relative tolerance; NaN is equal to NaN."""
    if old == new or (old != old and new != new):
        return True
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return tolerance > 0 and numbers and isclose(old, new, rel_tol=tolerance, abs_tol=1e-15)


def exact_once(key: str, new: Record) -> bool:
    """Whether this is one Poisson-sampled release, whose exact profile took the place of a grid's."""
    values = new["values"]
    return "|poisson|T=1|" in key or (key.startswith("tight|") and values.get("lower") == values["epsilon"])


def fell(key: str, old: Record, new: Record, path: str) -> bool:
    """Whether a fast answer, a sampled Laplace vector's, or one of an exact profile is smaller than recorded, or there
    was none; it is never below the tight δ.

    Its Rényi order is then another.
    """
    if path in ("epsilon", "delta", "lower") and exact_once(key, new):
        was, is_now = old["values"][path], new["values"][path]
        return was <= is_now if path == "lower" else was * (1 - GRID) <= is_now <= was
    together = (
        "|2 of 20|" in key and "|laplace|" in key
    )  # its coordinates are sampled at once; δ is asked at half its ε
    if together and new["values"]["epsilon"] < old["values"]["epsilon"] * (1 - ACCOUNTING):
        return True
    if path == "order" and key.startswith("fast|"):
        path = "epsilon"
    if path not in FELL or (path == "epsilon" and not key.startswith("fast|")):
        return False
    was, is_now = old["values"][path], new["values"].get(path)
    if path == "delta_fast" and was is None:
        return is_now is not None and bool(is_now >= new["values"]["delta"])
    return was is not None and is_now is not None and bool(is_now < was)


def differences(part: str, found: Iterable[Record], tolerance: float, paths: tuple[str, ...] = ("",)) -> list[str]:
    """What differs from the record in what was computed again.

    A refusal is to stay a refusal, in whatever words.
    """
    now = {one["key"]: one for one in found}
    told: list[str] = []
    for key, old in record.stored(part).items():
        new = now.pop(renamed(key, "|"), None)
        if new is None or intended(key):
            continue
        if old["status"] != new["status"] or bool(old["refusal"]) != bool(new["refusal"]):
            told.append(f"{key}: {old['status']} ({old['refusal']}) is now {new['status']} ({new['refusal']})")
            continue
        for path, value in old.get("values", {}).items():
            called = renamed(path, ".")
            if (
                not path.startswith(paths)
                or path.startswith(CHANGED)
                or path.endswith(LIMITS)
                or intended(key, path)
                or fell(key, old, new, path)
            ):
                continue
            if called not in new["values"]:
                told.append(f"{key}: {path} is missing")
            elif not equal(value, new["values"][called], tolerance):
                told.append(f"{key}: {path} was {value!r} and is {new['values'][called]!r}")
    return told + [f"{key} is not in the record" for key in now]


def missing(part: str, found: Iterable[Record]) -> list[str]:
    """Keys of the record that were not computed again."""
    now = {one["key"] for one in found}
    return [key for key in record.stored(part) if renamed(key, "|") not in now and not intended(key)]


@pytest.fixture(scope="module")
def quick_audit() -> list[Record]:
    """Some defenses, as recorded among all of them: a row doesn't depend on the others of its run."""
    chosen = [part for name in QUICK_DEFENSES for part in ("--defense", name)]
    arguments = [*record.TINY, "--attack", "black_box", "--protocol", "psl:clients=4", *chosen]
    return list(record.audit("defenses", arguments))


@pytest.fixture(scope="module")
def all_audits() -> list[Record]:
    return list(record.audits())


def audit_differences(found: list[Record]) -> list[str]:
    """To the last digit on the machine of the record; elsewhere, only what no training enters."""
    if same_machine():
        return differences("audits", found, 0.0)
    return differences("audits", found, AUDIT, UNTRAINED)


@pytest.mark.slow
def test_some_audits_answer_as_recorded(quick_audit: list[Record]) -> None:
    assert len(quick_audit) == 1 + len(QUICK_DEFENSES)
    assert audit_differences(quick_audit) == []


def row_differences(found: list[Record]) -> list[str]:
    """To the last digit on the machine of the record."""
    if same_machine():
        return differences("rows", found, 0.0)
    with (HERE / "rows.csv").open(encoding="utf-8", newline="") as file:
        secret = {row["name"] for row in csv.DictReader(file) if row["sampling"] == "random_allocation"}
    kinds: dict[bool, list[Record]] = {True: [], False: []}
    for one in found:
        kinds[one["key"].partition("|")[2] in secret].append(one)
    return differences("rows", kinds[True], ALLOCATED) + differences("rows", kinds[False], ACCOUNTING)


@pytest.mark.slow
def test_a_short_table_answers_as_recorded() -> None:
    found = list(record.rows(["quick"]))
    assert len(found) == record.QUICK_ROWS
    assert row_differences(found) == []


@pytest.mark.slow
def test_some_specifications_answer_as_recorded() -> None:
    chosen = Random(0).sample(list(record.specifications()), QUICK_SPECIFICATIONS)
    assert differences("grid", record.grid(chosen), ACCOUNTING) == []


def test_the_comparison_finds_a_difference() -> None:
    """A changed number, a lost field, another status and a row that nobody recorded are each told."""
    key, old = next(one for one in record.stored("audits").items() if one[0].startswith("defenses|gaussian_noise"))
    values = {renamed(path, "."): value for path, value in old["values"].items()}
    row = {**old, "key": renamed(key, "|"), "values": values}
    assert differences("audits", [row], 0.0) == []
    for wrong in (
        row | {"values": values | {"certificate.delta": 2e-5}},
        row | {"values": {path: value for path, value in values.items() if path != "costs.bytes_up"}},
        row | {"status": "error"},
        row | {"key": "another"},
    ):
        assert len(differences("audits", [wrong], AUDIT, UNTRAINED)) == 1


@pytest.mark.slow
def test_every_audit_answers_as_recorded(all_audits: list[Record]) -> None:
    assert missing("audits", all_audits) == []
    assert audit_differences(all_audits) == []


@pytest.mark.slow
def test_every_row_answers_as_recorded() -> None:
    found = list(record.rows())
    assert missing("rows", found) == []
    assert row_differences(found) == []


@pytest.mark.slow
def test_the_grid_answers_as_recorded() -> None:
    found = list(record.grid())
    assert sum(one["status"] == "ok" for one in found) >= 600
    assert missing("grid", found) == []
    assert differences("grid", found, ACCOUNTING) == []
