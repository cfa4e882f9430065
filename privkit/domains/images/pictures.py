"""Official datasets of picture files, through torchvision: decoded when taken, centre square, resampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import TEST_ID_OFFSET, Batch, Pools
from privkit.domains.images.modes import NotOnScale, unit_pixels
from privkit.domains.official import advice_on_missing, check_files, check_folder, need_root, one_sentence, reason
from privkit.errors import DataError

LARGEST_SIZE = 1024
"""Pixels a side: beyond it a single message of 50 pictures takes more than half a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class DecodedPool:
    """A torchvision dataset whose pictures are decoded when taken: centre square, resampled to size×size.

    Attributes:
        dataset: gives (PIL image, label) by index.
        size: side in pixels.
        file: names the file of a row of the dataset, for errors.
        label: turns the dataset's target into a class index.
        first_id: id of row 0.
    """

    dataset: Any
    size: int
    file: Callable[[Any, int], object]
    label: Callable[[Any], int] = int
    first_id: int = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Decode the pictures of these rows."""
        from PIL import Image

        images = np.empty((len(rows), 3, self.size, self.size), dtype=np.float32)
        labels = np.empty(len(rows), dtype=np.int64)
        for place, row in enumerate(rows):
            try:
                with warnings.catch_warnings():  # of a picture that unpacks to gigabytes, Pillow only warns
                    warnings.simplefilter("error", Image.DecompressionBombWarning)
                    picture, target = self.dataset[int(row)]
                self._check_sides(row, picture.size)
                images[place] = unit_pixels(picture, self.size).transpose(2, 0, 1)
                labels[place] = self.label(target)
            except MemoryError:
                raise
            except NotOnScale as error:
                raise DataError(f"picture {row} ({self.file(self.dataset, int(row))}): {error}") from None
            except DataError:
                raise
            except Exception as error:  # a decoder raises nearly anything on a damaged file
                file = self.file(self.dataset, int(row))
                raise DataError(f"picture {row} ({file}) cannot be decoded ({reason(error)}); replace it") from error
        return Batch(x=torch.from_numpy(images), y=torch.from_numpy(labels), ids=torch.from_numpy(rows + self.first_id))

    def _check_sides(self, row: np.int64, sides: tuple[int, int]) -> None:
        """A picture enlarged to more than twice its size is mostly invention, and easy to recover."""
        if 2 * min(sides) < self.size:
            raise DataError(
                f"picture {row} ({self.file(self.dataset, int(row))}) is {sides[0]}×{sides[1]} pixels, too small for "
                f"size={self.size}; take it out, or set size to at most {2 * min(sides)}"
            )


@dataclass(frozen=True, kw_only=True)
class CelebA:
    """CelebA faces; the label is one of the 40 attributes.

    Attributes:
        attribute: name of the attribute, as in list_attr_celeba.txt.
        size: side in pixels after centre cropping.

    Source: Liu et al. 2015; torchvision `CelebA`.
    """

    name: ClassVar[str] = "celeba"
    domain: ClassVar[str] = "images"

    attribute: str = "Smiling"
    size: int = 64

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the official training and test parts; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = need_root(self.name, root, "celeba/img_align_celeba and the list_*_celeba.txt files")
        folder = root / datasets.CelebA.base_folder
        pictures = folder / "img_align_celeba"
        advice = advice_on_missing(download)
        with one_sentence(self.name, root, advice):
            if not download:
                lists = [(file, md5) for _, md5, file in datasets.CelebA.file_list if file.endswith(".txt")]
                check_files(self.name, folder, lists, advice)
                check_folder(self.name, pictures, advice)
            parts = {
                part: datasets.CelebA(str(root), split=part, target_type="attr", download=download)
                for part in ("train", "test")
            }
        names = [name for name in parts["train"].attr_names if name]
        if self.attribute not in names:
            raise DataError(f"celeba has no attribute {self.attribute!r}; allowed: {', '.join(names)}")
        column = names.index(self.attribute)
        return _decoded_pools(
            parts["train"],
            parts["test"],
            size=self.size,
            classes=2,
            file=lambda faces, row: pictures / faces.filename[row],
            label=lambda target: int(target[column]),
        )


@dataclass(frozen=True, kw_only=True)
class LfwPeople:
    """Labeled Faces in the Wild, deep-funneled; the label is the person.

    The official test part has other people than the training part, so parts are drawn from the training part alone.

    Attributes:
        size: side in pixels.

    Source: Huang et al. 2007; torchvision `LFWPeople`.
    """

    name: ClassVar[str] = "lfw_people"
    domain: ClassVar[str] = "images"

    size: int = 64

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the official development training part; see `DatasetSpec.open`."""
        from torchvision.datasets import LFWPeople

        root = need_root(self.name, root, LFWPeople.base_folder)
        folder = root / LFWPeople.base_folder
        advice = "put the official file there by hand: LFW can no longer be downloaded"

        class Extracted(LFWPeople):  # type: ignore[misc]  # torchvision has no types
            """Asks for the lists and the pictures, not also for the archive that the pictures came in."""

            def _check_integrity(self) -> bool:
                return True  # the lists are checked below

        with one_sentence(self.name, root, advice):
            lists = [(file, LFWPeople.checksums[file]) for file in ("peopleDevTrain.txt", LFWPeople.names)]
            check_files(self.name, folder, lists, advice)
            check_folder(self.name, folder / LFWPeople.file_dict["deepfunneled"][0], advice)
            people = Extracted(str(root), split="train", image_set="deepfunneled")
            return _decoded_pools(
                people,
                None,
                size=self.size,
                classes=len(people.class_to_idx),
                file=lambda people, row: people.data[row],
            )


@dataclass(frozen=True, kw_only=True)
class Pcam:
    """PatchCamelyon: 262,144 + 32,768 histology patches, 96×96 colour, 2 classes. Needs h5py.

    Attributes:
        size: side in pixels.

    Source: Veeling et al. 2018; torchvision `PCAM`.
    """

    name: ClassVar[str] = "pcam"
    domain: ClassVar[str] = "images"

    size: int = 96

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open both parts; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = need_root(self.name, root, "pcam/camelyonpatch_level_2_split_*.h5")
        folder = root / "pcam"
        advice = advice_on_missing(download)
        with one_sentence(self.name, root, advice):
            import h5py

            if download:
                for part in ("train", "test"):
                    datasets.PCAM(str(root), split=part, download=True)
            for part, kind in (("train", "x"), ("train", "y"), ("test", "x"), ("test", "y")):
                file = f"camelyonpatch_level_2_split_{part}_{kind}.h5"
                check_files(self.name, folder, [(file, None)], advice)  # only the packed files have an official MD5
                with one_sentence(self.name, folder / file, advice), h5py.File(folder / file) as content:
                    values: Any = content[kind]
                    len(values)
            train, test = (datasets.PCAM(str(root), split=part) for part in ("train", "test"))
            return _decoded_pools(train, test, size=self.size, classes=2, file=lambda _, row: folder)


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """Your own pictures: DATA_ROOT/<class>/<picture>, one folder a class.

    Attributes:
        size: side in pixels after centre cropping.

    Source: the user's; torchvision `ImageFolder`.
    """

    name: ClassVar[str] = "image_folder"
    domain: ClassVar[str] = "images"

    size: int = 32

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open all pictures; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = need_root(self.name, root, "one folder of pictures a class")
        with one_sentence(self.name, root, "lay the pictures out as DATA_ROOT/<class>/<picture>"):
            pictures = datasets.ImageFolder(str(root), loader=_opened)
            return _decoded_pools(
                pictures,
                None,
                size=self.size,
                classes=len(pictures.classes),
                file=lambda pictures, row: pictures.samples[row][0],
            )


def _opened(path: str) -> Any:
    """A decoded picture in its own mode: torchvision's loader turns it into 8-bit color, and clips 16-bit grey."""
    from PIL import Image

    with open(path, "rb") as file:
        picture = Image.open(file)
        picture.load()
    return picture


def _check_size(size: int) -> None:
    """A picture has at least one pixel, and fits into memory."""
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"size must be a whole number of pixels from 1 to {LARGEST_SIZE}, got {size}")


def _decoded_pools(
    train: Any,
    test: Any,
    *,
    size: int,
    classes: int,
    file: Callable[[Any, int], object],
    label: Callable[[Any], int] = int,
) -> Pools:
    """Pools of a dataset that torchvision decodes picture by picture."""
    pool = DecodedPool(dataset=train, size=size, file=file, label=label)
    own_test = None if test is None else replace(pool, dataset=test, first_id=TEST_ID_OFFSET)
    return Pools(train=pool, test=own_test, classes=classes)
