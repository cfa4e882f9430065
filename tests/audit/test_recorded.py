"""Audits of recordings: the numbers of the run that made one, what follows from what is there, and what is said."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from privkit.audit.compare import compare
from privkit.audit.export import export
from privkit.audit.run import AuditRun, run_audit
from privkit.audit.seed_data import prepare
from privkit.cli.app import app
from privkit.errors import RunFolderError, UsageError
from privkit.parts.registry import parse
from privkit.parts.threats import threats_of
from privkit.recording.recorder import Recorder
from privkit.reports.columns import DECLARATION, LEARNED
from privkit.reports.schema import Row
from privkit.settings.resolve import resolve
from privkit.shared.measures import KINDS
from tests.recording.declarations import drawn
from tests.recording.edited import redescribed
from tests.recording.made import tensors as recorded_tensors
from tests.recording.made import written
from tests.small import SMALL, generator

HALF = {"builder": "tests.recording.made:Half"}
ATTACKS = ["nearest_record", "unmix:epochs=1,passes=2"]
TINY: dict[str, Any] = {"budget": "smoke", "threads": 1}
TRUST: dict[str, Any] = {"trust": ["tests", "torch.nn"]}
pytestmark = pytest.mark.usefixtures("no_report", "no_controls")


def rows(folder: Path, out: Path, **settings: Any) -> dict[str, Row]:
    """The rows of an audit of a recording, by their attack."""
    return {row.attack: row for row in run_audit(recorded=folder, out=out, **{**TINY, **TRUST, **settings}).rows}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A run of privkit's own, behind noise with an ε."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
        patch.setattr("privkit.audit.goals.context.AttackContext.controls", lambda context, mount, **of: ())
        return run_audit(
            defense="gaussian_noise:sigma=0.5,clip=5",
            attack=ATTACKS,
            out=tmp_path_factory.mktemp("trained") / "run",
            **SMALL,
        )


def same(trained: AuditRun, folder: Path, attacks: list[str], **settings: Any) -> None:
    """The audit of the recording of a run has the run's numbers, bit for bit."""
    export(trained.folder, folder / "recording")
    again = rows(folder / "recording", folder / "run", attack=attacks, **settings)
    defended = [row for row in trained.rows if row.defense != "none"]
    assert len(defended) == len(attacks)
    for row in defended:
        found = again[row.attack]
        for field in ("status", "recovered", "floors", "attack_curve", "threat_model", "queries", "accuracy", "doubt"):
            assert getattr(found, field) == getattr(row, field), (row.attack, field)
        kept = [
            check for check in row.checks if check.name != LEARNED
        ]  # of a model that somebody else trained, unknown
        assert [check for check in found.checks if check.name != DECLARATION] == kept
        stored = [
            np.load(run / "cells" / cell / "per_example.npz")
            for run, cell in ((trained.folder, row.cell), (folder / "run", found.cell))
        ]
        assert all(np.array_equal(stored[0][name], stored[1][name]) for name in set(stored[0].files) - {"ids"})
        if row.certificate is not None and row.certificate.kind == "differential_privacy":
            assert found.certificate is not None
            assert found.certificate.epsilon == row.certificate.epsilon
            # Nothing shows that the files of a recording are what privkit wrote.
            assert (row.certificate.standing, found.certificate.standing) == ("proven", "declared")
            (declared,) = [check for check in found.checks if check.name == DECLARATION]
            assert (declared.passed, declared.decisive) == (True, True)


@pytest.mark.slow
def test_a_recording_of_a_trained_model_gives_the_same_numbers_bit_for_bit(trained: AuditRun, tmp_path: Path) -> None:
    same(trained, tmp_path, ATTACKS)


def test_changed_data_are_not_exported(trained: AuditRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were sent through the model, whose audit had attacked other records."""
    config = resolve({"defense": trained.rows[-1].defense, **SMALL})
    found = prepare(config, 0, torch.device("cpu"))
    other = replace(found, hashes={**found.hashes, "private": "0"})
    monkeypatch.setattr("privkit.audit.export.prepare", lambda *given: other)
    with pytest.raises(RunFolderError, match="was made of something else: the records of seed 0; restore what changed"):
        export(trained.folder, tmp_path / "recording")


@pytest.mark.slow
def test_so_do_white_boxes_behind_a_shuffle_of_two_clients(tmp_path: Path) -> None:
    attacks = ["white_box:epochs=1", "jigsaw:epochs=1"]
    given = {"defense": "batch_shuffle", "protocol": "splitfed:clients=2", "attack": attacks}
    budget = {"budget": "smoke:victims=100"}
    same(run_audit(out=tmp_path / "trained", **{**SMALL, **given, **budget}), tmp_path, attacks, **budget)


def test_what_cannot_be_exported_is_said(trained: AuditRun, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown defense of this run 'masking'"):
        export(trained.folder, tmp_path / "recording", defense="masking")
    with pytest.raises(UsageError, match="this run has no seed 7; it has 0"):
        export(trained.folder, tmp_path / "recording", seed=7)
    with pytest.raises(RunFolderError, match="holds no run"):
        export(tmp_path, tmp_path / "recording")
    (tmp_path / "recording").mkdir()
    (tmp_path / "recording" / "other").touch()
    with pytest.raises(UsageError, match="holds files already"):
        export(trained.folder, tmp_path / "recording", defense="none")


def test_auto_follows_from_what_is_there(tmp_path: Path) -> None:
    labels = torch.arange(12) % 2
    alone: dict[str, Any] = {"own.images": None, "truth.images": None}
    returned = {f"round_{number}.cut_gradient": torch.rand(6, 1, 8, 8) for number in range(2)}
    one_pass = [name for name in KINDS["images"].general if parse("attacks", name).spec.mounting.passes == 1]
    shuffled = ["jigsaw", "jigsaw_white_box"]
    cases: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        ({}, {}, ["fora"]),
        ({}, {"lower": HALF}, one_pass),
        ({"own.images": None}, {"lower": HALF}, ["white_box"]),
        (
            {},
            {"lower": HALF, "defense": "patch_shuffle"},
            [*shuffled, *(attack for attack in one_pass if attack not in shuffled)],
        ),
        ({**alone, **returned, "truth.labels": labels}, {}, ["label_leak"]),
    ]
    for number, (tensors, described, attacks) in enumerate(cases):
        folder = written(tmp_path / str(number), tensors, **described)
        config = resolve({"recorded": str(folder), "attack": "auto", **TRUST})
        assert [attack.label for attack in config.every_attack] == attacks
    with pytest.raises(UsageError, match="auto finds no attack for this recording"):
        resolve({"recorded": str(written(tmp_path / "none", alone)), "attack": "auto"})


def test_a_budget_takes_the_last_rounds_and_the_first_own_images(tmp_path: Path) -> None:
    members = torch.arange(12).flip(0)
    folder = written(tmp_path / "recording", {"truth.members": members, "truth.labels": torch.arange(12)}, lower=HALF)
    whole = resolve({"recorded": str(folder), "attack": "mid_grey", **TRUST}).recording
    budget = "smoke:victims=6,auxiliary=3"
    last = resolve({"recorded": str(folder), "attack": "mid_grey", "budget": budget, **TRUST}).recording
    assert whole is not None
    assert last is not None
    assert (len(whole.views), len(whole.own), len(whole.truth)) == (2, 40, 12)
    assert (len(last.views), len(last.own), len(last.truth)) == (1, 3, 6)
    assert torch.equal(last.views[0].smashed, whole.views[1].smashed)
    assert torch.equal(last.truth.x[last.members.flatten()], whole.truth.x[members[6:]])
    assert last.labels is not None
    assert torch.equal(last.labels[last.members.flatten()], members[6:])


def test_labels_without_images_give_no_guess_a_score(tmp_path: Path) -> None:
    """The members of the rounds then number labels, and no image."""
    changed = {"truth.images": None, "truth.labels": torch.arange(12) % 2}
    (row,) = rows(written(tmp_path / "recording", changed), tmp_path / "run", attack="mid_grey").values()
    assert (row.status, row.reason, row.recovered) == ("done", "", {})


@pytest.mark.slow
def test_without_the_truth_guesses_are_kept_and_nothing_is_scored(tmp_path: Path) -> None:
    folder = written(tmp_path / "recording", {"truth.images": None}, lower=HALF)
    given: dict[str, Any] = {"attack": ["nearest_record", "mid_grey"], "gate": "ssim<=0.9"}
    run = run_audit(recorded=folder, out=tmp_path / "run", **TINY, **TRUST, **given)
    assert [(row.status, row.recovered, row.floors) for row in run.rows] == [("done", {}, {})] * 2
    assert all("scores of images (no true image was recorded)" in " ".join(row.notes) for row in run.rows)
    guesses = np.load(run.folder / "cells" / run.rows[0].cell / "guesses.npz")["guess"]
    assert (guesses.shape, guesses.dtype) == ((12, 8, 8, 1), np.uint8)
    assert run.exit_code == 1
    assert "no attack gave ssim" in run.failures[0]
    again = run_audit(recorded=folder, out=tmp_path / "run", **TINY, **TRUST, **given)
    assert again.rows == run.rows


def test_a_guess_is_compared_with_the_image_that_its_row_held(tmp_path: Path) -> None:
    """The true images lie in another order than the rows."""
    given, order = recorded_tensors(), torch.randperm(12, generator=generator())
    truth, members = given["truth.images"], order.argsort()
    own = torch.cat([(truth + 0.01).clamp(0, 1), given["own.images"]])
    changed: dict[str, Any] = {"truth.images": truth[order], "truth.members": members, "own.images": own}
    folder = written(tmp_path / "recording", changed, lower=HALF)
    (row,) = rows(folder, tmp_path / "run", attack="nearest_record").values()
    assert (row.status, row.reason) == ("done", "")
    assert row.recovered["unaligned"]["mse"].value < 2e-4


@pytest.mark.parametrize("unknown", [False, True])
def test_guesses_are_compared_record_by_record_in_any_order_of_the_rows(tmp_path: Path, unknown: bool) -> None:
    """The mean image is not closer to any record than itself, also if one row's record is unknown."""
    members = torch.arange(12).flip(0)
    if unknown:
        members[3] = -1
    folder = written(tmp_path / "recording", {"truth.members": members}, lower=HALF)
    (row,) = rows(folder, tmp_path / "run", attack="mean_image").values()
    assert (row.status, row.reason) == ("done", "")
    assert (row.ahead["mean_image"]["mse"].low, row.ahead["mean_image"]["mse"].high) == (0.0, 0.0)


def test_a_row_whose_image_is_unknown_stays_so_in_the_last_rounds(tmp_path: Path) -> None:
    members = torch.arange(12).flip(0)
    members[7] = -1
    folder = written(tmp_path / "recording", {"truth.members": members, "truth.labels": torch.arange(12)}, lower=HALF)
    budget = "smoke:victims=6,auxiliary=3"
    last = resolve({"recorded": str(folder), "attack": "mid_grey", "budget": budget, **TRUST}).recording
    assert last is not None
    assert last.truth.ids.tolist() == [0, 1, 2, 3, 5]
    assert last.members.flatten().tolist() == [4, -1, 3, 2, 1, 0]


@pytest.mark.parametrize(("precision", "size"), [(torch.float16, 128), (torch.float32, 256), (torch.float64, 512)])
def test_the_size_of_a_release_is_that_of_its_precision(precision: torch.dtype, size: int, tmp_path: Path) -> None:
    """Releases are read as float32, and each had the size of these."""
    sent = {name: value.to(precision) for name, value in recorded_tensors().items() if name.endswith("smashed")}
    (row,) = rows(written(tmp_path / "recording", {**sent}), tmp_path / "run", attack="mid_grey").values()
    assert row.notes[-1] == f"a released row has 64 numbers, {size} bytes in the recording"


def test_what_is_not_recorded_is_not_applicable_and_the_row_says_what_lacks(tmp_path: Path) -> None:
    folder = written(tmp_path / "recording")
    attacks = ["black_box", "white_box", "sdar", "member_inference", "canaries", "label_leak", "unmix"]
    found = rows(folder, tmp_path / "run", attack=attacks)
    reasons = {name: row.reason for name, row in found.items()}
    assert {row.status for row in found.values()} == {"not_applicable"}
    assert "the recording lacks lower" in reasons["black_box"]
    assert "the recording lacks lower" in reasons["white_box"]
    assert "the recording lacks own.labels and upper" in reasons["sdar"]
    assert "a recording has no clients" in reasons["member_inference"]
    assert "a recording has no clients" in reasons["canaries"]
    assert "record truth.labels" in reasons["label_leak"]
    assert "reads 8 passes of the attacked images, and 1 were recorded" in reasons["unmix"]
    assert "not known from the recording: accuracy, epsilon (no mechanism" in found["black_box"].notes[-2]
    assert found["black_box"].notes[-1].startswith("a released row has ")
    assert all(row.accuracy is None and row.certificate is None and row.costs is None for row in found.values())


def test_labels_are_attacked_by_the_recorded_gradients(tmp_path: Path) -> None:
    """Gradients of a rare label are longer: their norm tells it, in every row."""
    labels = torch.arange(12) % 3 // 2
    gradients = (labels * 2 + 1.0).view(-1, 1).expand(-1, 4) * torch.rand(12, 1, generator=generator()).add(1)
    changed: dict[str, Any] = {"truth.labels": labels}
    for number in range(2):
        changed[f"round_{number}.smashed"] = torch.rand(6, 4, generator=generator(number))
        changed[f"round_{number}.cut_gradient"] = gradients[6 * number : 6 * number + 6]
    (row,) = rows(written(tmp_path / "recording", changed), tmp_path / "run", attack="label_leak").values()
    assert (row.status, row.reason) == ("done", "")
    assert row.answers["auc"].value == 1.0


def test_the_owner_s_numbers_are_repeated_and_the_mechanism_is_accounted_for(tmp_path: Path, trained: AuditRun) -> None:
    export(trained.folder, tmp_path / "recording")
    measured = {"accuracy": 0.75, "test_images": 40, "bytes_up": 128.0}
    folder = redescribed(tmp_path / "recording", measured=measured, notes=["of last May"])
    (row,) = rows(folder, tmp_path / "run", attack="mid_grey", gate="epsilon<=1e9").values()
    assert row.accuracy is not None
    assert (row.accuracy.value, row.accuracy.n) == (0.75, 40)
    assert row.certificate is not None
    assert row.certificate.epsilon == trained.rows[-2].certificate.epsilon  # type: ignore[union-attr]
    assert "of last May" in row.notes
    assert any("accuracy, 128 bytes up an image" in note for note in row.notes)
    assert any(note.startswith("the most frequent label has a share of 0.") for note in row.notes)
    assert any("the recording declares; privkit did not run it; checked: rounds, " in note for note in row.notes)
    assert any("privkit wrote this recording of a run" in note for note in row.notes)


def test_a_cell_on_a_recording_has_the_limits_of_any_cell(tmp_path: Path) -> None:
    """They were refused: "a recording brings its own cell_seconds"."""
    folder = written(tmp_path / "recording")
    config = resolve({"recorded": str(folder), "attack": "fora", "cell_seconds": 0.02, "cell_memory": "64GiB"})
    assert (config.cell_seconds, config.cell_memory) == (0.02, 64 << 30)
    (row,) = rows(folder, tmp_path / "run", attack="fora:epochs=1000", cell_seconds=0.02).values()
    assert (row.status, row.reason.partition(";")[0]) == ("error", "took longer than cell_seconds=0.02")


def test_settings_of_a_training_are_refused(tmp_path: Path) -> None:
    folder = str(written(tmp_path / "recording"))
    for key, value in {"defense": "masking", "dataset": "digits", "training": "batch_size=3"}.items():
        with pytest.raises(UsageError, match=f"a recording brings its own {key}, so leave --{key} out"):
            resolve({"recorded": folder, key: value, "attack": "fora"})
    for key, given in {"tune": "trials=2", "data_root": "data", "download": True}.items():
        flag = key.replace("_", "-")
        with pytest.raises(UsageError, match=f"{key} does not go with a recording, so leave --{flag} out"):
            resolve({"recorded": folder, key: given, "attack": "fora"})
    with pytest.raises(UsageError, match=r"this recording lacks own\.labels, truth\.images or truth\.labels"):
        resolve({"recorded": folder, "features": "classifier", "attack": "fora"})
    with pytest.raises(UsageError, match="recorded must be the path of a folder"):
        resolve({"recorded": 3})


def test_a_lower_segment_that_makes_something_else_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "recording", lower={"builder": "torch.nn:Flatten"})
    with pytest.raises(UsageError, match=r"makes \[64\] of an image, and the rounds hold \[1, 8, 8\]"):
        rows(folder, tmp_path / "run", attack="white_box")


def test_the_command_records_and_a_dry_run_names_the_cells(trained: AuditRun, tmp_path: Path) -> None:
    recorded = CliRunner().invoke(
        app, ["record", str(trained.folder), "--out", str(tmp_path / "r"), "--defense", "none"]
    )
    assert "2 rounds of none, 50 true and" in recorded.output
    shown = CliRunner().invoke(app, ["audit", "--recorded", str(tmp_path / "r"), "--attack", "mid_grey", "--dry-run"])
    assert re.search(r"recorded-mid_grey-s0-\w+  none / mid_grey, seed 0\n1 cells on a recording", shown.output), (
        shown.output
    )


class Evaluated(nn.Module):
    """A client that is recorded in evaluation mode, whatever mode it released in."""

    def __init__(self, client: nn.Module) -> None:
        super().__init__()
        self.client = client

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        released: torch.Tensor = self.client(images)
        return released

    def train(self, mode: bool = True) -> "Evaluated":
        self.client.eval()
        return self


@pytest.mark.parametrize("batch_norm", [True, False])
def test_a_failed_attack_shows_nothing_if_it_was_not_given_what_made_the_release(
    batch_norm: bool, tmp_path: Path
) -> None:
    """Without a defense: a network whose batch normalization was recorded in the other mode "held" before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images = drawn(240)
        client = nn.Sequential(nn.Conv2d(1, 4, 3), *([nn.BatchNorm2d(4)] if batch_norm else []), nn.ReLU())
        recorder = Recorder(client)
        for x in images[:160].split(20):
            client(x)
        recorder.save(tmp_path / "eval", name="plain", own=images[160:], lower=Evaluated(client))
        found = run_audit(
            recorded=tmp_path / "eval",
            attack=["white_box:epochs=1", "fora:epochs=1"],
            gate=["ssim<=1"],
            out=tmp_path / "run",
            **TINY,
        )
    by = {row.attack.partition(":")[0]: row for row in found.rows}
    verdict = next(one for one in threats_of(found.rows) if one.threat_model == "weights")
    assert by["fora"].doubt == ""
    if not batch_norm:
        assert (by["white_box"].doubt, verdict.outcome, found.exit_code) == ("", "falls", 0)
        return
    assert (
        "does not reproduce the release: the last round, sent again in eval mode, differs by 0."
        in by["white_box"].doubt
    )
    assert all(by["white_box"].doubt in row.notes for row in found.rows)
    assert verdict.outcome == "not_shown"
    assert verdict.sentence.startswith("not shown: ")
    assert by["white_box"].doubt in verdict.sentence
    assert found.exit_code == 1
    assert len(found.failures) == 1
    assert "but it is not shown" in found.failures[0]


def test_an_attack_that_learns_from_more_noise_than_was_released_shows_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", lower={"builder": "tests.recording.made:Half"}, defense="gaussian_noise:sigma=5")
    attacks = ["black_box:epochs=1", "fora:epochs=1", "mid_grey"]
    found = run_audit(recorded=folder, attack=attacks, out=tmp_path / "run", trust=["tests"], **TINY)
    by = {row.attack.partition(":")[0]: row.doubt for row in found.rows}
    assert "adds more noise than the release has" in by["black_box"]
    assert by["fora"] == by["black_box"]
    assert by["mid_grey"] == ""


def test_a_folder_of_another_seed_or_recording_is_refused_with_that_difference(tmp_path: Path) -> None:
    """It was said to differ in "dataset.builders: [] there, [] here"."""
    given: dict[str, Any] = {"out": tmp_path / "run", "attack": "mid_grey"}
    rows(written(tmp_path / "r"), **given)
    with pytest.raises(RunFolderError, match=r"\(it differs in seeds: \[0\] only there, \[1\] only here\)"):
        rows(tmp_path / "r", **given, seed=1)
    other = written(tmp_path / "s", {"truth.labels": torch.arange(12)})
    short = r"[0-9a-f]{8} there, [0-9a-f]{8} here"
    told = rf"it differs in recording: recording\.json \({short}\), tensors\.safetensors \({short}\)\);"
    with pytest.raises(RunFolderError, match=told):
        rows(other, **given)
    run_audit(recorded=other, **{**given, "out": tmp_path / "other"}, **TINY)
    (files,) = compare(tmp_path / "run", tmp_path / "other").configuration
    assert files.startswith("recording: recording.json (")


def test_too_few_own_images_are_explained_by_those_that_are_true_ones(tmp_path: Path) -> None:
    given = recorded_tensors()
    own = torch.cat([given["truth.images"], given["own.images"][:5]])
    found = rows(written(tmp_path / "r", {"own.images": own}, lower=HALF), tmp_path / "run", attack="black_box")
    assert found["black_box"].status == "not_applicable"
    assert "12 own images were left out, since they are also the attacked ones" in found["black_box"].reason


def test_own_records_of_rounds_that_are_not_attacked_are_left_out_too(tmp_path: Path) -> None:
    """A budget attacks the last rounds; records of the first counted as the adversary's own."""
    given = recorded_tensors()
    written(tmp_path / "r", {"own.images": torch.cat([given["truth.images"], given["own.images"][:8]])})
    (row,) = rows(tmp_path / "r", tmp_path / "a", attack="mid_grey", budget="smoke:victims=6").values()
    assert row.counts["victims"] == 6
    assert (row.counts["auxiliary"], row.counts["auxiliary_dropped"]) == (8, 12)
