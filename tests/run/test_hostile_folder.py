"""A run folder of somebody else's: nothing outside it is written, and nothing in it stops or hangs a command."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privkit.audit.report import build
from privkit.audit.run import AuditRun, run_audit
from privkit.errors import PrivkitError, RunFolderError, StorageError
from privkit.files.paths import read_bytes
from privkit.files.storage import append_line, remove, temporary, write_bytes
from privkit.run.ledger import RunLedger
from privkit.run.progress import Progress
from privkit.run.provenance import manifest
from privkit.run.records import read_rows
from privkit.run.verify import examine
from privkit.settings.resolve import resolve

QUICK = {"defense": "none", "attack": "mean_image", "dataset": "tiny_digits", "budget": "smoke", "threads": 1}


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A finished run of one cell; read it, do not change its folder."""
    return run_audit(out=tmp_path_factory.mktemp("quick") / "run", **QUICK)  # type: ignore[arg-type]


@pytest.fixture
def copied(quick_run: AuditRun, tmp_path: Path) -> Path:
    """A copy of the finished run, to plant things in."""
    return Path(shutil.copytree(quick_run.folder, tmp_path / "run"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no command may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious\n")
    (folder / "attack.ckpt").write_text("precious\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def survives(act: Callable[[], object]) -> str:
    """What a command says of itself: nothing, or one sentence."""
    said = ""
    try:
        act()
    except PrivkitError as error:
        said = str(error)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "..", "", "a/b"])
def test_a_row_that_names_a_cell_outside_is_refused(copied: Path, outside: Path, name: str) -> None:
    row = json.loads((copied / "results.jsonl").read_text())
    shutil.copy(copied / "cells" / row["cell"] / "per_example.npz", outside)
    before = contents(outside)
    (copied / "results.jsonl").write_text(json.dumps({**row, "cell": name}) + "\n")
    with pytest.raises(PrivkitError):
        build(copied)
    assert contents(outside) == before


PLACES = (
    "report",
    "report/index.html",
    "report/tables",
    "report/tables/audit.csv",
    "report/figures",
    "results.jsonl",
    "manifest.json",
    ".lock",
    "cells",
    "cells/CELL",
    "cells/CELL/log.txt",
    "cells/CELL/result.json",
    "cells/CELL/per_example.npz",
    "cells/CELL/attack.ckpt",
    "models",
    "models/MODEL",
    "models/MODEL/training.ckpt",
    "models/MODEL/client.safetensors",
    "controls",
)


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("report/tables", ""),
        ("results.jsonl", "precious"),
        ("cells", ""),
        ("cells/CELL/log.txt", "missing"),
        ("models/MODEL", ""),
        *(
            pytest.param(place, target, marks=pytest.mark.slow)
            for place in PLACES
            for target in ("precious", "", "missing")
        ),
    ],
)
def test_planted_links_lead_nowhere(copied: Path, outside: Path, place: str, target: str) -> None:
    """Whatever is replaced by a link, to a file, a folder or nothing: no command touches what it leads to."""
    cell, model = (next((copied / kind).iterdir()).name for kind in ("cells", "models"))
    (copied / "cells" / cell / "result.json").unlink()  # so that the run goes on
    path = copied / place.replace("CELL", cell).replace("MODEL", model)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(outside / target)
    before = contents(outside)
    survives(lambda: examine(copied))
    survives(lambda: build(copied))
    survives(lambda: run_audit(out=copied, **QUICK))  # type: ignore[arg-type]
    assert contents(outside) == before


@pytest.mark.parametrize("place", ["results.jsonl", "manifest.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "unreadable"])
def test_what_is_no_file_is_said_in_a_sentence(copied: Path, place: str, kind: str) -> None:
    path = copied / place
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch(mode=0)
        if os.access(path, os.R_OK):
            pytest.skip("needs a user who may not read everything: run the tests as another than root")
    with pytest.raises(RunFolderError, match=f"cannot read .*{place}"):
        read_rows(copied)


def test_json_of_very_many_brackets_is_damaged_like_any_other(copied: Path) -> None:
    for place in ("manifest.json", "results.jsonl"):
        (copied / place).write_text("[" * 200_000)
        assert survives(lambda: read_rows(copied))


def test_the_lock_file_is_not_emptied_through_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(outside / "precious")
    with pytest.raises(StorageError, match="symbolic link"), RunLedger(tmp_path / "run", _described()):
        pass
    assert (outside / "precious").read_text() == "precious\n"


def test_a_line_is_not_appended_to_another_name_of_the_file(tmp_path: Path) -> None:
    """A backup by hard links keeps what it had."""
    (tmp_path / "backup").write_text("one\n")
    os.link(tmp_path / "backup", tmp_path / "log.txt")
    append_line(tmp_path / "log.txt", "two")
    assert (tmp_path / "backup").read_text() == "one\n"
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"


def test_a_planted_temporary_file_is_not_written_through(tmp_path: Path, outside: Path) -> None:
    temporary(tmp_path / "file").symlink_to(outside / "precious")
    write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (outside / "precious").read_text() == "precious\n"


def test_nothing_is_removed_behind_a_link(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "cell").symlink_to(outside)
    with pytest.raises(StorageError, match="symbolic link"):
        remove(tmp_path / "cell" / "attack.ckpt")
    assert (outside / "attack.ckpt").exists()


def test_a_file_that_is_too_large_for_what_it_is_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    assert len(read_bytes(tmp_path / "large", most=11)) == 11
    with pytest.raises(OSError, match="larger than"):
        read_bytes(tmp_path / "large", most=10)


def test_a_folder_that_is_removed_does_not_come_back_half(tmp_path: Path) -> None:
    with RunLedger(tmp_path / "run", _described()) as folder:
        path = folder.cell("none-s0") / "result.json"
        write_bytes(path, b"{}")
        shutil.rmtree(folder.path)
        with pytest.raises(StorageError, match="removed while the run was under way") as caught:
            write_bytes(path, b"{}")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "run").exists()


def test_a_run_whose_folder_is_removed_ends_with_a_sentence(tmp_path: Path) -> None:
    class Removes(Progress):
        """Removes the run as soon as its first stage begins."""

        def stage(self, name: str, unit: str = "epochs") -> None:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(StorageError, match="removed while the run was under way"):
        run_audit(out=tmp_path / "run", progress=Removes(), **QUICK)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_file_locks_a_run_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("privkit.run.ledger.fcntl.flock", flock)
    with RunLedger(tmp_path / "run", _described()) as folder:
        assert "cannot be locked" in folder.unlocked
        assert "start no second process" in folder.unlocked


def test_a_mistyped_model_does_not_hold_the_folder(tmp_path: Path) -> None:
    out, given = tmp_path / "run", {**QUICK, "out": tmp_path / "run"}
    with pytest.raises(PrivkitError, match="cannot import the segment"):
        run_audit(model="torch.nn.Idntity:torch.nn.Flatten", **given)  # type: ignore[arg-type]
    assert run_audit(**given).exit_code == 0  # type: ignore[arg-type]
    assert (out / "results.jsonl").exists()


def _described(**settings: object):  # type: ignore[no-untyped-def]
    return manifest(resolve(settings), threads=1)
