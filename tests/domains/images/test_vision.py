"""Loaders of MNIST and CIFAR, and what all loaders of official datasets share."""

import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision import datasets

from privkit.domains.base import TEST_ID_OFFSET, DatasetSpec
from privkit.domains.images.pictures import CelebA, ImageFolder, ImageNet, LfwPeople, Pcam
from privkit.domains.images.vision import Cifar10, Cifar100, FashionMnist, Mnist
from tests.domains.images.official import Bytes, complaint, cut, everything, flip_byte, md5, noise, open_, pixels

OFFICIAL: list[DatasetSpec] = [
    Mnist(),
    FashionMnist(),
    Cifar10(),
    Cifar100(),
    CelebA(),
    LfwPeople(),
    Pcam(),
    ImageNet(),
]


# --- All of them: no root, nothing there, no network


@pytest.mark.parametrize("spec", [*OFFICIAL, ImageFolder()], ids=lambda spec: spec.name)
def test_no_data_root(spec: DatasetSpec, tmp_path: Path) -> None:
    message = complaint(lambda: open_(spec, None))
    assert spec.name in message
    assert "--data-root" in message
    missing = tmp_path / "nowhere"
    message = complaint(lambda: open_(spec, missing))
    assert str(missing) in message
    assert "create it" in message


@pytest.mark.parametrize("spec", OFFICIAL, ids=lambda spec: spec.name)
def test_missing_files_are_named_without_touching_the_network(
    spec: DatasetSpec, tmp_path: Path, network: list[str]
) -> None:
    message = complaint(lambda: open_(spec, tmp_path))
    named = re.search(r"(\S+) is missing; (put|add)", message)
    assert named, message
    file = Path(named[1])
    assert file.is_relative_to(tmp_path)
    assert file.suffix in ("", ".txt", ".h5", ".tar")  # a file of the dataset, not merely the root
    assert file != tmp_path
    assert network == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", [Mnist(), FashionMnist(), Cifar10(), Cifar100()], ids=lambda spec: spec.name)
def test_failed_download_is_one_sentence(spec: DatasetSpec, tmp_path: Path, network: list[str]) -> None:
    message = complaint(lambda: open_(spec, tmp_path, download=True))
    assert "by hand" in message
    assert network  # so the tests above would have noticed an attempt


@pytest.mark.parametrize(("spec", "package"), [(Pcam(), "h5py"), (CelebA(), "gdown")])
def test_missing_optional_package_is_named(
    spec: DatasetSpec, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes its import fail
    assert complaint(lambda: open_(spec, tmp_path, download=True)).endswith(f"pip install {package}")


# --- MNIST and Fashion-MNIST


def write_idx(path: Path, values: Bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.tobytes())


def write_mnist(root: Path, name: str = "MNIST") -> Path:
    """12 training and 6 test images; the folder that holds them."""
    raw = root / name / "raw"
    for part, count in (("train", 12), ("t10k", 6)):
        write_idx(raw / f"{part}-images-idx3-ubyte", noise(count, 28, 28, seed=count))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)
    return raw


@pytest.mark.parametrize(("spec", "name"), [(Mnist(), "MNIST"), (FashionMnist(), "FashionMNIST")])
@pytest.mark.parametrize("download", [False, True])  # a download finds the files there and fetches nothing
def test_mnist(spec: DatasetSpec, name: str, download: bool, tmp_path: Path, network: list[str]) -> None:
    write_mnist(tmp_path, name)
    pools = open_(spec, tmp_path, download=download)
    assert pools.classes == 10
    for pool, count, first_id in ((pools.train, 12, 0), (pools.test, 6, TEST_ID_OFFSET)):
        batch = everything(pool)
        assert torch.equal(batch.x, pixels(noise(count, 28, 28, seed=count)[..., None]))
        assert torch.equal(batch.y, torch.arange(count) % 10)
        assert torch.equal(batch.ids, torch.arange(count) + first_id)
    assert network == []


FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


@pytest.mark.parametrize("file", FILES)
def test_damaged_idx_file_is_named(file: str, tmp_path: Path) -> None:
    path = write_mnist(tmp_path) / file
    intact = path.read_bytes()
    damages = {
        "empty": b"",
        "header cut": intact[:6],
        "cut": intact[:-1],
        "longer": intact + b"\0",
        "other type of numbers": intact[:2] + b"\x0d" + intact[3:],
        "not idx": b"<html>404</html>" * 100,
    }
    for damage, content in damages.items():
        path.write_bytes(content)
        for download in (False, True):  # torchvision does not fetch a file again that is there
            message = complaint(lambda download=download: open_(Mnist(), tmp_path, download=download))  # type: ignore[misc]
            assert f"{path} is damaged" in message, damage
            assert "delete it" in message
    path.unlink()
    assert f"{path} is missing" in complaint(lambda: open_(Mnist(), tmp_path))


@pytest.mark.parametrize(
    ("labels", "reason"), [(np.arange(11), "12 images but 11 labels"), (np.full(12, 10), "0 to 9 are allowed")]
)
def test_labels_that_do_not_fit_are_refused(labels: NDArray[np.int64], reason: str, tmp_path: Path) -> None:
    raw = write_mnist(tmp_path)
    write_idx(raw / "train-labels-idx1-ubyte", labels.astype(np.uint8))
    message = complaint(lambda: open_(Mnist(), tmp_path))
    assert str(raw) in message
    assert reason in message


# --- CIFAR


def write_pickle(path: Path, content: dict[str, Any]) -> list[str]:
    """Write a file as Python 2 did; its name and MD5, as in torchvision's lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))
    return [path.name, md5(path)]


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five batches of 8 images and a test batch; torchvision learns their MD5s."""
    folder = root / "cifar-10-batches-py"

    def batch(name: str, seed: int) -> list[str]:
        labels = [(seed + i) % 10 for i in range(8)]
        return write_pickle(folder / name, {"batch_label": name, "labels": labels, "data": noise(8, 3072, seed=seed)})

    monkeypatch.setattr(datasets.CIFAR10, "train_list", [batch(f"data_batch_{i}", i) for i in range(1, 6)])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [batch("test_batch", 0)])
    names, sums = write_pickle(folder / "batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": names, "key": "label_names", "md5": sums})
    return folder


def write_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = root / "cifar-100-python"

    def part(name: str, count: int) -> list[str]:
        labels = [(99 - i) % 100 for i in range(count)]
        coarse = [0] * count
        data = noise(count, 3072, seed=count)
        return write_pickle(folder / name, {"fine_labels": labels, "coarse_labels": coarse, "data": data})

    monkeypatch.setattr(datasets.CIFAR100, "train_list", [part("train", 20)])
    monkeypatch.setattr(datasets.CIFAR100, "test_list", [part("test", 10)])
    names, sums = write_pickle(folder / "meta", {"fine_label_names": [f"class {i}" for i in range(100)]})
    monkeypatch.setattr(datasets.CIFAR100, "meta", {"filename": names, "key": "fine_label_names", "md5": sums})
    return folder


def planes(count: int, seed: int) -> torch.Tensor:
    """What a row of a CIFAR file means: a red, a green and a blue plane."""
    return torch.from_numpy(
        noise(count, 3072, seed=seed).reshape(count, 3, 32, 32).astype(np.float32) / np.float32(255)
    )


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: list[str]) -> None:
    write_cifar10(tmp_path, monkeypatch)
    pools = open_(Cifar10(batches=5), tmp_path, download=True)  # all there, so nothing is fetched
    train, test = everything(pools.train), everything(pools.test)
    assert pools.classes == 10
    assert torch.equal(train.x, torch.cat([planes(8, seed) for seed in range(1, 6)]))
    assert train.y[:9].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 2]
    assert torch.equal(train.ids, torch.arange(40))
    assert torch.equal(test.x, planes(8, 0))
    assert torch.equal(test.ids, torch.arange(8) + TEST_ID_OFFSET)
    assert network == []


def test_declared_subset_needs_no_other_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cifar10(tmp_path, monkeypatch)
    for i in (3, 4, 5):
        (folder / f"data_batch_{i}").unlink()
    pools = open_(Cifar10(batches=2), tmp_path, train_images=50_000)
    assert torch.equal(everything(pools.train).x, torch.cat([planes(8, 1), planes(8, 2)]))
    message = complaint(lambda: open_(Cifar10(batches=3), tmp_path))
    assert f"{folder / 'data_batch_3'} is missing" in message
    assert "cifar10:batches=N" in message


@pytest.mark.parametrize(("images", "batches"), [(1, 1), (10_000, 1), (10_001, 2), (45_000, 5), (90_000, 5)])
def test_no_more_batches_are_opened_than_needed(
    images: int, batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cifar10(tmp_path, monkeypatch)
    for i in range(batches + 1, 6):
        (folder / f"data_batch_{i}").unlink()
    assert len(open_(Cifar10(), tmp_path, images).train) == 8 * batches
    (folder / f"data_batch_{batches}").unlink()
    assert f"data_batch_{batches} is missing" in complaint(lambda: open_(Cifar10(), tmp_path, images))


@pytest.mark.parametrize("batches", [0, 6, -1])
def test_number_of_batches_is_checked(batches: int) -> None:
    with pytest.raises(ValueError, match=">= 1 and <= 5"):
        Cifar10(batches=batches)


def test_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path, monkeypatch)
    pools = open_(Cifar100(), tmp_path)
    train, test = everything(pools.train), everything(pools.test)
    assert pools.classes == 100
    assert torch.equal(train.x, planes(20, 20))
    assert torch.equal(train.y, 99 - torch.arange(20))  # the fine labels
    assert torch.equal(test.x, planes(10, 10))
    assert torch.equal(test.ids, torch.arange(10) + TEST_ID_OFFSET)


@pytest.mark.parametrize("file", ["data_batch_1", "test_batch", "batches.meta"])
def test_damaged_cifar10_file_is_named(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_cifar10(tmp_path, monkeypatch) / file
    for damage in (flip_byte, cut):
        damage(path)
        message = complaint(lambda: open_(Cifar10(), tmp_path))
        assert f"{path} is damaged" in message
        assert "MD5" in message


@pytest.mark.parametrize("file", ["train", "test", "meta"])
def test_damaged_cifar100_file_is_named(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_cifar100(tmp_path, monkeypatch) / file
    flip_byte(path)
    message = complaint(lambda: open_(Cifar100(), tmp_path))
    assert f"{path} is damaged" in message
    assert "MD5" in message
    path.unlink()
    assert f"{path} is missing" in complaint(lambda: open_(Cifar100(), tmp_path))


@pytest.mark.slow
def test_official_cifar10(shared: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, shared / "data/unpack.py", tmp_path, "cifar10"], check=True)
    pools = open_(Cifar10(), tmp_path, train_images=30_000)
    assert pools.test is not None
    assert (len(pools.train), len(pools.test)) == (30_000, 10_000)
    train = everything(pools.train)
    mean = torch.tensor([0.4914, 0.4822, 0.4465])  # of all 50,000, as published
    torch.testing.assert_close(train.x.mean((0, 2, 3)), mean, atol=0.005, rtol=0)
    assert torch.bincount(train.y).tolist() == pytest.approx([3000] * 10, rel=0.05)
    assert torch.bincount(everything(pools.test).y).tolist() == [1000] * 10
    for spec, images in ((Cifar10(batches=4), 1), (Cifar10(), 30_001)):
        message = complaint(lambda spec=spec, images=images: open_(spec, tmp_path, images))  # type: ignore[misc]
        assert "data_batch_4 is missing" in message
