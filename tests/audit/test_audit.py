"""An audit end to end: what it stores, how it resumes, and that the attack never meets the truth."""

import re
import resource
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, nn

from privkit.attacks.base import Mounting, NotApplicable, Session
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.audit.run import AuditRun, run_audit
from privkit.audit.seed_data import prepare
from privkit.cli.estimate import preview
from privkit.errors import DamagedFile, DataError, PrivkitError, RunFolderError, StorageError, UsageError
from privkit.registry import TABLES, Component, parse, table
from privkit.reports.schema import Manifest, Row
from privkit.run.records import read_rows
from privkit.sealed import opened
from privkit.settings import resolve
from privkit.training import Clients
from privkit.wire.channel import black_box_query, record

SMALL: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke", "threads": 1}


class Notes:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, name: str, unit: str = "epochs") -> None:
        self.stages.append(name)

    def step(self, done: int, total: int, value: float | None = None) -> None:
        pass


@pytest.fixture
def copied(small_run: AuditRun, tmp_path: Path, no_report: None) -> Path:
    """A copy of the finished run, to damage; what goes on there leaves the report as it is."""
    return Path(shutil.copytree(small_run.folder, tmp_path / "run"))


def again(folder: Path, **changes: Any) -> tuple[AuditRun, Notes]:
    notes = Notes()
    return run_audit(out=folder, progress=notes, **{"defense": "batch_shuffle", **SMALL, **changes}), notes


def test_rows_hold_the_whole_story(small_run: AuditRun) -> None:
    none, batch = small_run.rows
    assert (none.defense, batch.defense) == ("none", "batch_shuffle")
    assert small_run.exit_code == 0
    for row in small_run.rows:
        assert row.status == "done"
        assert set(row.recovers) == {"unaligned", "matched"}
        assert set(row.recovers["unaligned"]) == {"mse", "psnr", "ssim"}
        assert set(row.floors) == {"mid_grey", "mean_image", "zero_steps"}
        assert {gate.name for gate in row.gates} == {
            "wins_on_identity",
            "fails_on_noise",
            "converged",
            "beats_mean_image",
            "beats_zero_steps",
        }
        assert row.accuracy is not None
        assert row.accuracy.low <= row.accuracy.value <= row.accuracy.high
        assert row.costs is not None
        assert row.costs.bytes_up == 16 * 96 * 4
        assert len(row.training_curve) == 1
        assert len(row.attack_curve) == 2
    assert none.proves is not None
    assert none.proves.kind == "nothing"
    assert batch.proves is not None
    assert "no differential privacy" in batch.proves.statement
    assert batch.proves.epsilon == float("inf")


def test_the_run_on_disk(small_run: AuditRun) -> None:
    folder = small_run.folder
    manifest = Manifest.model_validate(opened((folder / "manifest.json").read_bytes()))
    assert manifest.threads == 1
    assert read_rows(folder) == list(small_run.rows)
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
            assert arrays["unaligned_ssim"].mean() == pytest.approx(row.recovers["unaligned"]["ssim"].mean)
            assert len(np.unique(arrays["ids"])) == row.images["victims"]
    assert (folder / "report" / "index.html").is_file()
    assert not list(folder.rglob("*.ckpt"))
    assert not list(folder.rglob("*.tmp"))


def test_running_it_again_does_nothing_again(copied: Path, small_run: AuditRun) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copied / "cells").rglob("result.json")}
    run, notes = again(copied)
    assert run.rows == small_run.rows
    assert notes.stages == []
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.usefixtures("no_report")
def test_same_seed_same_numbers_in_another_folder(small_run: AuditRun, tmp_path: Path) -> None:
    assert again(tmp_path / "other")[0].rows == small_run.rows


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


@pytest.mark.parametrize("name", ["client.safetensors", "trained.json"])
def test_a_damaged_model_is_an_error_row_and_the_rest_stays(copied: Path, small_run: AuditRun, name: str) -> None:
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
    assert again(copied)[0].rows == small_run.rows


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
    assert "result.json is damaged: it is no JSON; restored from results.jsonl" in first
    assert "result.json is damaged: it is no JSON; the cell runs again" in second
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


def test_a_folder_in_use(copied: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (copied / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match="in use by another process"):
            again(copied)


def test_a_full_disk_stops_with_one_sentence_and_keeps_what_is_finished(
    copied: Path, small_run: AuditRun, monkeypatch: pytest.MonkeyPatch
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
    assert again(copied)[0].rows == small_run.rows


def test_a_run_folder_that_cannot_be_written() -> None:
    with pytest.raises(StorageError, match="cannot write"):
        again(Path("/proc/privkit"))


# --- the truth stays outside -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spy:
    """An attack that looks for the truth everywhere it can reach, and keeps what it was given."""

    name: ClassVar[str] = "spy"
    goal: ClassVar[str] = "reconstruct"
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary", "auxiliary_labels", "query", "lower", "upper", "imitate"})
    seen: ClassVar[list[ImageObservation]] = []

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        type(self).seen.append(observation)
        n = sum(len(view.smashed) for view in observation.views)
        return Reconstruction(images=torch.full((n, *observation.image_shape), 0.5))


def reachable(*roots: Any) -> list[torch.Tensor]:
    """Every tensor that can be reached from what an attack is given, closures and modules included."""
    found, queue, known = [], list(roots), set()
    while queue:
        thing = queue.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        if isinstance(thing, torch.Tensor):
            found.append(thing)
        elif isinstance(thing, nn.Module):
            queue += [*thing.parameters(), *thing.buffers(), *vars(thing).values()]
        elif isinstance(thing, FunctionType):
            queue += [*(cell.cell_contents for cell in thing.__closure__ or ()), *(thing.__defaults__ or ())]
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, list | tuple | set):
            queue += thing
        elif hasattr(thing, "__dict__"):
            queue += vars(thing).values()
    return found


def registered(monkeypatch: pytest.MonkeyPatch, attack: type) -> None:
    """Make an attack known by its name."""
    name: str = attack.name  # type: ignore[attr-defined]

    def parse_too(kind: str, given: Any) -> Component:
        return Component(name=name, spec=attack(), label=name) if given == name else parse(kind, given)

    monkeypatch.setattr("privkit.settings.parse", parse_too)
    monkeypatch.setattr("privkit.early.check", lambda settings: None)  # it knows registered names only


def test_no_private_image_can_be_reached_from_what_an_attack_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, Spy)
    Spy.seen.clear()
    config = resolve({"defense": "batch_shuffle", "attack": "spy", **SMALL})
    run_audit(config, out=tmp_path / "run")
    private = prepare(config, 0, torch.device("cpu")).splits.private
    images = private.x.flatten(1)

    def leaks(*given: Any) -> bool:
        tensors = reachable(*given)
        assert len(tensors) > 10  # the client's weights, the views, the auxiliary images
        return any(
            (tensor.numel() % 64 == 0 and (tensor.reshape(-1, 64)[:, None] == images[None]).all(2).any())
            or (tensor.dtype == torch.int64 and tensor.ndim == 1 and torch.isin(tensor, private.ids).any())
            for tensor in tensors
        )

    assert len(Spy.seen) == 2
    altered: Any = replace  # by queries of a wrong type
    for observation in Spy.seen:
        assert not leaks(observation)
        victim, ids = private.x[7:8], private.ids[:5]
        kept = observation.query
        assert leaks(altered(observation, query=lambda x, g, kept=kept, leak=victim: (kept, leak)))
        assert leaks(altered(observation, query=lambda x, g: (kept, ids)))  # noqa: B023


@pytest.mark.parametrize("attack", ["black_box:epochs=1", "mean_image", "mid_grey"])
def test_other_truth_under_the_same_views_gives_the_same_bits(attack: str) -> None:
    """The private images are replaced after the wire was recorded: every attack answers bit for bit the same."""
    config = resolve({"defense": "batch_shuffle", "attack": attack, **SMALL})
    outputs = []
    for replaced in (False, True):
        setting = prepare(config, 0, torch.device("cpu"))
        defense = config.defenses[1].spec
        model = config.model.spec.build(setting.splits.domain, 10, positions=False, seed=0)
        edge = Clients.build(model.lower, defense, setting.splits.domain, classes=10, seed=0)
        views = record(edge, setting.victims, batch_size=50, seed=0).views
        knowledge = ImageObservation(
            image_shape=(1, 8, 8),
            batch_size=50,
            auxiliary=setting.auxiliary.x,
            query=black_box_query(edge),
        )
        if replaced:
            setting.victims.x.copy_(torch.rand_like(setting.victims.x))
            setting.splits.private.x.copy_(torch.rand_like(setting.splits.private.x))
        spec = config.attacks[0].spec
        outputs.append(spec.run(replace(knowledge, views=views), Generator().manual_seed(0)).images)
    assert torch.equal(*outputs)


def test_private_auxiliary_and_test_images_are_disjoint() -> None:
    setting = prepare(resolve({"seed": 3, **SMALL}), 3, torch.device("cpu"))
    parts = (setting.splits.private.ids, setting.splits.auxiliary.ids, setting.splits.test.ids)
    together = torch.cat(parts)
    assert len(together.unique()) == len(together)


# --- auxiliary data and victims --------------------------------------------------------------------------------------


def test_the_papers_worst_case_attacks_test_images_with_the_training_set() -> None:
    config = resolve({"auxiliary": "training", **SMALL})
    setting = prepare(config, 0, torch.device("cpu"))
    assert torch.equal(setting.auxiliary.x, setting.splits.private.x)
    assert torch.isin(setting.victims.ids, setting.splits.test.ids).all()
    own = prepare(replace(config, victims="private"), 0, torch.device("cpu"))
    assert torch.isin(own.victims.ids, own.splits.private.ids).all()


def test_auxiliary_images_of_another_dataset_take_the_private_shape() -> None:
    setting = prepare(resolve({"auxiliary": "lfw_subset", **SMALL}), 0, torch.device("cpu"))
    assert setting.auxiliary.x.shape == (200, 1, 8, 8)
    assert setting.hashes["lfw_subset"] == setting.auxiliary.sha256()
    assert setting.dropped == 0


def test_private_images_are_no_auxiliary_images_of_another_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pictures under another name: the private ones among them are left out, and the run says how many."""
    from privkit.domains import DATASETS

    monkeypatch.setitem(DATASETS, "same_digits", "privkit.domains.images.embedded:TinyDigits")
    table.cache_clear()
    try:
        config = resolve({"auxiliary": "same_digits", "attack": "mean_image", "defense": "none", **SMALL})
        setting = prepare(config, 0, torch.device("cpu"))
        notes = Notes()
        run = run_audit(config, out=tmp_path / "run", progress=notes)
    finally:
        table.cache_clear()
    private = {image.numpy().tobytes() for image in setting.splits.private.x}
    assert not any(image.numpy().tobytes() in private for image in setting.auxiliary.x)
    assert 0 < setting.dropped < 200
    assert len(setting.auxiliary) == 200 - setting.dropped
    assert run.rows[0].images["auxiliary_dropped"] == setting.dropped
    assert notes.notes == [f"seed 0: {setting.dropped} auxiliary images are private or attacked ones; left out"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "smoke:auxiliary=60"}, "batch_size=50 is more than 15, a quarter of the 60 auxiliary images"),
        ({"dataset": "lfw_subset", "budget": "small"}, "20, test images; use --training batch_size=20 or less"),
        ({"training": "batch_size=99"}, "50, attacked images (the smaller of victims=50 and 200 private ones); use"),
        (
            {"budget": "smoke:victims=1"},
            "1 attacked images (the smaller of victims=1 and 200 private ones) are too few",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_batches_that_the_data_do_not_fill_are_refused_before_training(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    notes = Notes()
    config = resolve({**SMALL, **settings})
    with pytest.raises(UsageError) as caught:
        run_audit(config, out=tmp_path / "run", progress=notes)
    assert message in str(caught.value)
    assert notes.stages == []
    with pytest.raises(UsageError) as previewed:
        preview(config)
    assert str(previewed.value) == str(caught.value)


def test_pictures_of_one_class_are_no_task(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (32, 32), "white").save(tmp_path / "cat" / "1.png")
    config = resolve({**SMALL, "dataset": "image_folder", "data_root": str(tmp_path)})
    for refused in (lambda: prepare(config, 0, torch.device("cpu")), lambda: preview(config)):
        with pytest.raises(DataError, match="image_folder has one class only"):
            refused()


def test_the_advised_batch_size_works() -> None:
    config = resolve({"dataset": "lfw_subset", "training": "batch_size=20"})
    assert len(prepare(config, 0, torch.device("cpu")).victims) == 100


# --- cells that fail -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Refuses:
    """Is not applicable, or crashes, as told."""

    name: ClassVar[str] = "refuses"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)

    def run(self, observation: ImageObservation, generator: Generator, session: Any = None) -> Reconstruction:
        raise NotApplicable("needs what nobody has")


@dataclass(frozen=True, kw_only=True)
class Crashes:
    """A faulty attack."""

    name: ClassVar[str] = "crashes"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)

    def run(self, observation: ImageObservation, generator: Generator, session: Any = None) -> Reconstruction:
        raise RuntimeError("shapes\ndo not fit")


def test_an_attack_that_does_not_apply_is_a_row_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, Refuses)
    run = run_audit(resolve({"attack": ["refuses", "mean_image"], **SMALL}), out=tmp_path / "run")
    assert [row.status for row in run.rows] == ["not_applicable", "done"] * 2
    assert run.rows[0].reason == "needs what nobody has"
    assert run.rows[0].recovers == {}
    assert run.exit_code == 0  # the other attack gave a number


def test_a_model_on_which_no_attack_gave_a_number_fails_and_keeps_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, Refuses)
    run = run_audit(resolve({"attack": "refuses", **SMALL}), out=tmp_path / "run")
    assert run.exit_code == 1
    assert run.failures == tuple(
        f"{defense}, seed 0: no attack gave a number (refuses: needs what nobody has)"
        for defense in ("none", "batch_shuffle")
    )
    for row in run.rows:
        assert row.status == "not_applicable"
        assert row.proves is not None
        assert row.costs is not None
        assert row.accuracy is not None
        assert row.training_curve
    text = run.report.read_text()
    assert "not applicable" in text
    assert f"{run.rows[1].accuracy.value:.3f} [" in text  # type: ignore[union-attr]


def test_a_crash_is_an_error_row_and_the_other_cells_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, Crashes)
    config = resolve({"attack": ["crashes", "mean_image"], **SMALL})
    run = run_audit(config, out=tmp_path / "run")
    assert [row.status for row in run.rows] == ["error", "done"] * 2
    assert run.rows[0].reason.startswith("RuntimeError: shapes do not fit (trace in ")
    assert run.exit_code == 3
    assert "Traceback" in (tmp_path / "run" / "cells" / run.rows[0].cell / "log.txt").read_text()
    assert len(read_rows(tmp_path / "run")) == 4
    run_audit(config, out=tmp_path / "run")  # errors are tried again, and leave one row each
    assert len(read_rows(tmp_path / "run")) == 4


def test_a_defense_that_needs_tokens_on_a_model_without_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "maps.py").write_text(
        "from torch import nn\ndef lower():\n    return nn.Conv2d(1, 4, 2, 2)\n"
        "def upper(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"batch_shuffle does not fit maps.lower:maps.upper: .* tokens \[M, B, T, D\]"):
        run_audit(model="maps.lower:maps.upper", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_batches_at_which_a_defense_does_nothing_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mixes nothing"):
        again(tmp_path / "run", training="batch_size=1")
    assert not (tmp_path / "run").exists()


def test_every_error_has_an_exit_code() -> None:
    codes = {cls.__name__: cls.exit_code for cls in PrivkitError.__subclasses__()}
    assert set(codes.values()) == {2, 3}
    assert codes["UsageError"] == 2
    assert set(TABLES) >= {"defenses", "attacks"}
