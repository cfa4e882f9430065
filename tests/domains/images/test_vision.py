"""The loaders of official datasets, on small files of the official formats that the tests write."""

import hashlib
import io
import pickle
import re
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets

from privkit.domains.base import TEST_ID_OFFSET, Batch, DatasetSpec, Pool, Pools
from privkit.domains.images.pictures import CelebA, ImageFolder, LfwPeople, Pcam
from privkit.domains.images.vision import Cifar10, Cifar100, FashionMnist, Mnist
from privkit.domains.splits import split
from privkit.errors import DataError

OFFICIAL: list[DatasetSpec] = [Mnist(), FashionMnist(), Cifar10(), Cifar100(), CelebA(), LfwPeople(), Pcam()]
Bytes = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every attempt to reach the network; none gets there."""
    attempts: list[str] = []

    def refuse(*arguments: object, **_: object) -> NoReturn:
        attempts.append(str(arguments[0]))
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts


def open_(spec: DatasetSpec, root: Path | None, train_images: int = 1, download: bool = False) -> Pools:
    return spec.open(root, download=download, train_images=train_images)


def everything(pool: Pool | None) -> Batch:
    assert pool is not None
    return pool.take(np.arange(len(pool)))


def complaint(action: Callable[[], object]) -> str:
    """The message of the DataError that this raises, which must be one sentence."""
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert not re.search(r"\n|[.!?] |[.!?]$", message), message
    return message


def noise(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pixels(images: Bytes) -> torch.Tensor:
    """NHWC bytes as a batch holds them."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path, keep: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


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
    if isinstance(spec, Pcam):
        pytest.importorskip("h5py")
    message = complaint(lambda: open_(spec, tmp_path))
    named = re.search(r"(\S+) is missing; (put|add)", message)
    assert named, message
    file = Path(named[1])
    assert file.is_relative_to(tmp_path)
    assert file.suffix in ("", ".txt", ".h5")  # a file of the dataset, not merely the root
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


@pytest.mark.parametrize("kind", [CelebA, LfwPeople, Pcam, ImageFolder])
@pytest.mark.parametrize("size", [0, -1])
def test_pictures_have_at_least_one_pixel(kind: Callable[..., DatasetSpec], size: int) -> None:
    with pytest.raises(ValueError, match="size"):
        kind(size=size)


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
    with pytest.raises(ValueError, match="1 to 5"):
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


# --- Pictures: CelebA, LFW, PCam and the user's own


def shade(index: int) -> int:
    """Picture `index` is of this grey, so that it can be recognized after JPEG and resampling."""
    return 20 * index + 10


def write_picture(path: Path, index: int, size: tuple[int, int]) -> None:
    """A grey square in the middle of white margins, which centre cropping must remove."""
    width, height = size
    side = min(size)
    picture = Image.new("RGB", size, "white")
    left, top = (width - side) // 2, (height - side) // 2
    picture.paste((shade(index),) * 3, (left, top, left + side, top + side))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


def assert_shades(batch: Batch, indices: list[int], size: int) -> None:
    """These pictures, without their margins; JPEG blurs the edge by a few values."""
    expected = torch.tensor([shade(index) / 255 for index in indices]).reshape(-1, 1, 1, 1)
    torch.testing.assert_close(batch.x, expected.expand(-1, 3, size, size), atol=0.08, rtol=0)
    assert batch.ids.dtype == torch.int64


CELEBA_ATTRIBUTES = ["5_o_Clock_Shadow", "Male", "Smiling", "Young"]
CELEBA_PARTS = [0, 0, 1, 0, 2, 0, 2, 2]  # of pictures 1 to 8: 0 training, 1 validation, 2 test


def celeba_labels(index: int) -> list[int]:
    return [index % 2, index // 2 % 2, index // 4 % 2, 1]


def write_celeba(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight faces of 178×218 and the five lists; torchvision learns their MD5s."""
    folder = root / "celeba"
    names = [f"{i + 1:06d}.jpg" for i in range(8)]
    for i, name in enumerate(names):
        write_picture(folder / "img_align_celeba" / name, i, (178, 218))

    def table(file: str, header: list[str], rows: list[str]) -> None:
        (folder / file).write_text("\n".join([*header, *rows]) + "\n")

    signs = [" ".join(f"{2 * label - 1:2d}" for label in celeba_labels(i)) for i in range(8)]
    table("list_eval_partition.txt", [], [f"{n} {part}" for n, part in zip(names, CELEBA_PARTS, strict=True)])
    table("identity_CelebA.txt", [], [f"{n} {2880 + i}" for i, n in enumerate(names)])
    boxes = ["8", "image_id x_1 y_1 width height"]
    table("list_bbox_celeba.txt", boxes, [f"{n}    95  71 226 313" for n in names])
    points = ["8", " ".join(f"{part}_{axis}" for part in ("lefteye", "righteye", "nose") for axis in "xy")]
    table("list_landmarks_align_celeba.txt", points, [f"{n} 69  109  106  113   77  142" for n in names])
    attributes = ["8", " ".join(CELEBA_ATTRIBUTES) + " "]  # the official line ends in a space
    table("list_attr_celeba.txt", attributes, [f"{n} {row}" for n, row in zip(names, signs, strict=True)])
    files = [
        (drive, md5(folder / file) if file.endswith(".txt") else old, file)
        for drive, old, file in datasets.CelebA.file_list
    ]
    monkeypatch.setattr(datasets.CelebA, "file_list", files)
    return folder


@pytest.mark.parametrize("attribute", ["5_o_Clock_Shadow", "Male", "Smiling"])
def test_celeba(attribute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_celeba(tmp_path, monkeypatch)
    pools = open_(CelebA(attribute=attribute, size=24), tmp_path)
    assert pools.classes == 2
    for pool, part, first_id in ((pools.train, 0, 0), (pools.test, 2, TEST_ID_OFFSET)):
        members = [i for i, own in enumerate(CELEBA_PARTS) if own == part]
        batch = everything(pool)
        assert_shades(batch, members, 24)
        assert batch.y.tolist() == [celeba_labels(i)[CELEBA_ATTRIBUTES.index(attribute)] for i in members]
        assert torch.equal(batch.ids, torch.arange(len(members)) + first_id)


def test_celeba_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_celeba(tmp_path, monkeypatch)
    message = complaint(lambda: open_(CelebA(attribute="Smile"), tmp_path))
    assert "'Smile'" in message
    assert "Smiling" in message
    picture = folder / "img_align_celeba" / "000004.jpg"  # the third of the training part
    pool = open_(CelebA(), tmp_path).train
    cut(picture)
    message = complaint(lambda: pool.take(np.array([0, 2])))
    assert str(picture) in message
    assert "replace it" in message
    picture.unlink()
    assert str(picture) in complaint(lambda: pool.take(np.array([2])))
    assert len(pool.take(np.array([0, 1]))) == 2  # the others can still be taken
    pictures = folder / "img_align_celeba"
    pictures.rename(folder / "elsewhere")
    assert f"{pictures} is missing" in complaint(lambda: open_(CelebA(), tmp_path))
    (folder / "elsewhere").rename(pictures)
    attributes = folder / "list_attr_celeba.txt"
    flip_byte(attributes)
    message = complaint(lambda: open_(CelebA(), tmp_path))
    assert f"{attributes} is damaged" in message
    assert "MD5" in message


def write_lfw(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three people, two of them in the training part, and the lists; torchvision learns their MD5s."""
    folder = root / "lfw-py"
    people = {"Aaron_Eckhart": 1, "Aaron_Guiel": 2, "Zydrunas_Ilgauskas": 2}
    picture = 0
    for person, count in people.items():
        for number in range(1, count + 1):
            write_picture(folder / "lfw-deepfunneled" / person / f"{person}_{number:04d}.jpg", picture, (250, 250))
            picture += 1
    (folder / "lfw-names.txt").write_text("".join(f"{person}\t{count}\n" for person, count in people.items()))
    (folder / "peopleDevTrain.txt").write_text("2\nAaron_Eckhart\t1\nZydrunas_Ilgauskas\t2\n")
    sums = {file: md5(folder / file) for file in ("lfw-names.txt", "peopleDevTrain.txt")}
    monkeypatch.setattr(datasets.LFWPeople, "checksums", sums)
    return folder


@pytest.mark.parametrize("download", [False, True])  # LFW is no longer offered: --download must not get in the way
def test_lfw_people(download: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: list[str]) -> None:
    write_lfw(tmp_path, monkeypatch)
    pools = open_(LfwPeople(size=20), tmp_path, download=download)
    assert pools.test is None
    assert pools.classes == 3
    batch = everything(pools.train)
    assert_shades(batch, [0, 3, 4], 20)
    assert batch.y.tolist() == [0, 2, 2]
    assert batch.ids.tolist() == [0, 1, 2]
    assert network == []


def test_lfw_people_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_lfw(tmp_path, monkeypatch)
    picture = folder / "lfw-deepfunneled/Zydrunas_Ilgauskas/Zydrunas_Ilgauskas_0002.jpg"
    pool = open_(LfwPeople(), tmp_path).train
    cut(picture)
    assert str(picture) in complaint(lambda: everything(pool))
    flip_byte(folder / "peopleDevTrain.txt")
    message = complaint(lambda: open_(LfwPeople(), tmp_path))
    assert "peopleDevTrain.txt is damaged" in message
    assert "--download" not in message  # it would not help
    (folder / "lfw-names.txt").unlink()
    (folder / "peopleDevTrain.txt").unlink()
    assert "peopleDevTrain.txt is missing" in complaint(lambda: open_(LfwPeople(), tmp_path))


def test_lfw_people_needs_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = write_lfw(tmp_path, monkeypatch) / "lfw-deepfunneled"
    pictures.rename(pictures.with_name("lfw"))
    assert f"{pictures} is missing" in complaint(lambda: open_(LfwPeople(), tmp_path))


def write_pcam(root: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    folder = root / "pcam"
    folder.mkdir()
    for part, count in (("train", 6), ("test", 4)):
        with h5py.File(folder / f"camelyonpatch_level_2_split_{part}_x.h5", "w") as content:
            content["x"] = noise(count, 96, 96, 3, seed=count)
        with h5py.File(folder / f"camelyonpatch_level_2_split_{part}_y.h5", "w") as content:
            content["y"] = (np.arange(count, dtype=np.uint8) % 2).reshape(-1, 1, 1, 1)
    return folder


def test_pcam(tmp_path: Path) -> None:
    write_pcam(tmp_path)
    pools = open_(Pcam(), tmp_path)
    assert pools.classes == 2
    for pool, count, first_id in ((pools.train, 6, 0), (pools.test, 4, TEST_ID_OFFSET)):
        batch = everything(pool)
        assert torch.equal(batch.x, pixels(noise(count, 96, 96, 3, seed=count)))  # the full size is not resampled
        assert torch.equal(batch.y, torch.arange(count) % 2)
        assert torch.equal(batch.ids, torch.arange(count) + first_id)
    assert everything(open_(Pcam(size=32), tmp_path).train).x.shape == (6, 3, 32, 32)


@pytest.mark.parametrize("file", ["train_x", "train_y", "test_x", "test_y"])
def test_damaged_pcam_file_is_named(file: str, tmp_path: Path) -> None:
    path = write_pcam(tmp_path) / f"camelyonpatch_level_2_split_{file}.h5"
    for keep in (0.5, 0.0):
        cut(path, keep)
        assert str(path) in complaint(lambda: open_(Pcam(), tmp_path))
    path.unlink()
    assert f"{path} is missing" in complaint(lambda: open_(Pcam(), tmp_path))


def test_pcam_labels_that_are_too_few(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    folder = write_pcam(tmp_path)
    with h5py.File(folder / "camelyonpatch_level_2_split_train_y.h5", "w") as content:
        content["y"] = np.zeros((2, 1, 1, 1), dtype=np.uint8)
    assert str(folder) in complaint(lambda: everything(open_(Pcam(), tmp_path).train))


def write_folders(root: Path) -> None:
    """Two classes, pictures of several sizes and formats."""
    write_picture(root / "cat" / "0.png", 0, (30, 30))
    write_picture(root / "cat" / "1.jpg", 1, (60, 44))
    write_picture(root / "dog" / "deeper" / "2.bmp", 2, (20, 50))
    (root / "dog" / "notes.txt").write_text("no picture")


def test_image_folder(tmp_path: Path) -> None:
    write_folders(tmp_path)
    pools = open_(ImageFolder(size=16), tmp_path)
    assert pools.classes == 2
    assert pools.test is None
    batch = pools.train.take(np.array([2, 0, 1]))
    assert_shades(batch, [2, 0, 1], 16)
    assert batch.y.tolist() == [1, 0, 0]
    assert batch.ids.tolist() == [2, 0, 1]
    parts = split(pools, private=1, auxiliary=1, test=1, seed=0)
    assert sorted(torch.cat([parts.private.ids, parts.auxiliary.ids, parts.test.ids]).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA", "CMYK"])
def test_pictures_of_every_mode_become_color(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "only" / f"picture.{'jpg' if mode == 'CMYK' else 'png'}"
    path.parent.mkdir()
    Image.new("RGB", (8, 8), "white").convert(mode).save(path)
    batch = everything(open_(ImageFolder(size=8), tmp_path).train)
    torch.testing.assert_close(batch.x, torch.ones(1, 3, 8, 8), atol=0.01, rtol=0)


def test_image_folder_keeps_pixels_of_the_right_size(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    image = noise(32, 32, 3)
    Image.fromarray(image).save(tmp_path / "only" / "picture.png")
    assert torch.equal(everything(open_(ImageFolder(), tmp_path).train).x, pixels(image[None]))


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    message = complaint(lambda: open_(ImageFolder(), tmp_path))
    assert str(tmp_path) in message
    assert "DATA_ROOT/<class>/<picture>" in message
    write_folders(tmp_path)
    (tmp_path / "wolf").mkdir()
    assert "wolf" in complaint(lambda: open_(ImageFolder(), tmp_path))


def corrupt_png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(16, 16, 3)).save(buffer, "png")
    content = bytearray(buffer.getvalue())
    content[len(content) // 2] ^= 255  # its checksum now fails
    return bytes(content)


@pytest.mark.parametrize("content", [b"", b"not a picture", corrupt_png(), corrupt_png()[:300]])
def test_broken_picture_is_named(content: bytes, tmp_path: Path) -> None:
    write_folders(tmp_path)
    broken = tmp_path / "dog" / "broken.png"
    broken.write_bytes(content)
    pool = open_(ImageFolder(), tmp_path).train  # pictures are decoded only when taken
    message = complaint(lambda: everything(pool))
    assert str(broken) in message
    assert "replace it" in message


def test_picture_too_large_to_decode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)  # Pillow refuses more than twice as many, in its own way
    assert "1.jpg" in complaint(lambda: everything(open_(ImageFolder(), tmp_path).train))


def test_a_picture_that_would_mostly_be_invented_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (1, 1), "white").save(tmp_path / "cat" / "dot.png")
    Image.new("RGB", (16, 20), "white").save(tmp_path / "cat" / "small.png")
    pool = open_(ImageFolder(), tmp_path).train
    assert len(pool.take(np.array([1]))) == 1
    message = complaint(lambda: pool.take(np.array([0])))
    assert "dot.png) is 1×1 pixels, too small for size=32; take it out, or set size to at most 2" in message


def test_sizes_have_a_bound() -> None:
    with pytest.raises(ValueError, match="from 1 to 1024, got 1000000"):
        ImageFolder(size=1_000_000)
