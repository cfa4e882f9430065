"""A run folder by any of its names: up and down again, through a link, with a slash, as the folder one stands in."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from privkit.audit.compare import compare
from privkit.audit.export import export
from privkit.audit.report import build
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.start import main
from privkit.errors import DamagedFile
from privkit.files.sealed import checked_bytes
from privkit.files.storage import load_state, read_record
from privkit.papers import paper
from privkit.papers.orderings import audit_rows as rows_of_papers
from privkit.run.records import last_verdict, read_rows
from privkit.run.verify import examine
from privkit.testing import assert_audit
from tests.forked import forked

QUICK = {"defense": "patch_shuffle", "attack": "mean_image", "dataset": "tiny_digits", "budget": "smoke", "threads": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A finished run; read it, do not change its folder."""
    return run_audit(out=tmp_path_factory.mktemp("roots") / "run", **QUICK)  # type: ignore[arg-type]


@dataclass
class Place:
    """A run below a folder that a link leads to: real/run, and scratch -> real.

    Attributes:
        run: where it lies.
        other: a copy.
    """

    run: Path
    other: Path


@pytest.fixture
def place(finished: AuditRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Copies of the run, from a folder beside them."""
    real = tmp_path / "real"
    run = Path(shutil.copytree(finished.folder, real / "run"))
    other = Path(shutil.copytree(finished.folder, real / "other"))
    (tmp_path / "scratch").symlink_to(real)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "direct").symlink_to(run)
    monkeypatch.chdir(tmp_path / "here")
    yield Place(run=run, other=other)
    assert examine(run).sentence.startswith("whole"), "a command damaged the run"


NAMES = ("../real/run", "../scratch/run", "../scratch/run/", "direct", "../here/../scratch/./run", ".")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> str:
    """One name of the run, from where it is one."""
    if request.param == ".":
        monkeypatch.chdir(place.run)
    return str(request.param)


@pytest.mark.slow(but=1)
def test_the_library_reads_a_run_by_any_name(place: Place, name: str) -> None:
    path = Path(name)
    assert build(path) == place.run / "report" / "index.html"
    assert last_verdict(path).exit_code == 0
    assert [row.defense for row in read_rows(path)] == ["none", "patch_shuffle"]
    assert len(rows_of_papers(path)) == 2
    found = compare(path, os.path.relpath(place.other))
    assert found.first == str(place.run)
    assert compare(str(place.run), name).differences
    assert examine(path).exit_code == 0
    assert run_audit(out=path, **QUICK).folder == place.run  # type: ignore[arg-type]
    assert paper("patch_shuffling").figures(path)


def test_a_recording_of_a_run_by_any_name_goes_to_any_name(place: Place, name: str) -> None:
    recording = export(Path(name), place.run.parents[1] / "scratch" / ".." / "scratch" / "recording")
    assert recording.description.rounds
    assert [path.parent for path in place.run.parents[1].rglob("recording.json")] == [place.run.parent / "recording"]


@pytest.mark.slow(but=1)
def test_the_command_line_reads_a_run_by_any_name(
    place: Place, name: str, loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = Path.cwd(), os.path.relpath(place.other)

    def run(*arguments: str) -> str:
        done = forked(main, ("privkit", *arguments), here)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    junit = Path(name, "..", "junit.xml") if name != "." else Path("../junit.xml")
    assert "run: empty" in run("report", name, "--junit", str(junit))
    times = [float(case.attrib["time"]) for case in ElementTree.parse(junit).getroot()]
    assert max(times) > 0
    assert json.loads(run("compare", name, other, "--json"))["first"] == str(place.run)
    assert run("verify", name).startswith("whole")


def test_an_audit_of_ones_own_tests_by_a_name_through_a_link(place: Place) -> None:
    assert assert_audit(out="../scratch/mine/../new", **QUICK).folder == place.run.parent / "new"


@pytest.mark.parametrize(
    "read", [lambda path: checked_bytes(path, "0"), read_record, load_state], ids=["checked", "record", "state"]
)
def test_what_cannot_be_read_is_moved_at_most(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """What a file behind a link, or without a permission, holds may be whole."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("whole")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(DamagedFile, match=r"is a symbolic link.*; make it readable, or move \S+ away") as caught:
        read(tmp_path / "link" / "file")
    assert "delete" not in str(caught.value)
