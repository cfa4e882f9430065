"""`list` and `describe` read the parts once; afterwards they load no torch, and say the same."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privkit.cli import parts as module
from privkit.cli.parts import described
from privkit.files.caches import cache_folder
from privkit.parts import entries as entries_of
from privkit.parts.registry import PART_TABLES


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the user's, below a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    cache_folder.cache_clear()
    yield tmp_path / "real" / "privkit"
    cache_folder.cache_clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds whose parts were read."""
    found: list[str] = []
    read = module._read

    def noted(kind: str) -> list[dict[str, Any]]:
        found.append(kind)
        return read(kind)

    monkeypatch.setattr(module, "_read", noted)
    return found


def test_parts_are_read_once(home: Path, reads: list[str]) -> None:
    first = {kind: described(kind) for kind in PART_TABLES}
    assert {kind: described(kind) for kind in PART_TABLES} == first
    assert reads == list(PART_TABLES)
    for kind, entries in first.items():
        told = json.loads(json.dumps(entries_of.part_entries(kind), default=str))
        assert [{name: entry[name] for name in now} for entry, now in zip(entries, told, strict=True)] == told
    assert {path.name for path in home.iterdir()} == {f"described-{kind}.json" for kind in PART_TABLES}


def test_a_change_is_seen(home: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    described("partitions")
    monkeypatch.setattr(module, "own_source", lambda: "another")
    described("partitions")
    monkeypatch.setattr(module, "own_table", lambda kind: {"another": "a:b"})
    described("partitions")
    (home / "described-partitions.json").write_text("{}")
    described("partitions")
    assert len(reads) == 4
    described("partitions")
    assert len(reads) == 4


def test_plug_ins_and_broken_parts_are_read_each_time(
    home: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "plug_ins", lambda kind: iter(["one"]))
    assert described("partitions") == described("partitions")
    monkeypatch.setattr(module, "plug_ins", lambda kind: ())
    monkeypatch.setattr(
        "privkit.parts.entries.part_entries", lambda kind: [entries_of._row("x", "broken: no such package")]
    )
    assert described("partitions") == described("partitions")
    assert len(reads) == 4
    assert not list(home.iterdir())


def test_a_cache_that_cannot_be_written_costs_time_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: Path("/proc/nope"))
    assert described("partitions")


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("command", [("list",), ("list", "models"), ("describe", "jigsaw"), ("list", "--json")])
def test_no_torch_is_loaded_again(home: Path, command: tuple[str, ...]) -> None:
    for kind in PART_TABLES:
        described(kind)
    program = (
        "import sys\nfrom privkit.cli.app import app\napp(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted({'torch', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert "jigsaw" in done.stdout or "vit_micro" in done.stdout
    assert done.stderr.splitlines()[-1] == "[]"
