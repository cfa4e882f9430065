"""A folder of pictures and arrays in a file: what they hold, and what is refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from privkit.domains.base import TEST_ID_OFFSET, Pools
from privkit.domains.images.domain import Images
from privkit.domains.images.own import Arrays, Folder
from privkit.errors import DataError, UsageError
from privkit.parts.entries import text_of
from privkit.settings.resolve import resolve

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
LABELS = np.arange(6) % 2


def opened(spec: Arrays | Folder) -> Pools:
    return spec.open(None, download=False, train_images=1)


def pictures(folder: Path) -> Path:
    for number, pixels in enumerate(PIXELS):
        place = folder / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def test_a_folder_says_what_becomes_of_grey_pictures_and_of_other_sizes(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    for number, size in enumerate(((8, 8), (12, 6))):
        Image.fromarray(PIXELS[0, :, :, 0]).resize(size).save(tmp_path / "only" / f"{number}.png")
    batch = opened(Folder(path=str(tmp_path), size=8)).train.take(np.arange(2))
    assert batch.x.shape == (2, 3, 8, 8)
    assert torch.equal(batch.x[:, 0], batch.x[:, 2])
    told = " ".join(text_of(Folder()).split())
    for words in ("become RGB with three equal channels", "the centre square of each picture"):
        assert words in told
    grey = opened(Folder(path=str(tmp_path), size=8, grey=True)).train.take(np.arange(2))
    assert torch.equal(grey.x, batch.x[:, :1])


@pytest.mark.parametrize("pixels", [PIXELS[0], PIXELS[0, ..., 0].astype(np.uint16) * 257], ids=["color", "deep"])
def test_a_folder_of_grey_pictures_has_their_brightness(tmp_path: Path, pixels: np.ndarray) -> None:
    """A grey network was refused on grey pictures, since they came with three channels."""
    (tmp_path / "only").mkdir()
    Image.fromarray(pixels).save(tmp_path / "only" / "0.png")
    found = opened(Folder(path=str(tmp_path), size=8, grey=True)).train.take(np.arange(1)).x
    assert found.shape == (1, 1, 8, 8)
    bright = PIXELS[0] @ np.array([0.299, 0.587, 0.114]) if pixels.ndim == 3 else PIXELS[0, ..., 0]
    assert np.abs(found[0, 0].numpy() * 255 - bright).max() < 1


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (LABELS, ()),
        (LABELS + 1, ("1 of 3 classes have no record, the first of them class 0: did you number the classes from 1?",)),
        (LABELS * 3, ("2 of 4 classes have no record, the first of them class 1: number the classes 0, 1, 2, …",)),
    ],
)
def test_classes_without_a_record_are_noted(tmp_path: Path, labels: np.ndarray, said: tuple[str, ...]) -> None:
    np.savez(tmp_path / "own.npz", images=PIXELS, labels=labels)
    notes = opened(Arrays(path=str(tmp_path / "own.npz"))).notes
    assert [note.startswith(one) for note, one in zip(notes, said, strict=True)] == [True] * len(said)


@pytest.mark.parametrize("form", ["nhwc", "nchw", "grey", "floats", "torch", "npy"])
def test_arrays_of_any_form_are_images(tmp_path: Path, form: str) -> None:
    path, labels = tmp_path / "mine.npz", ""
    pixels = PIXELS[..., 0] if form == "grey" else PIXELS / 255 if form == "floats" else PIXELS
    if form == "torch":
        path = tmp_path / "mine.safetensors"
        channels_first = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).contiguous()
        save_file({"images": channels_first, "labels": torch.from_numpy(LABELS)}, path)
    elif form == "npy":
        path, labels = tmp_path / "mine.npy", str(tmp_path / "labels.npy")
        np.save(path, pixels)
        np.save(labels, LABELS)
    else:
        np.savez(path, images=pixels.transpose(0, 3, 1, 2) if form == "nchw" else pixels, labels=LABELS)
    pools = opened(Arrays(path=str(path), labels=labels))
    batch = pools.train.take(np.arange(6))
    truth = torch.from_numpy(PIXELS).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(batch.x, truth[:, :1] if form == "grey" else truth)
    assert (pools.classes, pools.test, batch.y.tolist()) == (2, None, LABELS.tolist())


def test_a_test_part_is_the_official_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=PIXELS, labels=LABELS, test_images=PIXELS[:2], test_labels=LABELS[:2] + 2)
    of_arrays = opened(Arrays(path=str(tmp_path / "mine.npz")))
    for part in ("train", "test"):
        pictures(tmp_path / "own" / part)
    of_folders = opened(Folder(path=str(tmp_path / "own"), size=8))
    assert (of_arrays.classes, of_folders.classes) == (4, 2)
    for pools, count in ((of_arrays, 2), (of_folders, 6)):
        assert pools.test is not None
        assert len(pools.test) == count
        assert pools.test.take(np.arange(2)).ids.tolist() == [TEST_ID_OFFSET, TEST_ID_OFFSET + 1]


def test_one_folder_a_class(tmp_path: Path) -> None:
    pools = opened(Folder(path=str(pictures(tmp_path / "own")), size=8))
    batch = pools.train.take(np.arange(6))
    assert batch.y.tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(batch.x[1], torch.from_numpy(PIXELS[2]).permute(2, 0, 1) / 255)


def test_another_folder_may_be_the_adversarys(tmp_path: Path) -> None:
    own, other = f"folder:path={tmp_path / 'a'}", f"folder:path={tmp_path / 'b'}"
    assert resolve({"dataset": own, "auxiliary": other}).auxiliary == other
    with pytest.raises(UsageError, match="is the private dataset itself"):
        resolve({"dataset": own, "auxiliary": f"folder:path={tmp_path / 'c' / '..' / 'a'}"})


FOLDERS = [
    (Folder(), "folder needs path=PATH"),
    (Folder(path="nix"), "nix is not a folder"),
    (Folder(path="empty"), "PATH/<class>/<picture>"),
    (Folder(path="uneven"), "the parts in uneven have different classes"),
]


@pytest.mark.parametrize(("spec", "message"), FOLDERS, ids=[message for _, message in FOLDERS])
def test_folders_without_pictures_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Folder, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    pictures(tmp_path / "uneven" / "train")
    pictures(tmp_path / "uneven" / "test" / "deeper")
    with pytest.raises(DataError, match=message) as caught:
        opened(spec)
    assert "\n" not in str(caught.value)


ARRAYS = [
    ({}, "holds no images, only nothing"),
    ({"images": PIXELS}, "holds no labels, only images"),
    ({"images": PIXELS, "labels": LABELS, "test_images": PIXELS}, "holds no test_labels"),
    ({"images": PIXELS, "labels": LABELS[:5]}, r"6 images need labels \[6\], got \[5\]"),
    ({"images": PIXELS, "labels": LABELS - 1}, "labels must be whole numbers from 0, got -1"),
    ({"images": PIXELS, "labels": np.array(list("abcdef"))}, "labels must be whole numbers from 0, got <U1"),
    ({"images": PIXELS.astype(np.int64), "labels": LABELS}, "images of int64 have no known scale"),
    ({"images": PIXELS * 1.0, "labels": LABELS}, r"images must lie in \[0, 1\], got 0 to 255; divide them by 255"),
    ({"images": PIXELS / np.nan, "labels": LABELS}, "got NaN; replace or leave out"),
    ({"images": PIXELS[0, 0], "labels": LABELS}, r"an array of images is \[N, H, W\]"),
    ({"images": np.zeros((6, 8, 8, 7)), "labels": LABELS}, "images have 1, 3 or 4 channels"),
    ({"images": PIXELS[:0], "labels": LABELS[:0]}, "there is no image; add some"),
    ({"images": PIXELS, "labels": LABELS, "test_images": PIXELS[:, 1:], "test_labels": LABELS}, "give all one shape"),
    ({"images": np.array([{}, {}]), "labels": LABELS[:2]}, "cannot be read .*save it again"),
]


@pytest.mark.parametrize(("held", "message"), ARRAYS, ids=[message for _, message in ARRAYS])
def test_arrays_that_are_no_images_are_refused(tmp_path: Path, held: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "mine.npz", **held)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message) as caught:
        opened(Arrays(path=str(tmp_path / "mine.npz")))
    assert "\n" not in str(caught.value)


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    torch.save({"images": torch.zeros(1)}, tmp_path / "mine.pt")
    np.save(tmp_path / "mine.npy", PIXELS)
    (tmp_path / "damaged.safetensors").write_bytes(b"abc")
    for spec, message in (
        (Arrays(), "arrays needs path=PATH"),
        (Arrays(path=str(tmp_path / "nix.npz")), "nix.npz is missing"),
        (Arrays(path=str(tmp_path / "mine.pt")), "a pickle could run a program"),
        (Arrays(path=str(tmp_path / "mine.npy")), "arrays needs labels=PATH"),
        (Arrays(path=str(tmp_path / "damaged.safetensors")), "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            opened(spec)


@pytest.mark.parametrize(
    ("shape", "cure"), [((8, 8, 3), "a shape is [C, H, W], channels first"), ((3, 16, 16), "resize them")]
)
def test_images_of_another_shape_are_refused_with_the_cure(shape: tuple[int, int, int], cure: str) -> None:
    with pytest.raises(DataError) as caught:
        Images(shape=shape).check(torch.zeros(2, 3, 8, 8))
    assert str(caught.value) == f"images must be {list(shape)} each, got [3, 8, 8]; {cure}"
