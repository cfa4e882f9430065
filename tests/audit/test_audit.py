"""An audit end to end: what it stores, how it resumes, and how it is damaged."""

import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from privkit.audit.run import AuditRun
from privkit.errors import DamagedFile, RunFolderError, StorageError
from privkit.files.sealed import opened
from privkit.reports.columns import OWN_MATCH
from privkit.reports.schema import Manifest, Row
from privkit.run.records import read_rows
from tests.audit.audits import again


@pytest.fixture
def copied(copied: Path, no_report: None) -> Path:
    """What goes on there leaves the report as it is."""
    return copied


def test_rows_hold_the_whole_story(small_run: AuditRun) -> None:
    none, batch = small_run.rows
    assert (none.defense, batch.defense) == ("none", "batch_shuffle")
    assert small_run.exit_code == 0
    for row in small_run.rows:
        assert row.status == "done"
        assert set(row.recovered) == {"unaligned", "matched"}
        assert set(row.recovered["unaligned"]) == {"mse", "psnr", "ssim", "identified"}
        assert set(row.floors) == set(row.ahead) == {"mid_grey", "mean_image", "class_mean", "zero_steps"}
        for guess, floor in row.floors.items():
            for metric, ahead in row.ahead[guess].items():
                apart = row.recovered["unaligned"][metric].value - floor["unaligned"][metric].value
                assert ahead.value == pytest.approx(apart if metric != "mse" else -apart)
        unordered = {"wins_through_the_defense"} if row is batch else set()  # black_box undoes no shuffle
        found = {check.name for check in row.checks} - {OWN_MATCH}  # a finding of guesses after two epochs, or none
        assert found == unordered | {
            "wins_on_identity",
            "fails_on_noise",
            "converged",
            "beats_mean_image",
            "beats_class_mean",
            "beats_zero_steps",
            "learned",
        }
        assert row.accuracy is not None
        assert row.accuracy.low <= row.accuracy.value <= row.accuracy.high
        assert row.costs is not None
        assert row.costs.bytes_up == 16 * 96 * 4
        assert len(row.training_curve) == 1
        assert len(row.attack_curve) == 2
    assert none.certificate is not None
    assert none.certificate.kind == "nothing"
    assert batch.certificate is not None
    assert "no differential privacy" in batch.certificate.statement
    assert batch.certificate.epsilon == float("inf")


def test_the_run_on_disk(small_run: AuditRun) -> None:
    folder = small_run.folder
    manifest = Manifest.model_validate(opened((folder / "manifest.json").read_bytes()))
    assert manifest.threads == 1
    assert read_rows(folder) == list(small_run.rows)
    seconds = [row.seconds for row in read_rows(folder) if row.seconds]
    assert len(seconds) == len(small_run.rows)
    assert all(min(one.training or 0, one.attack, one.controls) > 0 for one in seconds)
    for row in small_run.rows:
        cell = folder / "cells" / row.cell
        assert sorted(p.name for p in cell.iterdir()) == [
            "log.txt",
            "made_of.json",
            "per_example.npz",
            "reconstructions.png",
            "result.json",
            "spec.json",
        ]
        assert Row.model_validate(opened((cell / "result.json").read_bytes(), cell=row.cell)) == row
        assert len(row.provenance.data["private"]) == 64
        assert row.provenance.packages["torch"] == torch.__version__
        assert row.provenance.machine == {"device": "cpu", "threads": "1"}
        with np.load(cell / "per_example.npz", allow_pickle=False) as arrays:
            assert arrays["unaligned_ssim"].mean() == pytest.approx(row.recovered["unaligned"]["ssim"].value)
            assert len(np.unique(arrays["ids"])) == row.counts["victims"]
    assert (folder / "report" / "index.html").is_file()
    assert not list(folder.rglob("*.ckpt"))
    assert not list(folder.rglob("*.tmp"))


def test_running_it_again_does_nothing_again(copied: Path, small_run: AuditRun) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copied / "cells").rglob("result.json")}
    run, notes = again(copied)
    assert run.rows == small_run.rows
    assert notes.stages == []
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_truncated_line_is_mended(copied: Path, small_run: AuditRun) -> None:
    results = copied / "results.jsonl"
    text = results.read_text()
    results.write_text(text[:-40])
    with pytest.raises(DamagedFile, match="line 2 is truncated"):
        read_rows(copied)
    run, notes = again(copied)
    assert run.rows == small_run.rows
    assert any("line 2 is truncated" in note for note in notes.notes)
    assert notes.stages == []
    assert sorted(results.read_text().splitlines()) == sorted(text.splitlines())


def test_a_lost_cell_is_done_again_from_its_trained_model(copied: Path, small_run: AuditRun) -> None:
    shutil.rmtree(copied / "cells" / small_run.rows[1].cell)
    run, notes = again(copied)
    assert run.rows == small_run.rows
    assert notes.stages == ["attack black_box on batch_shuffle, seed 0"]
    assert len((copied / "results.jsonl").read_text().splitlines()) == 2


def made_anew(small_run: AuditRun, folder: Path) -> tuple[Row, ...]:
    """The rows of the run after its second model and cell were made again in this process, undisturbed."""
    straight = Path(shutil.copytree(small_run.folder, folder / "straight"))
    shutil.rmtree(straight / "cells" / small_run.rows[1].cell)
    shutil.rmtree(next((straight / "models").glob("batch_shuffle-*")))
    return again(straight)[0].rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["client.safetensors", "trained.json"])
def test_a_damaged_model_is_an_error_row_and_the_rest_stays(
    copied: Path, small_run: AuditRun, name: str, tmp_path: Path
) -> None:
    none, batch = small_run.rows
    shutil.rmtree(copied / "cells" / batch.cell)
    (home,) = (copied / "models").glob("batch_shuffle-*")
    data = bytearray((home / name).read_bytes())
    data[-9] ^= 1
    (home / name).write_bytes(data)
    run, _ = again(copied)
    assert run.exit_code == 3
    assert run.rows[0] == none
    assert run.rows[1].status == "error"
    assert re.search(rf"{name} is damaged.*; delete", run.rows[1].reason)
    shutil.rmtree(home)
    assert again(copied)[0].rows == made_anew(small_run, tmp_path)


def test_a_damaged_result_is_restored_from_its_line_or_its_cell_runs_again(copied: Path, small_run: AuditRun) -> None:
    """It never stops the run: the first has a whole line in `results.jsonl`, the second has none."""
    lines = (copied / "results.jsonl").read_text().splitlines()
    (copied / "results.jsonl").write_text(lines[0] + "\n")
    for row in small_run.rows:
        (copied / "cells" / row.cell / "result.json").write_text("{")
    run, notes = again(copied)
    assert run.rows == small_run.rows
    assert notes.stages == ["attack black_box on batch_shuffle, seed 0"]
    first, second = notes.notes
    assert "result.json is damaged: it is not JSON; restored from results.jsonl" in first
    assert "result.json is damaged: it is not JSON; the cell runs again" in second
    assert again(copied)[1].notes == []


def test_a_damaged_picture_file_is_done_again(copied: Path, small_run: AuditRun) -> None:
    path = copied / "cells" / small_run.rows[1].cell / "per_example.npz"
    path.write_bytes(path.read_bytes()[:-1])
    run, notes = again(copied)
    assert run.rows == small_run.rows
    assert notes.stages == ["attack black_box on batch_shuffle, seed 0"]
    assert "per_example.npz is damaged" in notes.notes[0]


def test_a_folder_of_another_configuration(copied: Path) -> None:
    with pytest.raises(RunFolderError, match=r"it differs in seeds: \[0\] only there, \[1\] only here"):
        again(copied, seed=1)
    with pytest.raises(RunFolderError, match=r"training.batch_size: 50 there, 25 here"):
        again(copied, training="batch_size=25")
    with pytest.raises(RunFolderError, match=r'attacks: \["unsplit"\] only here\)'):
        again(copied, attack=["black_box", "unsplit"])
    with pytest.raises(RunFolderError, match=r"attacks\.fraction: 1\.0 there, 0\.5 here"):
        again(copied, attack="black_box:fraction=0.5")


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError, match=r"holds other files \(thesis\.tex\)"):
        again(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_in_use(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl", reason="needs the file locks of POSIX")
    monkeypatch.setattr("privkit.run.ledger.PATIENCE", 0.0)
    with (copied / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="in use by another process"):
            again(copied)


@pytest.mark.slow
def test_a_full_disk_stops_with_one_sentence_and_keeps_what_is_finished(
    copied: Path, small_run: AuditRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No file may grow past 64 KiB: the model's weights do not fit, as on a full disk."""
    none, batch = small_run.rows
    shutil.rmtree(copied / "cells" / batch.cell)
    shutil.rmtree(next((copied / "models").glob("batch_shuffle-*")))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*; free some space and run the same command") as caught:
            again(copied)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert read_rows(copied) == [none]
    assert again(copied)[0].rows == made_anew(small_run, tmp_path)


def test_a_run_folder_that_cannot_be_written() -> None:
    with pytest.raises(RunFolderError, match="cannot make the folder /proc/privkit"):
        again(Path("/proc/privkit"))
