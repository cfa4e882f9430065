"""Saved states that are whole and still no states of this run: the stage starts over, or one sentence says so."""

import hashlib
import io
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from privkit.audit.run import AuditRun, run_audit
from privkit.domains.images.pictures import ImageFolder
from privkit.errors import DamagedFile, DataError
from privkit.files.arrays import read_arrays
from privkit.files.sealed import opened, sealed
from privkit.files.storage import load_state, save_state
from privkit.run.progress import Progress

pytestmark = pytest.mark.usefixtures("no_report")
QUICK: dict[str, Any] = {
    "defense": "none",
    "attack": "black_box:decoder=released",
    "dataset": "tiny_digits",
    "budget": "smoke:private=50,auxiliary=60,test=20,victims=20,attack_epochs=1",
    "training": "batch_size=10",
    "threads": 1,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A finished run of one cell; read it, do not change its folder."""
    return run_audit(out=tmp_path_factory.mktemp("trained") / "run", **QUICK)


class Notes(Progress):
    """Remembers what is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


STATES: dict[str, dict[str, Any]] = {
    "empty": {},
    "missing keys": {"edge": {}, "upper": {}},
    "other architecture": {
        "edge": {"other": torch.zeros(3)},
        "upper": {},
        "optimizers": [],
        "curve": [0.1],
        "network": {"other": torch.zeros(3)},
        "optimizer": {},
        "schedule": {},
    },
    "wrong kinds": {"edge": 1, "upper": "x", "optimizers": 3, "curve": 5, "network": None},
    "not a number": {"edge": {"a": torch.tensor([float("nan")])}},
    "too long a curve": {"edge": {}, "upper": {}, "optimizers": [], "curve": [0.1] * 100, "network": {}},
}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(state, id=name, marks=[] if name in ("empty", "other architecture") else pytest.mark.slow)
        for name, state in STATES.items()
    ],
)
def test_a_foreign_checkpoint_starts_its_stage_over(trained: AuditRun, tmp_path: Path, state: dict[str, Any]) -> None:
    """Of the training and of the attack; the result is that of a run without it."""
    run = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    (cell,), (model,) = ([*(run / kind).iterdir()] for kind in ("cells", "models"))
    for path in model.iterdir():
        if path.name != "made_of.json":
            path.unlink()
    (cell / "result.json").unlink()
    (run / "results.jsonl").unlink()
    save_state(model / "training.ckpt", state)
    save_state(cell / "attack.ckpt", state)
    notes = Notes()
    found = run_audit(out=run, progress=notes, **QUICK)
    assert [row.status for row in found.rows] == ["done"]
    assert found.rows[0].recovered == trained.rows[0].recovered
    assert sum("this stage starts over" in note for note in notes.notes) == 2


@pytest.mark.parametrize("text", [b"", b"\x80\x04.", b"PK\x03\x04", b"\x00" * 1000])
def test_a_checkpoint_of_no_format_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    header = sealed({"file": f"{tmp_path.name}/a.ckpt", "payload": hashlib.sha256(text).hexdigest()})
    (tmp_path / "a.ckpt").write_bytes(header.encode() + b"\n" + text)
    with pytest.raises(DamagedFile, match="cannot be read"):
        load_state(tmp_path / "a.ckpt")


def reseal(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a record as somebody would who knows its checksum."""
    fields = opened(path.read_bytes())
    change(fields)
    path.write_text(sealed(fields))


def other_weights(model: Path, data: bytes) -> None:
    """Exchange a model's weights, checksum and all."""
    (model / "client.safetensors").write_bytes(data)
    record = model / "trained.json"
    reseal(record, lambda fields: fields["files"].update({"client.safetensors": hashlib.sha256(data).hexdigest()}))


def a_safetensors(**tensors: torch.Tensor) -> bytes:
    from safetensors.torch import save

    return save(tensors)


def damaged_model(model: Path, how: str) -> None:
    """One way in which a model's folder is not what it should be."""
    record = model / "trained.json"
    client = model / "client.safetensors"
    from safetensors.torch import load, save

    if how == "empty":
        other_weights(model, b"")
    elif how == "truncated":
        other_weights(model, client.read_bytes()[:-10])
    elif how == "header beyond the file":
        other_weights(model, (2**40).to_bytes(8, "little") + b"{}")
    elif how == "other architecture":
        other_weights(model, a_safetensors(other=torch.zeros(2)))
    elif how in ("wrong shapes", "wrong dtype", "not a number"):
        change = {
            "wrong shapes": lambda x: torch.zeros(7),
            "wrong dtype": lambda x: x.to(torch.complex64),
            "not a number": lambda x: torch.full_like(x, float("nan")),
        }[how]
        other_weights(model, save({name: change(x) for name, x in load(client.read_bytes()).items()}))
    elif how == "a folder":
        client.unlink()
        client.mkdir()
    elif how == "missing":
        client.unlink()
    elif how == "no files listed":
        reseal(record, lambda fields: fields.pop("files"))
    elif how == "no costs":
        reseal(record, lambda fields: fields.pop("costs"))
    elif how == "costs of another kind":
        reseal(record, lambda fields: fields.update(costs={"bytes_up": "many"}))
    else:
        reseal(record, lambda fields: fields.update(accuracy=[1]))


WAYS = (
    "empty",
    "truncated",
    "header beyond the file",
    "other architecture",
    "wrong shapes",
    "wrong dtype",
    "not a number",
    "a folder",
    "missing",
    "no files listed",
    "no costs",
    "costs of another kind",
    "no accuracy",
)
QUICKLY = ("empty", "other architecture", "wrong dtype", "a folder", "no costs")


@pytest.mark.parametrize("how", [how if how in QUICKLY else pytest.param(how, marks=pytest.mark.slow) for how in WAYS])
def test_a_damaged_model_is_one_sentence(trained: AuditRun, tmp_path: Path, how: str) -> None:
    """None of these ways is a fault of privkit's own."""
    run = Path(shutil.copytree(trained.folder, tmp_path / "run"))
    (cell,), (model,) = ([*(run / kind).iterdir()] for kind in ("cells", "models"))
    (cell / "result.json").unlink()
    (run / "results.jsonl").unlink()
    damaged_model(model, how)
    (row,) = run_audit(out=run, **QUICK).rows
    assert row.status == "error"
    assert "trace in" not in row.reason
    assert "delete" in row.reason or f"move {model} away" in row.reason
    assert "\n" not in row.reason


def bomb(shape: tuple[int, ...], content: int) -> bytes:
    """An npz whose array claims a shape and has `content` zero bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("truth.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(content >> 20):
            member.write(bytes(1 << 20))
    return data.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        bomb((1, 10**6, 10**6, 3), 1 << 20),
        bomb((1, 1, 1, 1 << 20), 1 << 20)[:-40],
        b"",
        b"PK\x05\x06" + bytes(18),
        bomb((1 << 20,), 1 << 20),
    ],
    ids=["claims much", "truncated", "empty", "no members", "other shape"],
)
def test_arrays_that_are_not_what_they_say(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DamagedFile, match="delete"):
        read_arrays(tmp_path / "per_example.npz", data, {"truth": ("u", 4)})


def test_arrays_that_unpack_to_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.files.arrays._MOST_BYTES", 1 << 20)
    with pytest.raises(DamagedFile, match="unpacks to more than 1 MiB"):
        read_arrays(tmp_path / "per_example.npz", bomb((1, 1, 2, 1 << 20), 2 << 20), {"truth": ("u", 4)})


def test_a_picture_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    """A PNG of 20,000 × 20,000 pixels, whose few kilobytes say nothing but that."""

    def claims(side: int) -> None:
        chunks = [(b"IHDR", side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])), (b"IDAT", b""), (b"IEND", b"")]
        data = b"".join(
            len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
            for kind, content in chunks
        )
        (tmp_path / "a" / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)

    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / kind / "small.png")
    claims(1)
    pools = ImageFolder(size=32).open(tmp_path, download=False, train_images=3)
    for side in (20_000, 10_000):
        claims(side)
        with pytest.raises(DataError, match=rf"large\.png\) cannot be decoded \(Image size \({side**2} pixels\)"):
            pools.train.take(np.arange(3))
