"""`privkit verify`: a whole folder is whole, and whatever changes in it is named with what to do."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from privkit.audit.run import AuditRun
from privkit.errors import RunFolderError
from privkit.files.sealed import sealed
from privkit.files.storage import save_state
from privkit.run.verify import examine


@pytest.fixture
def copied(copied: Path, small_run: AuditRun) -> Path:
    """With checkpoints, as a run that is under way has them."""
    save_state(copied / "cells" / small_run.rows[0].cell / "attack.ckpt", {"epoch": 1})
    save_state(next((copied / "models").iterdir()) / "training.ckpt", {"epoch": 1})
    return copied


def files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name not in (".lock", "log.txt"))


def wrong(run: Path) -> dict[str, str]:
    return dict(examine(run).faults)


def test_a_whole_run_and_every_file_of_it(copied: Path) -> None:
    found = examine(copied)
    assert (found.faults, found.exit_code) == ([], 0)
    assert sorted(found.checked) == [path.relative_to(copied).as_posix() for path in files(copied)]
    assert found.sentence.startswith("whole: ")
    assert found.sentence.endswith(
        "; 6 of 6 decisive checks met; no model is shown to have learned its task, so no defense is shown to hold"
    )


@pytest.mark.parametrize("flips", [1, pytest.param(15, marks=pytest.mark.slow)])
def test_flipped_bits_anywhere_are_named_or_change_nothing(copied: Path, flips: int) -> None:
    """So many in every file of the folder; JSON that reads as before, such as 1E-5 for 1e-5, is harmless."""
    draws, unseen = random.Random(0), 0
    for path in files(copied):
        whole = path.read_bytes()
        for _ in range(flips):
            damaged, place = bytearray(whole), draws.randrange(8 * len(whole))
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
            if not any(path.name in name for name in wrong(copied)):
                unseen += 1
                read = [[json.loads(line) for line in data.splitlines()] for data in (whole, bytes(damaged))]
                assert read[0] == read[1], f"bit {place} of {path} changes a number unseen"
        path.write_bytes(whole)
    assert wrong(copied) == {}
    assert unseen < 5


@pytest.mark.parametrize("part", ["cells", "models"])
def test_folders_and_files_that_changed_places(copied: Path, part: str) -> None:
    one, other = sorted((copied / part).iterdir())
    one.rename(copied / "aside")
    other.rename(one)
    (copied / "aside").rename(other)
    name, kind = ("result.json", "cell") if part == "cells" else ("trained.json", "model")
    found = wrong(copied)
    for home in (one, other):
        assert f"belongs to another {kind}" in found[f"{part}/{home.name}/{name}"]
    assert examine(copied).exit_code == 3


def test_lines_that_double_lack_or_contradict(copied: Path, small_run: AuditRun) -> None:
    results = copied / "results.jsonl"
    first, second = results.read_text().splitlines()
    results.write_text(f"{second}\n{first}\n")
    assert wrong(copied) == {}  # their order is free
    results.write_text(f"{first}\n{second}\n{second}\n")
    assert wrong(copied)["results.jsonl"].startswith("line 3 doubles line 2; it counts once; repeat the run's command")
    results.write_text(f"{first}\n")
    assert f"the line of {small_run.rows[1].cell} is missing" in wrong(copied)["results.jsonl"]
    results.write_text(f"{first}\n{second[:50]}\n")
    assert "line 2 is damaged" in dict(examine(copied).faults[:1])["results.jsonl"]
    row = small_run.rows[1]
    other = row.model_copy(update={"seed": row.seed + 1})
    results.write_text(f"{first}\n{sealed(other.model_dump(mode='json'))}\n")  # whole, and yet of another number
    assert wrong(copied)["results.jsonl"].startswith(f"line 2 contradicts cells/{row.cell}/result.json; ")


def test_what_is_gone_and_what_killed_writes_left(copied: Path, small_run: AuditRun) -> None:
    (copied / "cells" / small_run.rows[0].cell / "per_example.npz").unlink()
    (copied / "verdict.json").unlink()
    (copied / ".manifest.json.7.tmp").write_text("x")
    found = examine(copied)
    assert found.left == 1
    assert {path.rpartition("/")[2]: what for path, what in found.faults} == {
        "per_example.npz": "is missing; repeat the run's command: the cell is restored or done again",
        "verdict.json": "is missing; repeat the run's command to judge the run anew",
    }


def test_files_of_others_are_no_fault_and_are_named(copied: Path) -> None:
    for folder in ("", "cells", "controls", "models"):
        (copied / folder / ".DS_Store").write_text("x")
    found = examine(copied)
    assert (found.faults, found.exit_code) == ([], 0)
    assert "; 4 files of others not checked (.DS_Store, cells/.DS_Store, controls/.DS_Store, …); " in found.sentence


@pytest.mark.parametrize("name", ["made_of.json", "trained.json", "log.txt"])
def test_a_record_that_a_finished_cell_rests_on_is_gone(copied: Path, name: str) -> None:
    gone = [path for path in copied.rglob(name)]
    for path in gone:
        path.unlink()
    assert wrong(copied) == {
        path.relative_to(copied).as_posix(): "is missing; restore it from a copy; the rows stand without it"
        for path in gone
    }


def test_links_are_named(copied: Path, small_run: AuditRun, tmp_path: Path) -> None:
    log = copied / "cells" / small_run.rows[0].cell / "log.txt"
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    (copied / "cells" / "planted").symlink_to(tmp_path)
    assert set(wrong(copied)) >= {log.relative_to(copied).as_posix(), "cells/planted"}


def test_the_command(copied: Path, tmp_path: Path, privkit_cli: Callable[..., CompletedProcess[str]]) -> None:
    assert privkit_cli("verify", str(copied)).returncode == 0
    (copied / "manifest.json").write_text("{")
    done = privkit_cli("verify", str(copied))
    assert done.returncode == 3
    assert done.stdout.startswith("manifest.json: ")
    assert "not whole: 1 file is not what was written" in done.stdout
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no manifest\.json"):
        examine(tmp_path)
    assert privkit_cli("verify", str(tmp_path)).returncode == 2
