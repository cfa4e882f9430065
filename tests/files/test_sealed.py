"""Bits that flip, files that change places, lines that double: detected, or harmless."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.audit.run import AuditRun
from privkit.errors import DamagedFile, PrivkitError
from privkit.files.sealed import Broken, altered, checked_bytes, opened, sealed
from privkit.files.storage import load_state, read_record, save_state
from privkit.run.ledger import RunLedger
from privkit.run.records import read_manifest, read_row, read_rows

FLIPS = 300


def flips(path: Path, read: Callable[[], Any], seed: int = 0) -> int:
    """How many of 300 flips of one bit were refused; the others must leave what is read as it was."""
    whole, draws, refused = path.read_bytes(), random.Random(seed), 0
    truth = read()
    for _ in range(FLIPS):
        place = draws.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert read() == truth, f"{path.name}: bit {place} changes a number unseen"
        except PrivkitError:
            refused += 1
    path.write_bytes(whole)
    assert read() == truth
    return refused


@pytest.mark.slow
def test_flipped_bits_of_records_change_no_number(copied: Path, small_run: AuditRun) -> None:
    """Results, lines, the manifest, controls, models, what a cell was: read as the product reads them."""
    cell = copied / "cells" / small_run.rows[1].cell
    control, *_ = sorted((copied / "controls").iterdir())
    model = next((copied / "models").iterdir())
    assert flips(cell / "result.json", lambda: read_row(cell)) > FLIPS / 2
    assert flips(cell / "spec.json", lambda: read_record(cell / "spec.json", cell=cell.name)) > FLIPS / 2
    assert flips(copied / "results.jsonl", lambda: read_rows(copied)) > FLIPS / 2
    assert flips(copied / "manifest.json", lambda: read_manifest(copied)) > FLIPS / 2
    assert flips(control, lambda: read_record(control, control=control.stem)) > FLIPS / 2
    assert flips(model / "trained.json", lambda: read_record(model / "trained.json", model=model.name)) > FLIPS / 2


@pytest.mark.slow(but=1)
def test_flipped_bits_of_arrays_and_checkpoints_are_all_refused(copied: Path, small_run: AuditRun) -> None:
    cell, state = small_run.rows[1].cell, copied / "cells" / "x" / "attack.ckpt"
    save_state(state, {"weights": torch.arange(100.0), "curve": [0.5, 0.25]})
    pictures, known = copied / "cells" / cell / "per_example.npz", small_run.rows[1].files["per_example.npz"]
    model = next((copied / "models").iterdir())
    weights = (read_record(model / "trained.json") or {})["files"]["client.safetensors"]
    assert flips(pictures, lambda: checked_bytes(pictures, known)) == FLIPS
    assert flips(model / "client.safetensors", lambda: checked_bytes(model / "client.safetensors", weights)) == FLIPS
    assert flips(state, lambda: str(load_state(state))) >= FLIPS - 8  # the header's spaces are free


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"a": 1}', b"[" * 200_000, b'{"a": ' + b"1" * 5_000 + b"}", b"\xff"]
)
def test_what_is_no_record_is_refused_in_words(text: bytes) -> None:
    with pytest.raises(Broken, match="is damaged"):
        opened(text)


def test_key_order_and_spacing_are_free_and_numbers_exact() -> None:
    fields = {"b": 0.1 + 0.2, "a": [1e-300, -0.0, 12345678901234567890, float("inf")], "é": {"2": None, "10": "\ud800"}}
    text = json.dumps(dict(reversed(json.loads(sealed(fields)).items())), indent=7)
    assert opened(text) == fields


def swap(one: Path, other: Path) -> None:
    """Two files or folders change places."""
    aside = one.with_name("aside")
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)


@pytest.mark.parametrize("name", ["", "result.json", "per_example.npz", "spec.json"])
def test_files_of_two_cells_that_changed_places(copied: Path, small_run: AuditRun, name: str) -> None:
    one, other = (copied / "cells" / row.cell / name for row in small_run.rows)
    swap(one, other)
    for row in small_run.rows:
        home = copied / "cells" / row.cell
        if name in ("", "result.json"):
            with pytest.raises(DamagedFile, match=r"result\.json belongs to another cell"):
                read_row(home)
        else:
            assert [found for found, _ in altered(home, row.files)] == [name]
    with RunLedger(copied, read_manifest(copied)) as folder:  # type: ignore[arg-type]
        rows, mended = folder.finished(row.cell for row in small_run.rows)
    assert len(mended) == (6 if name == "" else 2)
    assert all(rows[row.cell] == row for row in small_run.rows if row.cell in rows)
    assert len(rows) == (2 if name == "result.json" else 0)  # restored from the lines, or done again


def _weights(home: Path) -> bytes:
    found = read_record(home / "trained.json", model=home.name)
    assert found is not None
    return checked_bytes(home / "client.safetensors", found["files"]["client.safetensors"])


@pytest.mark.parametrize("name", ["", "trained.json", "client.safetensors"])
def test_files_of_two_models_that_changed_places(copied: Path, name: str) -> None:
    one, other = (path / name for path in sorted((copied / "models").iterdir()))
    swap(one, other)
    for home in (copied / "models").iterdir():
        with pytest.raises(DamagedFile, match=r"belongs to another model|client\.safetensors is damaged"):
            _weights(home)


def test_checkpoints_of_two_cells_and_controls_of_two_attacks_that_changed_places(copied: Path) -> None:
    one, other = (copied / "cells" / name / "attack.ckpt" for name in "ab")
    save_state(one, {"epoch": 1})
    save_state(other, {"epoch": 2})
    swap(one, other)
    with pytest.raises(DamagedFile, match=r"belongs to another file, 'b/attack\.ckpt'"):
        load_state(one)
    control, *_ = sorted((copied / "controls").iterdir())
    moved = control.rename(control.with_name("another-attack.json"))
    with pytest.raises(DamagedFile, match="belongs to another control"):
        read_record(moved, control=moved.stem)


def test_doubled_and_reordered_lines_count_once_and_a_contradiction_is_refused(
    copied: Path, small_run: AuditRun
) -> None:
    results = copied / "results.jsonl"
    first, second = results.read_text().splitlines()
    results.write_text("\n".join((second, first, second, second, "")))
    assert read_rows(copied) == list(small_run.rows)
    with RunLedger(copied, read_manifest(copied)) as folder:  # type: ignore[arg-type]
        folder.finished(row.cell for row in small_run.rows)
    assert sorted(results.read_text().splitlines()) == sorted((first, second))
    results.write_text("\n".join((first, second, sealed({**opened(second), "seed": 1}), "")))
    with pytest.raises(DamagedFile, match=r"line 3 contradicts an earlier line of batch_shuffle"):
        read_rows(copied)
    results.write_text("\n".join((first, sealed({**opened(second), "cell": "stranger"}), "")))
    with pytest.raises(DamagedFile, match=r"line 2 is of stranger, which is not a cell of this run"):
        read_rows(copied)


def test_what_killed_writes_left_is_swept_under_the_lock(copied: Path, small_run: AuditRun) -> None:
    left = [copied / ".manifest.json.12.tmp", copied / "cells" / small_run.rows[0].cell / ".result.json.9.tmp"]
    kept = [copied / ".tmp", copied / "notes.tmp"]
    for path in (*left, *kept):
        path.write_text("x")
    with RunLedger(copied, read_manifest(copied)):  # type: ignore[arg-type]
        assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)
