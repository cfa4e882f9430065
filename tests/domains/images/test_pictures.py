"""Loaders of pictures: CelebA, LFW, PatchCamelyon and the user's own."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from privkit.domains.base import TEST_ID_OFFSET, VALIDATION_ID_OFFSET, Batch, DatasetSpec
from privkit.domains.chosen import only_classes
from privkit.domains.images.pictures import CelebA, ImageFolder, LfwPeople, Pcam
from privkit.domains.splits import split
from tests.domains.images.official import complaint, cut, everything, flip_byte, md5, noise, open_, pixels


@pytest.mark.parametrize("kind", [CelebA, LfwPeople, Pcam, ImageFolder])
@pytest.mark.parametrize("size", [0, -1])
def test_pictures_have_at_least_one_pixel(kind: Callable[..., DatasetSpec], size: int) -> None:
    with pytest.raises(ValueError, match="size"):
        kind(size=size)


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


def test_celeba_with_all_attributes_has_forty_labels_a_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_celeba(tmp_path, monkeypatch)
    pools = open_(CelebA(attribute="all", size=24), tmp_path)
    assert pools.classes == len(CELEBA_ATTRIBUTES)
    members = [i for i, own in enumerate(CELEBA_PARTS) if own == 0]
    batch = everything(pools.train)
    assert batch.y.dtype == torch.int64
    assert batch.y.tolist() == [celeba_labels(i) for i in members]


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


def write_pcam(root: Path, parts: Mapping[str, int] = MappingProxyType({"train": 6, "test": 4})) -> Path:
    import h5py

    folder = root / "pcam"
    folder.mkdir(exist_ok=True)
    for part, count in parts.items():
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


def test_pcam_has_an_official_validation_part(tmp_path: Path) -> None:
    write_pcam(tmp_path)
    drawn = split(open_(Pcam(size=32), tmp_path), private=2, auxiliary=2, test=4, seed=0, validation=1)
    assert drawn.validation is not None
    assert set(drawn.validation.ids.tolist()) < set(range(6))  # without the official part
    folder = write_pcam(tmp_path, {"valid": 5})
    pools = open_(Pcam(), tmp_path)
    assert pools.validation is not None
    assert torch.equal(everything(pools.validation).x, pixels(noise(5, 96, 96, 3, seed=5)))
    official = split(pools, private=4, auxiliary=2, test=4, seed=0, validation=3).validation
    assert official is not None
    ids = official.ids - VALIDATION_ID_OFFSET
    assert len(set(ids.tolist())) == 3
    assert set(ids.tolist()) < set(range(5))
    two = only_classes("pcam", pools, [1, 0])
    assert two.validation is not None
    assert two.validation.targets().tolist() == [1, 0, 1, 0, 1]
    cut(folder / "camelyonpatch_level_2_split_valid_y.h5", 0.0)
    assert "split_valid_y.h5" in complaint(lambda: open_(Pcam(), tmp_path))


@pytest.mark.parametrize("file", ["train_x", "train_y", "test_x", "test_y"])
def test_damaged_pcam_file_is_named(file: str, tmp_path: Path) -> None:
    path = write_pcam(tmp_path) / f"camelyonpatch_level_2_split_{file}.h5"
    for keep in (0.5, 0.0):
        cut(path, keep)
        assert str(path) in complaint(lambda: open_(Pcam(), tmp_path))
    path.unlink()
    assert f"{path} is missing" in complaint(lambda: open_(Pcam(), tmp_path))


def test_pcam_labels_that_are_too_few(tmp_path: Path) -> None:
    import h5py

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
    with pytest.raises(ValueError, match=">= 1 and <= 1024, got 1000000"):
        ImageFolder(size=1_000_000)
