"""Recordings that do not fit together are refused, each in one sentence, and a pickle is never loaded."""

import io
import pickle
import zipfile
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from privkit.accountants.spec.parts import Poisson, WithoutReplacement
from privkit.accountants.spec.records import to_json
from privkit.accountants.spec.secrets import RandomAllocation, ShuffledEpochs
from privkit.audit.declared import declared_by
from privkit.audit.recorded import _certificate
from privkit.domains.images.domain import Images
from privkit.errors import DataError, PrivkitError
from privkit.files.import_path import Untrusted
from privkit.models.vit import VIT_MICRO
from privkit.recording.files import is_pickle
from privkit.recording.read import read_recording
from tests.recording.declarations import MECHANISM
from tests.recording.edited import redescribed
from tests.recording.made import ROUNDS, ROWS, Half, tensors, written

HALF = "tests.recording.made:Half"


class Evil:
    """A pickle that tells if it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    found, given = read_recording(written(tmp_path / "r")), tensors()
    assert [view.smashed.tolist() for view in found.views] == [
        given[f"round_{number}.smashed"].tolist() for number in range(ROUNDS)
    ]
    assert torch.equal(found.truth.x, given["truth.images"])
    assert torch.equal(found.own.x, given["own.images"])
    assert found.members.flatten().tolist() == list(range(ROUNDS * ROWS))
    assert (found.own_labels, found.labels, found.mechanism, found.lower()) == (False, None, None, None)


def test_images_of_any_float_are_read_as_float32(tmp_path: Path) -> None:
    wide: dict[str, torch.Tensor | None] = {name: tensors()[name].double() for name in ("truth.images", "own.images")}
    found = read_recording(written(tmp_path / "r", wide))
    assert found.truth.x.dtype == found.own.x.dtype == torch.float32
    assert torch.equal(found.truth.x, tensors()["truth.images"])


def test_a_further_pass_of_a_shuffled_run_is_a_further_release(tmp_path: Path) -> None:
    """A pass is shorter than an epoch, and holds every image once more."""
    found = read_recording(written(tmp_path / "r", {"truth.members": torch.arange(ROWS)}, passes=2))
    shuffled = replace(MECHANISM, participation=ShuffledEpochs(epoch_rounds=10), rounds=10)
    for mechanism in (shuffled, replace(MECHANISM, rounds=1)):
        counted = [replace(found, mechanism=mechanism).mechanism_of(passes) for passes in (1, 2, 7)]
        assert [one and one.turns for one in counted] == [1, 2, 7]


def test_an_epsilon_for_records_drawn_anew_says_nothing_of_further_passes(tmp_path: Path) -> None:
    """They send the records of the first pass again: 8 passes over 20 sampled rounds had 2.2 stated for about 23."""
    found = read_recording(written(tmp_path / "r", {"truth.members": torch.arange(ROWS)}, passes=2))
    for participation in (
        Poisson(rate=0.05),
        WithoutReplacement(chosen=5, clients=100),
        RandomAllocation(participations=1, epoch_rounds=10),
        ShuffledEpochs(epoch_rounds=10, records=100),
    ):
        relation: Any = "add_or_remove_one" if isinstance(participation, Poisson | RandomAllocation) else "replace_one"
        drawn = replace(MECHANISM, participation=participation, rounds=10, relation=relation)
        recording = replace(found, mechanism=drawn)
        assert recording.covers_one_pass
        assert [recording.mechanism_of(passes) for passes in (1, 2)] == [drawn, drawn]
        claim = _certificate(recording, declared_by(recording), drawn, 1e-5, passes=2)
        assert claim is not None
        assert "the attack reads 2 passes" in claim.statement
    assert not replace(found, mechanism=MECHANISM).covers_one_pass


@pytest.mark.parametrize("order", ["=", ">", "<"])
def test_npz_holds_the_same(order: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "r", tensors="t.npz")
    arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors().items()}
    np.savez(folder / "t.npz", **{name: a.astype(a.dtype.newbyteorder(order)) for name, a in arrays.items()})
    redescribed(folder)
    assert torch.equal(read_recording(folder).truth.x, read_recording(written(tmp_path / "s")).truth.x)


def test_an_array_of_texts_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", tensors="t.npz")
    np.savez(folder / "t.npz", **{"truth.labels": np.array(["cat", "dog"])})  # type: ignore[arg-type]
    refused(redescribed(folder), "'truth.labels' holds texts; number them, such as labels from 0")


TENSORS: list[tuple[dict[str, Tensor | None], dict[str, Any], str]] = [
    ({"round_1.smashed": None}, {}, "tensor round_1.smashed is missing; rounds=2 need one each"),
    ({"round_2.smashed": torch.zeros(ROWS, 4)}, {}, "unknown tensor 'round_2.smashed'"),
    ({"round_1.smashed": torch.zeros(5, 1, 8, 8)}, {}, "has 5 rows, and batch_size=6 of clients=1 makes 6"),
    ({"round_1.smashed": torch.zeros(ROWS, 1, 8, 4)}, {}, "smashed data of different shapes"),
    ({"round_0.smashed": torch.full((ROWS, 1, 8, 8), nan)}, {}, "round_0.smashed holds NaN or infinity"),
    ({"own.images": torch.full((2, 1, 8, 8), inf)}, {}, "own.images holds NaN or infinity"),
    ({"own.images": torch.full((2, 1, 8, 8), 2.0)}, {}, "own.images: images must lie in [0, 1]"),
    ({"own.images": torch.zeros(2, 3, 8, 8)}, {}, "own.images: images must be [1, 8, 8] each, got [3, 8, 8]"),
    ({"own.images": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}, {}, "images must be float32"),
    ({"round_0.smashed": torch.zeros(ROWS, 4, dtype=torch.complex64)}, {}, "is torch.complex64; give floats"),
    ({"round_0.smashed": torch.zeros(ROWS, 4, dtype=torch.int64)}, {}, "round_0.smashed must be float [6, T, D]"),
    ({"round_0.cut_gradient": torch.zeros(ROWS, 4)}, {}, "round_0.cut_gradient must be float [6, 1, 8, 8], got"),
    ({"round_0.labels": torch.zeros(3, dtype=torch.int64)}, {}, "round_0.labels must be whole numbers [6]"),
    ({"own.labels": torch.zeros(3, dtype=torch.int64)}, {}, "3 labels for 40 own.images; give one each"),
    (
        {"own.labels": torch.zeros(40)},
        {},
        "own.labels must be whole numbers, [N] from 0 or [N, L] of 0 and 1, got torch.fl",
    ),
    ({"own.labels": torch.full((40,), 7)}, {"classes": 5}, "own.labels has label 7, and classes=5 end below"),
    ({"truth.images": torch.zeros(5, 1, 8, 8)}, {}, "5 true images do not match 12 released rows"),
    ({"truth.members": torch.arange(5)}, {}, "truth.members must be whole numbers [12, 1]"),
    ({"truth.members": torch.arange(12) + 1}, {}, "truth.members must lie in -1..11 for 12 true images, got 1..12"),
    ({"truth.images": None, "truth.members": torch.arange(12)}, {}, "there are none; add truth.images"),
]


@pytest.mark.parametrize(("changed", "described", "sentence"), TENSORS, ids=[case[2] for case in TENSORS])
def test_tensors_that_do_not_fit(
    changed: dict[str, Tensor | None], described: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    refused(written(tmp_path / "r", changed, **described), sentence)


def without(*names: str) -> dict[str, Any]:
    """A mechanism that leaves out some fields."""
    return {name: value for name, value in to_json(MECHANISM).items() if name not in names}


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"schema_version": 3}, "has schema version 3, and this privkit reads up to 2; install a newer privkit"),
    ({"schema_version": "1"}, "schema_version: "),
    ({"batch_sise": 3}, "unknown field 'batch_sise'; did you mean 'batch_size'?"),
    ({"rounds": 0}, "rounds: "),
    ({"passes": 2, "rounds": 3}, "2 passes of 3 rounds are not a whole number of rounds each"),
    ({"defense": "gaussian_noise"}, "there is no lower; add it, or drop defense"),
    ({"lower": {"builder": HALF, "program": "lower.pt"}}, "give either a program, or a builder"),
    ({"measured": {"accuracy": 0.9}}, "accuracy and test_images belong together"),
    ({"mechanism": {"kind": "magic"}}, "mechanism: unknown kind 'magic'"),
    ({"mechanism": {"kind": "fixed", "ratios": [0.5, 0.5]}}, "give a SplitMechanism"),
    (
        {"mechanism": without("rounds")},
        "mechanism leaves out rounds, and privkit takes no value for granted that lowers",
    ),
    ({"mechanism": without("rounds", "releases")}, "leaves out rounds and releases"),
    ({"mechanism": without("participation")}, "leaves out participation"),
    (
        {"mechanism": {**without(), "noise": {"kind": "noise", "smashed": 1.0}}},
        "noise.law and noise.labels and noise.site",
    ),
    ({"mechanism": without("smashed")}, "write it with privkit.Recorder.save"),
    ({"tensors": "../tensors.safetensors"}, "must be a file of this folder itself"),
    ({"tensors": "absent.npz"}, "cannot read absent.npz"),
    ({"files": {"tensors.safetensors": "0" * 64}}, "its checksum differs; restore the file"),
]


@pytest.mark.parametrize(("described", "sentence"), FIELDS, ids=[sentence for _, sentence in FIELDS])
def test_descriptions_that_are_not_allowed(described: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    refused(written(tmp_path / "r", **described), sentence)


def test_an_old_recording_is_read_and_what_it_leaves_out_is_known(tmp_path: Path) -> None:
    old = read_recording(written(tmp_path / "a", schema_version=1, mechanism=without("rounds", "random_masks")))
    assert old.left_out == ("rounds", "random_masks")
    assert read_recording(written(tmp_path / "b", schema_version=1, mechanism=without())).left_out == ()
    assert read_recording(written(tmp_path / "c", schema_version=1)).mechanism is None


def test_what_is_no_recording(tmp_path: Path) -> None:
    refused(tmp_path, "holds no recording: cannot read recording.json")
    (tmp_path / "recording.json").write_text("{")
    refused(tmp_path, "is not JSON")


def pickled() -> dict[str, bytes]:
    """Pickles of every kind that a file of tensors or of a program may hide."""
    saved, array = io.BytesIO(), io.BytesIO()
    torch.save({"a": Evil()}, saved)
    np.savez(array, evil=np.array([Evil()], dtype=object))
    return {"bare": pickle.dumps(Evil()), "torch": saved.getvalue(), "array": array.getvalue()}


@pytest.mark.parametrize("kind", pickled())
@pytest.mark.parametrize("name", ["t.npz", "t.safetensors", "t.pt"])
def test_a_pickle_is_refused_and_never_loaded(kind: str, name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "r", tensors=name)
    (folder / name).write_bytes(pickled()[kind])
    refused(redescribed(folder), f"{name} ")
    folder = written(tmp_path / "p", lower={"program": name})
    (folder / name).write_bytes(pickled()[kind])
    redescribed(folder)
    with pytest.raises(DataError, match="not a program without pickled objects"):
        read_recording(folder).lower()


def test_a_program_is_no_pickle_and_runs(tmp_path: Path) -> None:
    images, folder = torch.rand(3, 1, 8, 8), written(tmp_path / "r", lower={"program": "lower.pt"})
    torch.jit.save(torch.jit.script(Half()), folder / "lower.pt")
    redescribed(folder)
    assert not is_pickle((folder / "lower.pt").read_bytes())
    lower = read_recording(folder).lower()
    assert lower is not None
    assert torch.equal(lower.eval()(images), images / 2)
    assert not lower(images).requires_grad


def test_a_program_from_a_package_with_a_folder_models_is_no_exported_one(tmp_path: Path) -> None:
    """Its code lies in a folder of that name, as that of torchvision, timm or transformers does."""
    images, folder = torch.rand(3, 1, 8, 8), written(tmp_path / "r", lower={"program": "lower.pt"})
    module = VIT_MICRO.build(Images(shape=(1, 8, 8)), 10, positions=True, seed=0).lower.eval()
    torch.jit.save(torch.jit.trace(module, images), folder / "lower.pt")
    lower = read_recording(redescribed(folder)).lower()
    assert lower is not None
    torch.testing.assert_close(lower(images), module(images).detach())


@pytest.mark.slow
def test_an_exported_program_runs_and_one_with_objects_is_refused(tmp_path: Path) -> None:
    images, folder = torch.rand(3, 1, 8, 8), written(tmp_path / "r", lower={"program": "lower.pt2"})
    exported = torch.export.export(
        nn.Sequential(nn.Conv2d(1, 2, 3), Half()), (images,), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    torch.export.save(exported, folder / "lower.pt2")
    with pytest.raises(Untrusted, match=r"if you know who wrote it, give --trust torch\.export"):
        read_recording(redescribed(folder)).lower()
    lower = read_recording(folder, trust=["torch.export"]).lower()
    assert lower is not None
    assert lower.eval()(torch.rand(7, 1, 8, 8)).shape == (7, 2, 6, 6)
    data = (folder / "lower.pt2").read_bytes()
    for renamed in ("", "custom_obj_0"):
        with zipfile.ZipFile(io.BytesIO(data)) as whole, zipfile.ZipFile(folder / "lower.pt2", "w") as changed:
            for member in whole.namelist():
                text = whole.read(member)
                weight = "/weights/weight_" in member or "/weights/tensor_" in member
                if member.endswith("_config.json"):
                    text = text.replace(b'"use_pickle": false', b'"use_pickle":true')
                changed.writestr(member, pickle.dumps(Evil()) if weight else text)
            if renamed:
                changed.writestr(f"lower/data/constants/{renamed}", pickle.dumps(Evil()))
        with pytest.raises(DataError, match=r"not a program without pickled objects|cannot read the program"):
            read_recording(redescribed(folder), trust=["torch.export"]).lower()


BUILDERS: list[tuple[dict[str, Any], str]] = [
    ({"builder": "os:system"}, "names no segment"),
    ({"builder": "tests.recording.made"}, "names no segment"),
    ({"builder": "tests.recording.made:Absent"}, "cannot import the builder tests.recording.made:Absent"),
    ({"builder": "tests.recording.made:tensors"}, "must give a torch.nn.Module, got dict"),
    ({"builder": HALF, "options": {"share": 1}}, "cannot build"),
    ({"builder": HALF, "options": {"factor": nan}}, "is NaN or infinite"),
    ({"builder": HALF, "weights": "other.safetensors"}, "holds other weights than"),
]


@pytest.mark.parametrize(("lower", "sentence"), BUILDERS, ids=[sentence for _, sentence in BUILDERS])
def test_segments_that_cannot_be_built(lower: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    save_file({"weight": torch.zeros(1)}, folder / "other.safetensors")
    found = read_recording(written(folder, lower=lower), trust=["tests", "os"])
    with pytest.raises(PrivkitError, match=sentence) as error:
        found.lower()
    assert "\n" not in str(error.value)


def test_a_builder_with_weights_is_the_recorded_segment(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    save_file(Half(0.25).state_dict(), folder / "lower.safetensors")
    folder = written(folder, lower={"builder": HALF, "weights": "lower.safetensors"})
    lower = read_recording(folder, trust=["tests.recording"]).lower()
    assert lower is not None
    assert lower(torch.ones(1)).item() == 0.25


def refused(folder: Path, sentence: str) -> None:
    with pytest.raises(DataError) as error:
        read_recording(folder)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
