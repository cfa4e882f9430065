"""Entry points are those of `importlib.metadata`, also after a package comes, changes its version or goes."""

import importlib.metadata
import shutil
import sys
from pathlib import Path

import pytest

from privkit.files import installed


def package(folder: Path, name: str, version: str, points: str) -> Path:
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(points)
    return about


def told(group: str) -> list[tuple[str, str, str]]:
    """Names, targets and versions, which both ways give alike."""
    found, theirs = (
        [(entry.name, entry.value, entry.dist.version) for entry in read(group=group) if entry.dist is not None]
        for read in (installed.entry_points, importlib.metadata.entry_points)
    )
    assert found == theirs
    return found


@pytest.mark.parametrize("group", ["pytest11", "console_scripts", "privkit.defenses"])
def test_what_is_installed_here(group: str) -> None:
    assert bool(told(group)) is (group != "privkit.defenses")


def test_packages_come_and_go_and_the_first_of_two_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (second, first):
        folder.mkdir()
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert told("privkit.attacks") == []
    package(second, "my_parts", "1.0", "[privkit.attacks]\nmine = there:Mine\n")
    assert told("privkit.attacks") == [("mine", "there:Mine", "1.0")]
    newer = package(first, "my_parts", "2.0", "[privkit.attacks]\nmine = here:Mine\n[privkit.models]\nnet = here:Net\n")
    assert told("privkit.attacks") == [("mine", "here:Mine", "2.0")]
    assert told("privkit.models") == [("net", "here:Net", "2.0")]
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: my_parts\nVersion: 2.1\n")
    assert told("privkit.models") == [("net", "here:Net", "2.1")]
    shutil.rmtree(newer)
    assert told("privkit.attacks") == [("mine", "there:Mine", "1.0")]
    assert told("privkit.models") == []
