"""A recording of a stranger's: nothing in its folder runs, makes privkit wait or take memory, or changes unseen."""

import json
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from privkit.accountants.spec.records import to_json
from privkit.audit.declared import declared_by
from privkit.audit.run import plan_audit
from privkit.cli.app import app
from privkit.errors import DataError, PrivkitError, UsageError
from privkit.files.import_path import Untrusted
from privkit.recording import files, read
from privkit.recording.read import read_recording
from privkit.settings.recorded import sufficient_attacks
from privkit.settings.resolve import read_toml, resolve
from tests.recording.declarations import MECHANISM
from tests.recording.edited import redescribed
from tests.recording.made import DESCRIBED, Half, tensors, written
from tests.recording.strangers import CLIENTS, EXPORTED, LOADERS, end, hostile, within

HALF = {"builder": "tests.recording.made:Half"}


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that whatever runs would make; the current folder is the stranger's, with modules and a pickle."""
    marker, home = tmp_path / "executed", tmp_path / "theirs"
    home.mkdir()
    monkeypatch.chdir(home)
    touch = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
    for name in ("hubconf.py", "canary_model.py", "canary_part.py"):
        (home / name).write_text(f"{touch}\ndef lower(): return 1\n")
    torch.save({"a": _Touches(marker)}, home / "weights.bin")
    yield marker
    assert not marker.exists(), "something of the recording was executed"


class _Touches:
    """A pickle that leaves a file if it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("lower", LOADERS, ids=[f"{one['builder']}-{number}" for number, one in enumerate(LOADERS)])
def test_no_builder_runs_that_the_command_does_not_name(lower: dict[str, Any], canary: Path) -> None:
    folder = written(Path("recording"), lower=lower)
    with pytest.raises(Untrusted, match="a recording must not decide which code runs"):
        read_recording(folder).lower()
    with pytest.raises(Untrusted):
        declared_by(read_recording(folder))


def test_neither_does_a_defense(canary: Path) -> None:
    folder = written(Path("recording"), lower={"builder": CLIENTS, "options": EXPORTED}, defense="canary_part:lower")
    with pytest.raises(Untrusted, match="--trust canary_part"):
        sufficient_attacks(read_recording(folder))
    with pytest.raises(Untrusted, match="--trust canary_part"):
        resolve({"recorded": str(folder), "attack": "auto"})


def test_a_trusted_module_brings_what_it_defines_and_not_what_it_imports(tmp_path: Path) -> None:
    assert isinstance(read_recording(written(tmp_path / "a", lower=HALF), trust=["tests.recording"]).lower(), Half)
    for number, trust in enumerate((["test"], ["tests.recording.mad"], ["torch"])):
        with pytest.raises(Untrusted):
            read_recording(written(tmp_path / f"b{number}", lower=HALF), trust=trust)
    borrowed = {"builder": "tests.recording.made:save_file"}
    with pytest.raises(Untrusted, match=r"which safetensors\.torch defines"):
        read_recording(written(tmp_path / "c", lower=borrowed), trust=["tests"]).lower()


def test_no_file_widens_what_is_trusted(tmp_path: Path, canary: Path) -> None:
    folder = written(tmp_path / "r", lower=HALF)
    (tmp_path / "a.toml").write_text('recorded = "r"\ntrust = ["tests"]\n')
    with pytest.raises(UsageError, match="a file must not decide which code runs here"):
        read_toml(tmp_path / "a.toml")
    given = {"recorded": str(folder), "attack": "mid_grey"}
    with pytest.raises(Untrusted):
        resolve(given)
    config = resolve({**given, "trust": "tests"})
    assert config.recording is not None
    assert config.recording.trust == ("tests",)
    assert "trust" not in config.settings
    with pytest.raises(UsageError, match="none is named; add --recorded"):
        resolve({"trust": ["tests"]})
    with pytest.raises(UsageError, match="the name of a module of yours"):
        resolve({**given, "trust": ["os"]})
    command = ["audit", "--recorded", str(folder), "--attack", "mid_grey", "--dry-run"]
    assert isinstance(CliRunner().invoke(app, command).exception, Untrusted)
    assert CliRunner().invoke(app, [*command, "--trust", "tests"]).exit_code == 0


def test_a_run_folder_does_not_keep_what_is_trusted(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", lower=HALF)
    given = {"recorded": str(folder), "attack": "mid_grey", "budget": "smoke", "threads": 1, "trust": ["tests"]}
    run = plan_audit(resolve(given), tmp_path / "run")
    assert "trust" not in json.loads((run / "manifest.json").read_text())["settings"]
    kept = json.loads((run / "manifest.json").read_text())["settings"]
    with pytest.raises(Untrusted):
        resolve(kept)
    config = resolve({**kept, "trust": ["tests"]})
    assert config.recording is not None
    assert config.recording.trust == ("tests",)


@pytest.mark.parametrize("name", ["recording.json", "tensors.safetensors", "lower.pt"])
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "r", lower={"program": "lower.pt"})
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with within(10), pytest.raises(DataError, match="it is a pipe, a socket or a device"):
        read_recording(folder)


def zeros(path: Path, *shape: int) -> None:
    """An npz file of zeros that says so of its one array."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("own.images.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
        member.write(bytes(4096))


def test_an_archive_is_measured_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "r", tensors="t.npz")
    zeros(folder / "t.npz", 10**12)
    with pytest.raises(DataError, match="says that it is larger than it is"):
        read_recording(redescribed(folder))
    monkeypatch.setattr(files, "_MOST_UNPACKED", 4000)
    zeros(folder / "t.npz", 1024)
    with pytest.raises(DataError, match="it unpacks to more than"):
        read_recording(redescribed(folder))
    monkeypatch.setattr(files, "_MOST_BYTES", 100)
    with pytest.raises(DataError, match="it is larger than"):
        read_recording(folder)


TOO_LARGE: list[tuple[dict[str, Any], str]] = [
    ({"rounds": 1_000_000_000}, "tensor round_2.smashed is missing; rounds=1000000000 need one each"),
    ({"clients": 1_000_000_000}, "clients: "),
    ({"clients": 100_000, "batch_size": 1_000_000_000}, "the images of a round have more than"),
    ({"image_shape": [1_000_000] * 3}, "the images of a round have more than"),
    ({"mixed": 1_000_000_000}, "mixed: "),
    ({"mixed": 100_000, "batch_size": 100_000}, "12 rows of 100000 images (mixed) are more than"),
    ({"classes": 10**12}, "classes: "),
    ({"name": "a\0"}, "name: a name has no control characters"),
    ({"tensors": "a\0"}, "tensors: a name has no control characters"),
    ({"name": "\ud800"}, "is not JSON"),
]


@pytest.mark.parametrize(("described", "sentence"), TOO_LARGE, ids=[str(number) for number in range(len(TOO_LARGE))])
def test_numbers_and_names_beyond_the_limits(
    described: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_MOST_SEATS", 1_000_000)
    changed: dict[str, Any] = {
        "round_0.smashed": torch.rand(6, 4),
        "round_1.smashed": torch.rand(6, 4),
        "truth.images": None,
    }
    with within(5), pytest.raises(DataError) as error:
        read_recording(written(tmp_path / "r", changed, **described))
    assert sentence in str(error.value)


def test_labels_of_any_type_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    for number, kind in enumerate((torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.bool)):
        with pytest.raises(DataError, match=r"is torch\.\w+; give floats, or whole numbers"):
            read_recording(written(tmp_path / str(number), {"truth.labels": torch.zeros(12, dtype=kind)}))
    far = torch.full((12,), 2**62)
    with pytest.raises(DataError, match=r"truth\.labels must lie in 0\.\.99999"):
        read_recording(written(tmp_path / "far", {"truth.labels": far}))
    large: dict[str, Any] = {name: value.double() * 1e300 for name, value in tensors().items() if "smashed" in name}
    with pytest.raises(DataError, match="holds NaN or infinity, as float32"):
        read_recording(written(tmp_path / "large", large))


def test_options_of_privkit_s_own_segments_end(tmp_path: Path) -> None:
    deep = {**EXPORTED, "model": {"name": "vit_micro", "depth": 1_000_000_000, "cut": "block1"}}
    with within(60), pytest.raises(PrivkitError):
        read_recording(written(tmp_path / "r", lower={"builder": CLIENTS, "options": deep})).lower()


class Writes(torch.nn.Module):
    """TorchScript that leaves a file."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        torch.save(images, "executed.pt")
        return images


def test_a_program_that_touches_files_is_refused(canary: Path) -> None:
    folder = written(Path("r"), lower={"program": "lower.pt"})
    torch.jit.save(torch.jit.script(Writes()), folder / "lower.pt")
    with pytest.raises(DataError, match="uses aten::save, by which a program leaves its tensors"):
        read_recording(redescribed(folder)).lower()


def test_a_recording_is_sealed_and_an_old_one_says_that_it_is_not(tmp_path: Path) -> None:
    folder = written(tmp_path / "r")
    path = folder / "recording.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "batch_size": 7}))
    with pytest.raises(DataError, match="its checksum does not match; restore it"):
        read_recording(folder)
    path.write_text(json.dumps(DESCRIBED))
    with pytest.raises(DataError, match="it has no checksum"):
        read_recording(folder)
    path.write_text(json.dumps({**DESCRIBED, "schema_version": 1}))
    assert read_recording(folder).description.schema_version == 1
    path.write_text(json.dumps({**fields, "schema_version": 1}))
    with pytest.raises(DataError, match="its checksum does not match"):
        read_recording(folder)
    redescribed(folder, schema_version=2, lower={"program": "lower.pt"})
    (folder / "lower.pt").write_bytes(b"late")
    with pytest.raises(DataError, match=r"lower\.pt is not among the files of recording\.json"):
        read_recording(folder)
    redescribed(folder)
    (folder / "lower.pt").write_bytes(b"later")
    with pytest.raises(DataError, match=r"lower\.pt is not what was recorded"):
        read_recording(folder)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_read_unseen(count: int, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    written(folder, lower={**HALF, "weights": "lower.npz"}, mechanism=to_json(MECHANISM), notes=["of May"])
    np.savez(folder / "lower.npz", factor=np.float32(0.5))
    whole, draws = read_recording(redescribed(folder), trust=["tests"]), random.Random(0)
    paths = [folder / name for name in ("recording.json", "tensors.safetensors", "lower.npz")]
    for _ in range(count):
        path = draws.choice(paths)
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        path.write_bytes(bytes(flipped))
        try:
            found = read_recording(folder, trust=["tests"])
        except PrivkitError:
            pass
        else:  # a space between two fields, say
            assert path.name == "recording.json"
            assert found.description == whole.description
        path.write_bytes(data)


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_hostile_recordings_end_in_a_sentence(count: int, canary: Path) -> None:
    """Each is refused, or harmless: none runs a canary, hangs, or ends in a traceback."""
    draws, ends = random.Random(1), []
    for number in range(count):
        folder = Path(f"r{number}")
        hostile(folder, draws)
        with within(20):
            ends.append(end(folder))
        assert not canary.exists(), ends[-1]
    assert sum(1 for said in ends if said) > count / 2
    assert not any("\n" in said for said in ends)
