"""Images and labels as users bring them: scaled by their own mode, refused in a sentence, or warned about."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from privkit.audit.run import run_audit
from privkit.domains.base import Batch, Pools
from privkit.domains.images.arrays import ArrayPool
from privkit.domains.images.domain import clipping_warning
from privkit.domains.images.pictures import ImageFolder
from privkit.domains.images.vision import Mnist
from privkit.domains.splits import split
from privkit.errors import DataError


def opened(root: Path) -> Batch:
    """Every picture of a folder, 8 pixels per side."""
    pool = ImageFolder(size=8).open(root, download=False, train_images=1).train
    return pool.take(np.arange(len(pool)))


def folder(root: Path, *arrays: NDArray[np.generic], ending: str = "png") -> Path:
    (root / "lung").mkdir(parents=True)
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(root / "lung" / f"{number}.{ending}")
    return root


@pytest.mark.parametrize(("kind", "ending"), [(np.uint16, "png"), (np.uint16, "tiff"), (np.int32, "tiff")])
def test_16_bit_grey_keeps_its_scale(kind: type[np.generic], ending: str, tmp_path: Path) -> None:
    """An X-ray: values to 65535, of which nearly all lie above 255 and were white."""
    values = np.random.default_rng(0).integers(0, 65_536, (8, 8))
    found = opened(folder(tmp_path, values.astype(kind), ending=ending))
    expected = torch.from_numpy(values / 65_535).float().expand(1, 3, 8, 8)
    torch.testing.assert_close(found.x, expected, atol=1e-6, rtol=0)
    assert (found.x == 1).float().mean() < 0.05
    assert clipping_warning(found.x) == ""


def test_floats_in_a_picture_are_taken_as_they_are(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((8, 8), dtype=np.float32)
    found = opened(folder(tmp_path, values, ending="tiff"))
    torch.testing.assert_close(found.x[0, 0], torch.from_numpy(values))


@pytest.mark.parametrize("wrong", [np.float32(255), np.float32("nan"), np.int32(70_000), np.int32(-1)])
def test_pictures_without_a_scale_are_refused(wrong: np.generic, tmp_path: Path) -> None:
    values = np.full((8, 8), wrong)
    with pytest.raises(DataError, match=r"0\.tiff.*save it as 8-bit or 16-bit PNG"):
        opened(folder(tmp_path, values, ending="tiff"))


def test_resampled_16_bit_grey_stays_in_range(tmp_path: Path) -> None:
    edges = (np.indices((12, 12))[0] < 6).astype(np.uint16) * 65_535
    found = opened(folder(tmp_path, edges))
    assert (found.x.min(), found.x.max()) == (0, 1)


def test_saturated_and_dark_pictures_are_warned_about(tmp_path: Path) -> None:
    white = np.full((8, 8), 65_535, dtype=np.uint16)
    dark = np.random.default_rng(0).integers(0, 4096, (8, 8)).astype(np.uint16)
    for name, values, hint in (("white", white, "pure white"), ("dark", dark, "12-bit values in 16-bit files")):
        found = opened(folder(tmp_path / name, values))
        assert hint in clipping_warning(found.x)


@pytest.mark.usefixtures("no_report")
def test_a_warning_stands_in_every_row(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(100):
            picture = np.full((8, 8), number, np.uint8) if number % 9 == 0 else np.full((8, 8), 255, np.uint8)
            Image.fromarray(picture).save(tmp_path / "data" / name / f"{number}.png")
    run = run_audit(
        defense="none",
        attack="mean_image",
        dataset="image_folder:size=8",
        data_root=str(tmp_path / "data"),
        training="batch_size=10",
        budget="smoke",
        threads=1,
        out=tmp_path / "run",
    )
    assert "pure white" in run.rows[0].notes[0]


X = torch.zeros(4, 1, 8, 8)
WRONG_BATCHES = [
    (255 * torch.rand(4, 1, 8, 8), torch.arange(4), "divide them by 255"),
    (torch.rand(4, 1, 8, 8) - 1, torch.arange(4), "rescale them"),
    (X / 0, torch.arange(4), "got NaN; replace or leave out those pixels"),
    (X.permute(0, 2, 3, 1), torch.arange(4), r"use x.permute\(0, 3, 1, 2\)"),
    (X.byte(), torch.arange(4), "float32"),
    (X, torch.tensor([0, 0.5, 1, 1]), "whole numbers from 0, got 0.5"),
    (X, torch.tensor([0, -1, 1, 1]), "whole numbers from 0, got -1"),
    (X, 2 * torch.eye(4), "one class number per record"),
    (X, torch.arange(3), "need as many"),
]


@pytest.mark.parametrize(("x", "y", "hint"), WRONG_BATCHES)
def test_a_users_batch_is_refused_in_a_sentence(x: torch.Tensor, y: torch.Tensor, hint: str) -> None:
    with pytest.raises(DataError, match=hint):
        Batch(x=x, y=y, ids=torch.arange(4))


LABELS = np.arange(4)
WRONG_ARRAYS = [
    (255 * np.random.default_rng(0).random((4, 8, 8)), LABELS, "divide them by 255"),
    (np.full((4, 8, 8), np.nan), LABELS, "got NaN"),
    (np.zeros((4, 3, 8, 8), np.uint8), LABELS, "images.transpose"),
    (np.zeros((4, 8), np.uint8), LABELS, r"\[N, H, W\]"),
    (np.zeros((4, 8, 8), np.int64), LABELS, "no known scale"),
    (np.zeros((4, 8, 8), np.uint8), LABELS + 0.5, "whole numbers from 0, got 0.5"),
]


@pytest.mark.parametrize(("images", "labels", "hint"), WRONG_ARRAYS)
def test_a_users_arrays_are_refused_in_a_sentence(
    images: NDArray[np.generic], labels: NDArray[np.int64], hint: str
) -> None:
    with pytest.raises(DataError, match=hint):
        ArrayPool(images=images, labels=labels).take(np.arange(4))


def test_arrays_of_16_bits_are_scaled_and_unknown_classes_refused() -> None:
    pool = ArrayPool(images=np.full((40, 8, 8), 65_535, np.uint16), labels=np.arange(40) % 4)
    assert pool.take(np.arange(40)).x.max() == 1
    with pytest.raises(DataError, match="label 3 is none of the 3 classes 0 to 2"):
        split(Pools(train=pool, test=None, classes=3), private=10, auxiliary=10, test=10, seed=0)


def test_mnist_reads_the_idx_files_that_were_checked(tmp_path: Path) -> None:
    """Old torchvision versions left `processed/*.pt`, which torchvision still reads first."""
    raw, processed = tmp_path / "MNIST" / "raw", tmp_path / "MNIST" / "processed"
    raw.mkdir(parents=True)
    processed.mkdir()
    for part, count in (("train", 12), ("t10k", 6)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
            (raw / f"{part}-{kind}-ubyte").write_bytes(header + np.full(shape, 5, np.uint8).tobytes())
    for name in ("training.pt", "test.pt"):
        torch.save((torch.zeros(3, 28, 28, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)), processed / name)
    pool = Mnist().open(tmp_path, download=False, train_images=1).train
    assert len(pool) == 12
    assert pool.take(np.arange(12)).y.tolist() == [5] * 12
