"""Programs of a recording: those that compute are read, and none that could do more."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privkit.errors import DataError
from privkit.recording.files import Files
from privkit.recording.programs import program
from tests.recording.made import Half

Edit = Callable[[str, str], tuple[str, str]]
"""Name and text of a member of code -> those that stand in its place."""
FILE = "executed"
LIBRARY = torch.library.Library("tests_of_programs", "DEF")
LIBRARY.define("leak(Tensor images) -> Tensor")


class Reads(nn.Module):
    """Writes a file through an operator that maps one."""

    def forward(self, images: Tensor) -> Tensor:
        return images + torch.from_file("executed", True, 16).fill_(65.0).sum()


class Foreign(nn.Module):
    """Calls an operator of another library."""

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = torch.ops.tests_of_programs.leak(images)
        return made


class Writer:
    """A class whose method writes."""

    def __init__(self) -> None:
        self.place = 1

    def write(self, images: Tensor) -> Tensor:
        torch.save(images, "executed")
        return images


class Inner(nn.Module):
    """Writes in a method of an object."""

    def forward(self, images: Tensor) -> Tensor:
        return Writer().write(images)


class Indirect(nn.Module):
    """Writes in another task."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, images: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(self.inner, images))


class Restored(nn.Module):
    """Writes while it is read."""

    def forward(self, images: Tensor) -> Tensor:
        return images

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return 1, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.training = state[1]
        torch.save(torch.zeros(1), "executed")


def saved(module: nn.Module) -> bytes:
    """A program as torch writes it."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def edited(data: bytes, edit: Edit, more: tuple[str, ...] = ()) -> bytes:
    """A program with other members of code, and further ones."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            if name.endswith(".py"):
                new.writestr(*edit(name, old.read(name).decode()))
            else:
                new.writestr(name, old.read(name))
        for name in more:
            new.writestr(name, b"")
    return buffer.getvalue()


def two_faced(seen: bytes, hidden: bytes) -> bytes:
    """An archive in which zipfile finds the members of the first, and torch those of the second."""
    assert len(seen) < len(hidden)
    parts = []
    for data in (seen, hidden):
        start = int.from_bytes(data[-6:-2], "little")
        parts.append((data[:start], data[start:-22], data[-22:]))
    (members, directory, _), (others, its, end) = parts
    assert len(directory) == len(its)
    moved, at = bytearray(directory), 0
    while at < len(moved):
        place = int.from_bytes(moved[at + 42 : at + 46], "little") + len(others) - len(members)
        moved[at + 42 : at + 46] = place.to_bytes(4, "little")
        at += 46 + sum(int.from_bytes(moved[at + k : at + k + 2], "little") for k in (28, 30, 32))
    return others + its + members + bytes(moved) + end


def read(data: bytes, folder: Path) -> nn.Module:
    """The program of a file with these bytes."""
    (folder / "lower.pt").write_bytes(data)
    return program("lower.pt", Files(folder, {}, every=False), ())


def same(name: str, text: str) -> tuple[str, str]:
    return name, text


def replaced(old: str, new: str) -> Edit:
    """Code with another text."""
    return lambda name, text: (name, text.replace(old, new))


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "an operator that maps a file": (lambda: saved(Reads()), "uses aten::from_file"),
    "an operator of another library": (lambda: saved(Foreign()), "uses tests_of_programs::leak"),
    "a method of an object, in another task": (lambda: saved(Indirect()), "uses aten::save"),
    "a method that runs when it is read": (lambda: saved(Restored()), "has __setstate__"),
    "a name that is spelled in escapes": (
        lambda: edited(saved(Reads()), replaced("torch.from_file(", r'getattr(torch, "from\137file")(')),
        "uses aten::from_file",
    ),
    "an object in C++": (
        lambda: edited(saved(Half()), replaced("training : bool", "training : torch . classes.a.B")),
        r"has torch.classes",
    ),
    "code under a name that a scan overlooks": (
        lambda: edited(saved(Reads()), lambda name, text: (name.replace(".py", ".PY"), text)),
        "which is not part of a TorchScript program",
    ),
    "two names that torch takes for one": (
        lambda: edited(saved(Half()), same, ("archive/code/__TORCH__/tests/recording/made.py",)),
        "whose names differ in their case alone",
    ),
    "an old model": (
        lambda: edited(saved(Half()), same, ("archive/model.json",)),
        "which is not part of a TorchScript program",
    ),
    "a second folder": (
        lambda: edited(saved(Half()), same, ("other/code/a.py",)),
        "which is not part of a TorchScript program",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_could_do_more_than_compute_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, sentence = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    data = made()
    (tmp_path / FILE).unlink(missing_ok=True)
    with pytest.raises(DataError) as refused:
        read(data, tmp_path)
    assert sentence in str(refused.value)
    assert not (tmp_path / FILE).exists()


def test_torch_reads_the_members_that_were_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harmless = edited(saved(Reads()), lambda name, text: (name, _computes(text)))
    data = two_faced(harmless, edited(saved(Reads()), replaced("return", "#" * 99 + "\n    return")))
    torch.jit.load(io.BytesIO(data))(torch.zeros(1))
    assert (tmp_path / FILE).exists(), "torch sees other members than zipfile in this file"
    (tmp_path / FILE).unlink()
    assert read(data, tmp_path)(torch.ones(1)).item() == 2
    assert not (tmp_path / FILE).exists()


def _computes(text: str) -> str:
    """The code with a body that only doubles."""
    before, found, _ = text.partition("Tensor:\n")
    return f"{before}{found}    return torch.add(images, images)\n"


class Mixed(nn.Module):
    """Layers of ordinary networks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.rows = nn.GRU(8, 8, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.block(self.stem(images).flatten(2).transpose(1, 2))
        made: Tensor = self.rows(nn.functional.dropout(tokens, 0.5, self.training))[0]
        return made


@pytest.mark.parametrize("traced", [False, True])
def test_ordinary_layers_are_read_and_compute_the_same(traced: bool, tmp_path: Path) -> None:
    images, module = torch.rand(3, 1, 16, 16), Mixed().eval()
    if traced:
        buffer = io.BytesIO()
        torch.jit.save(torch.jit.trace(module, images, check_trace=False), buffer)
    made = read(buffer.getvalue() if traced else saved(module), tmp_path)
    assert torch.allclose(made(images[:2]), module(images[:2]), atol=1e-5)
