"""A user's own images: a folder of pictures, arrays in a file, or arrays from a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privkit.constraints import Checked
from privkit.domains.base import TEST_ID_OFFSET, Pools, check_labels
from privkit.domains.files import one_sentence
from privkit.domains.images.arrays import ArrayPool
from privkit.domains.images.decoded import Size
from privkit.domains.images.domain import check_array
from privkit.domains.images.pictures import opened_folders
from privkit.errors import DataError, one_line
from privkit.files.import_path import imported

_PARTS = ("train", "test")  # folders that are parts of the data and no classes
_NAMES = ("images", "labels", "test_images", "test_labels")


@dataclass(frozen=True, kw_only=True)
class Folder(Checked):
    """Your own picture files: PATH/<class>/<picture>, or PATH/train/<class>/<picture> and PATH/test/<class>/<picture>.

    Without `grey`, grey pictures become RGB with three equal channels. Transparency is dropped, and the centre square
    of each picture is resampled to the same side.

    Attributes:
        path: the folder PATH, which contains the pictures.
        size: side in pixels after centre cropping.
        grey: whether pictures are converted to one channel, the brightness.

    Source: the user's; torchvision `ImageFolder`.
    """

    name: ClassVar[str] = "folder"
    domain: ClassVar[str] = "images"

    path: str = ""
    size: Size = 32
    grey: bool = False

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        home = _given(self.name, self.path, "the folder that holds one folder of pictures per class")
        if not home.is_dir():
            raise DataError(f"folder: {home} is not a folder; pass the one that holds one folder of pictures per class")
        parts = [home / part for part in _PARTS if (home / part).is_dir()]
        return opened_folders(
            self.name, parts if len(parts) == len(_PARTS) else [home], self.size, "PATH", grey=self.grey
        )


@dataclass(frozen=True, kw_only=True)
class Arrays(Checked):
    """Your own images as arrays: `images` and `labels` in an .npz or .safetensors file, or in two .npy files.

    Images are [N, H, W], [N, H, W, C] or, as in torch, [N, C, H, W]: uint8, uint16, booleans, or floats in [0, 1].
    Labels are whole numbers from 0, [N]. A file may also hold `test_images` and `test_labels`. Pickles are refused.

    Attributes:
        path: the file with the arrays; an .npy file holds only the images.
        labels: the .npy file of the labels if `path` is an .npy file; empty for other files.

    Source: the user's.
    """

    name: ClassVar[str] = "arrays"
    domain: ClassVar[str] = "images"

    path: str = ""
    labels: str = ""

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        path = _given(self.name, self.path, "an .npz, .safetensors or .npy file")
        if path.suffix == ".npy":
            labels = _given(self.name, self.labels, "the .npy file of the labels, one per row of the images", "labels")
            return _pools(f"arrays: {path}", {"images": _read(path), "labels": _read(labels)})
        held = _read(path)
        if not isinstance(held, Mapping):
            raise DataError(f"arrays: {path} holds one array; name its labels with labels=FILE.npy")
        return _pools(f"arrays: {path}", held)


@dataclass(frozen=True, kw_only=True)
class FromFunction:
    """Images from your own function, which returns (images, labels) or (images, labels, test images, test labels).

    Images and labels have the shapes and types that `Arrays` accepts.

    Attributes:
        function: import path of the function, `module:function`, for example "mydata:faces".

    Source: the user's.
    """

    name: ClassVar[str] = "own"
    domain: ClassVar[str] = "images"

    function: str

    def imports(self) -> set[str]:
        return {self.function.partition(":")[0], imported("the dataset", self.function).__module__}

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        try:
            given = imported("the dataset", self.function)()
        except (MemoryError, DataError):
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"{self.function}() failed: {one_line(error, None)}; repair it") from error
        if not isinstance(given, tuple | list) or len(given) not in (2, 4):
            raise DataError(
                f"{self.function}() must return (images, labels) or (images, labels, test_images, test_labels), got "
                f"{type(given).__name__}{f' of {len(given)}' if isinstance(given, tuple | list) else ''}"
            )
        return _pools(f"{self.function}()", dict(zip(_NAMES, given, strict=False)))


def _given(name: str, path: str, what: str, option: str = "path") -> Path:
    if not path:
        raise DataError(f"{name} needs {option}=PATH, {what}")
    return Path(path).expanduser()


def _read(path: Path) -> Any:
    """The content of a file, read without unpickling: one array, or arrays by name."""
    if not path.is_file():
        raise DataError(f"arrays: {path} is missing; name an .npz, .safetensors or .npy file")
    with one_sentence("arrays", path, "save it again with numpy.savez, numpy.save or safetensors"):
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return load_file(path)
        if path.suffix not in (".npz", ".npy"):
            raise DataError(
                f"arrays: {path} is not an .npz, .safetensors or .npy file; a pickle could run a program, so save the "
                "arrays with numpy.savez or safetensors"
            )
        read = np.load(path, allow_pickle=False)
        if path.suffix == ".npy":
            return read
        with read:
            return {key: read[key] for key in read.files}


def _pools(what: str, held: Mapping[str, Any]) -> Pools:
    asked = _NAMES if {"test_images", "test_labels"} & set(held) else _NAMES[:2]
    if missing := [name for name in asked if name not in held]:
        raise DataError(f"{what} holds no {missing[0]}, only {', '.join(sorted(held)) or 'nothing'}; add it")
    pools = [
        _pool(f"{what}: {asked[place]}", held[asked[place]], held[asked[place + 1]], place // 2 * TEST_ID_OFFSET)
        for place in range(0, len(asked), 2)
    ]
    if len({pool.images.shape[1:] for pool in pools}) > 1:
        raise DataError(f"{what}: images are {[list(pool.images.shape[1:]) for pool in pools]}; give all one shape")
    classes = 1 + max(int(pool.labels.max()) for pool in pools)
    notes = _notes(np.unique(np.concatenate([pool.labels for pool in pools])), classes)
    return Pools(train=pools[0], test=pools[1] if len(pools) > 1 else None, classes=classes, notes=notes)


def _notes(labels: NDArray[np.int64], classes: int) -> tuple[str, ...]:
    """A sentence if some classes have no record; `labels` are the different labels of all records."""
    if len(labels) == classes:
        return ()
    first = int(np.argmax(labels != np.arange(len(labels))))  # the last label is classes - 1, so one differs
    asked = "did you number the classes from 1?" if first == 0 else "number the classes 0, 1, 2, … without a gap"
    return (f"{classes - len(labels)} of {classes} classes have no record, the first of them class {first}: {asked}",)


def _pool(what: str, images: object, labels: object, first_id: int) -> ArrayPool:
    try:
        pixels: NDArray[np.generic] = np.asarray(images)
        numbers: NDArray[np.generic] = np.asarray(labels)
        pixels = check_array(pixels)
        if numbers.dtype.kind not in "biuf":
            raise DataError(f"labels must be whole numbers from 0, got {numbers.dtype}; number the classes 0, 1, 2, …")
        check_labels(numbers)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    if numbers.ndim != 1 or len(numbers) != len(pixels):
        raise DataError(
            f"{what}: {len(pixels)} images need labels [{len(pixels)}], got {list(numbers.shape)}; give one per row"
        )
    if not len(pixels):
        raise DataError(f"{what}: there is no image; add some")
    return ArrayPool(images=pixels, labels=numbers.astype(np.int64), first_id=first_id)
