"""Datasets of picture files through torchvision: decoded on demand, cut to the centre square, and resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privkit.constraints import Checked
from privkit.domains.base import Pools
from privkit.domains.files import advice_on_missing, check_exists, check_files, need_root, one_sentence
from privkit.domains.images.decoded import Size, decoded_pools, open_picture
from privkit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class CelebA(Checked):
    """CelebA faces; the label is one of the 40 attributes, or all 40 attributes are labels.

    Attributes:
        attribute: name of the attribute, as in list_attr_celeba.txt; "all" gives each face several labels, for
            loss=multi_label.
        size: side in pixels after centre cropping.

    Source: Liu et al. 2015; torchvision `CelebA`.
    """

    name: ClassVar[str] = "celeba"
    domain: ClassVar[str] = "images"

    attribute: str = "Smiling"
    size: Size = 64

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision import datasets

        root = need_root(self.name, root, "celeba/img_align_celeba and the list_*_celeba.txt files")
        folder = root / datasets.CelebA.base_folder
        pictures = folder / "img_align_celeba"
        advice = advice_on_missing(download)
        with one_sentence(self.name, root, advice):
            if not download:
                lists = [(file, md5) for _, md5, file in datasets.CelebA.file_list if file.endswith(".txt")]
                check_files(self.name, folder, lists, advice)
                check_exists(self.name, pictures, advice)
            parts = {
                part: datasets.CelebA(str(root), split=part, target_type="attr", download=download)
                for part in ("train", "test")
            }
        names = [name for name in parts["train"].attr_names if name]
        if self.attribute not in (*names, "all"):
            raise DataError(f"celeba has no attribute {self.attribute!r}; allowed: all, {', '.join(names)}")
        columns = slice(len(names)) if self.attribute == "all" else names.index(self.attribute)
        return decoded_pools(
            parts["train"],
            parts["test"],
            size=self.size,
            classes=len(names) if self.attribute == "all" else 2,
            file=lambda faces, row: pictures / faces.filename[row],
            labels=lambda faces: faces.attr[:, columns],
        )


@dataclass(frozen=True, kw_only=True)
class LfwPeople(Checked):
    """Labeled Faces in the Wild, deep-funneled; the label is the person.

    The official test part shows other people than the training part, so all parts are drawn from the training part.

    Attributes:
        size: side in pixels after centre cropping.

    Source: Huang et al. 2007; torchvision `LFWPeople`.
    """

    name: ClassVar[str] = "lfw_people"
    domain: ClassVar[str] = "images"

    size: Size = 64

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision.datasets import LFWPeople

        root = need_root(self.name, root, LFWPeople.base_folder)
        folder = root / LFWPeople.base_folder
        advice = "put the official file there by hand: LFW can no longer be downloaded"

        class Extracted(LFWPeople):  # type: ignore[misc]  # torchvision has no types
            """A torchvision dataset that needs only the extracted lists and pictures, not the pictures' archive."""

            def _check_integrity(self) -> bool:
                return True  # the lists are checked below

        with one_sentence(self.name, root, advice):
            lists = [(file, LFWPeople.checksums[file]) for file in ("peopleDevTrain.txt", LFWPeople.names)]
            check_files(self.name, folder, lists, advice)
            check_exists(self.name, folder / LFWPeople.file_dict["deepfunneled"][0], advice)
            people = Extracted(str(root), split="train", image_set="deepfunneled")
            return decoded_pools(
                people,
                None,
                size=self.size,
                classes=len(people.class_to_idx),
                file=lambda people, row: people.data[row],
            )


@dataclass(frozen=True, kw_only=True)
class Pcam(Checked):
    """PatchCamelyon: 262,144 training and 32,768 test histology patches, 96×96 colour, 2 classes. Needs h5py.

    The official validation part, another 32,768 patches, is used if its files exist.

    Attributes:
        size: side in pixels.

    Source: Veeling et al. 2018; torchvision `PCAM`.
    """

    name: ClassVar[str] = "pcam"
    domain: ClassVar[str] = "images"

    size: Size = 96

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision import datasets

        root = need_root(self.name, root, "pcam/camelyonpatch_level_2_split_*.h5")
        folder = root / "pcam"
        advice = advice_on_missing(download)
        with one_sentence(self.name, root, advice):
            import h5py

            def file(part: str, kind: str) -> str:
                return f"camelyonpatch_level_2_split_{_PCAM_PARTS[part]}_{kind}.h5"

            def labels(dataset: Any) -> NDArray[np.int64]:
                """The labels of a part, read at once, because torchvision would read them patch by patch."""
                with h5py.File(folder / file(dataset._split, "y")) as content:
                    return np.asarray(content["y"]).reshape(-1).astype(np.int64)

            if download:
                for part in _PCAM_PARTS:
                    datasets.PCAM(str(root), split=part, download=True)
            there = [part for part in _PCAM_PARTS if part != "val" or (folder / file("val", "x")).exists()]
            for part, kind in product(there, ("x", "y")):
                name = file(part, kind)
                check_files(self.name, folder, [(name, None)], advice)  # only the packed files have an official MD5
                with one_sentence(self.name, folder / name, advice), h5py.File(folder / name) as content:
                    values: Any = content[kind]
                    len(values)
            train, test, *rest = (datasets.PCAM(str(root), split=part) for part in there)
            with one_sentence(self.name, folder, advice):
                return decoded_pools(
                    train,
                    test,
                    size=self.size,
                    classes=2,
                    file=lambda _, row: folder,
                    labels=labels,
                    validation=rest[0] if rest else None,
                )


_PCAM_PARTS = {"train": "train", "test": "test", "val": "valid"}
"""torchvision's name of a part -> the part's name in file names."""


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Checked):
    """Your own pictures: DATA_ROOT/<class>/<picture>, one folder per class.

    Grey pictures become RGB with three equal channels, transparency is dropped, and the centre square of each picture
    is resampled to the same side. To keep one channel, use the dataset `arrays`, or `folder` with grey=true.

    Attributes:
        size: side in pixels after centre cropping.

    Source: the user's; torchvision `ImageFolder`.
    """

    name: ClassVar[str] = "image_folder"
    domain: ClassVar[str] = "images"

    size: Size = 32

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, "one folder of pictures per class")
        return opened_folders(self.name, [root], self.size, "DATA_ROOT")


def opened_folders(name: str, folders: Sequence[Path], size: int, called: str, *, grey: bool = False) -> Pools:
    """Build a dataset from a training folder and possibly a test folder, each with one folder of pictures per class.

    `size` is the side in pixels after centre cropping; `called` names the path in error messages.
    """
    from torchvision import datasets

    parts: list[Any] = []
    for folder in folders:
        with one_sentence(name, folder, f"lay the pictures out as {called}/<class>/<picture>"):
            parts.append(datasets.ImageFolder(str(folder), loader=open_picture))
    names = [part.classes for part in parts]
    if any(other != names[0] for other in names):
        raise DataError(f"{name}: the parts in {folders[0].parent} have different classes; give them the same folders")
    return decoded_pools(
        parts[0],
        parts[1] if len(parts) > 1 else None,
        size=size,
        classes=len(names[0]),
        file=lambda pictures, row: pictures.samples[row][0],
        grey=grey,
    )


@dataclass(frozen=True, kw_only=True)
class ImageNet(Checked):
    """ImageNet of 2012: 1,281,167 training and 50,000 test pictures of 1,000 classes.

    The test part is ImageNet's official validation part.

    Pictures are read from train/<WordNet id>/ and val/<WordNet id>/. If a folder is missing, torchvision unpacks the
    official archive into the data root; this also needs the devkit's archive. Classes are numbered in the order of
    their WordNet ids.

    Attributes:
        size: side in pixels after centre cropping.

    Source: Russakovsky et al. 2015; torchvision `ImageNet`; accurate_sl, Table 7.
    """

    name: ClassVar[str] = "imagenet"
    domain: ClassVar[str] = "images"

    size: Size = 224

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        from torchvision import datasets
        from torchvision.datasets.imagenet import ARCHIVE_META

        root = need_root(self.name, root, "train/ and val/, or the official archives of both and of the devkit")
        advice = "put the official archives there by hand: ImageNet cannot be downloaded without an account"
        with one_sentence(self.name, root, advice):
            for part in ("train", "val"):
                if not (root / part).is_dir():
                    archives = [(ARCHIVE_META[archive][0], None) for archive in (part, "devkit")]
                    check_files(self.name, root, archives, advice)
                    datasets.ImageNet(str(root), split=part)  # compares the official MD5, then unpacks
                if (packed := next((root / part).glob("*.tar"), None)) is not None:
                    raise DataError(f"{self.name}: {packed} is not unpacked; delete {root / part} to unpack it again")
            train, test = (datasets.ImageFolder(str(root / part), loader=open_picture) for part in ("train", "val"))
            if other := sorted({*train.classes} ^ {*test.classes}):
                raise DataError(
                    f"{self.name}: class {other[0]} is in one of {root / 'train'} and {root / 'val'} only; bring the "
                    "same classes in both"
                )
            return decoded_pools(
                train,
                test,
                size=self.size,
                classes=len(train.classes),
                file=lambda pictures, row: pictures.samples[row][0],
            )
