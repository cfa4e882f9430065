"""Official datasets through torchvision.datasets, from a data root; downloaded only when told to."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.data.base import TEST_ID_OFFSET, ArrayPool, Batch, Pools
from privkit.errors import DataError

IMAGES_PER_CIFAR_BATCH = 10_000


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
        from PIL import ImageOps

        images = np.empty((len(rows), self.size, self.size, 3), dtype=np.uint8)
        labels = np.empty(len(rows), dtype=np.int64)
        for place, row in enumerate(rows):
            try:
                picture, target = self.dataset[int(row)]
                images[place] = np.asarray(ImageOps.fit(picture.convert("RGB"), (self.size, self.size)))
                labels[place] = self.label(target)
            except MemoryError:
                raise
            except Exception as error:  # a decoder raises nearly anything on a damaged file
                file = self.file(self.dataset, int(row))
                raise DataError(f"picture {row} ({file}) cannot be decoded ({_reason(error)}); replace it") from error
        batch = ArrayPool(images=images, labels=labels).take(np.arange(len(rows)))
        return Batch(x=batch.x, y=batch.y, ids=torch.from_numpy(rows + self.first_id))


def _need_root(name: str, root: Path | None, inside: str) -> Path:
    """The data root, or one sentence that says how to name it."""
    if root is None:
        raise DataError(
            f"{name} needs a data root: pass --data-root DIR (or set PRIVKIT_DATA) to the folder that holds {inside}"
        )
    if not os.path.isdir(root):  # unlike Path.is_dir, False also where permission is denied
        raise DataError(f"the data root {root} is no folder; create it, or pass the one that holds {inside}")
    return root


def _check_files(name: str, folder: Path, files: Sequence[tuple[str, str | None]], advice: str) -> None:
    """Each file must be there and, where its MD5 is known, intact."""
    for file, md5 in files:
        path = folder / file
        if not path.is_file():
            raise DataError(f"{name}: {path} is missing; {advice}")
        if md5 is not None:
            with path.open("rb") as handle:
                if hashlib.file_digest(handle, "md5").hexdigest() != md5:
                    raise DataError(f"{name}: {path} is damaged (its MD5 is not the official one); {advice}")


def _check_folder(name: str, folder: Path, advice: str) -> None:
    """The folder of pictures must be there."""
    if not folder.is_dir():
        raise DataError(f"{name}: {folder} is missing; {advice}")


def _check_size(size: int) -> None:
    """A picture has at least one pixel."""
    if size < 1:
        raise ValueError(f"size must be a whole number of pixels >= 1, got {size}")


def _reason(error: Exception) -> str:
    """The first sentence of an error on one line: torchvision's second one speaks of Python arguments."""
    return " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def _one_sentence(name: str, place: Path, advice: str) -> Iterator[None]:
    """Turn what torchvision and its decoders raise on missing or damaged files of a place into one sentence."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # pickle, csv, tarfile, gzip and h5py each raise their own kind
        # torchvision turns the ImportError of an optional package into a RuntimeError
        cause = error.__context__ if isinstance(error.__context__, ImportError) else error
        if isinstance(cause, ImportError) and cause.name:
            raise DataError(f"{name} needs one more package: pip install {cause.name}") from error
        raise DataError(f"{name}: {place} cannot be read ({_reason(error)}); {advice}") from error


def _advice(download: bool) -> str:
    """What to do about a missing file."""
    if download:
        return "the download did not bring it: fetch the official file by hand"
    return "put the official file there, or add --download to fetch it"


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10: 50,000 + 10,000 natural images, 32×32 colour, 10 classes.

    Attributes:
        batches: how many of the five official training batches to use, from the first; None for as many as the
            budget's images need. A declared subset is fine where not all five files are at hand.

    Source: Krizhevsky 2009; torchvision `CIFAR10`.
    """

    name: ClassVar[str] = "cifar10"

    batches: int | None = None

    def __post_init__(self) -> None:
        if self.batches is not None and not 1 <= self.batches <= 5:
            raise ValueError(f"batches must be 1 to 5 (official training files, from the first), got {self.batches}")

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the wanted batches; see `DatasetSpec.open`."""
        from torchvision.datasets import CIFAR10

        root = _need_root(self.name, root, CIFAR10.base_folder)
        count = self.batches or min(5, -(-train_images // IMAGES_PER_CIFAR_BATCH))
        advice = _advice(download)
        if not download:
            advice += f" (or use a declared subset: --dataset cifar10:batches=N; this run needs {count})"

        class Subset(CIFAR10):
            train_list = CIFAR10.train_list[:count]

        with _one_sentence(self.name, root, advice):
            if download:
                Subset(str(root), download=True)
            _check_files(self.name, root / CIFAR10.base_folder, _cifar_files(Subset), advice)
            return _array_pools(lambda train: Subset(str(root), train=train), classes=10)


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """CIFAR-100: 50,000 + 10,000 natural images, 32×32 colour, 100 classes.

    Source: Krizhevsky 2009; torchvision `CIFAR100`.
    """

    name: ClassVar[str] = "cifar100"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open both parts; see `DatasetSpec.open`."""
        from torchvision.datasets import CIFAR100

        root = _need_root(self.name, root, CIFAR100.base_folder)
        advice = _advice(download)
        with _one_sentence(self.name, root, advice):
            if download:
                CIFAR100(str(root), download=True)
            _check_files(self.name, root / CIFAR100.base_folder, _cifar_files(CIFAR100), advice)
            return _array_pools(lambda train: CIFAR100(str(root), train=train), classes=100)


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """MNIST: 60,000 + 10,000 digits, 28×28 grey.

    Source: LeCun et al. 1998; torchvision `MNIST`.
    """

    name: ClassVar[str] = "mnist"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open both parts; see `DatasetSpec.open`."""
        from torchvision.datasets import MNIST

        return _open_idx(self.name, MNIST, root, download)


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28×28 grey, 10 classes.

    Source: Xiao et al. 2017; torchvision `FashionMNIST`.
    """

    name: ClassVar[str] = "fashion_mnist"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open both parts; see `DatasetSpec.open`."""
        from torchvision.datasets import FashionMNIST

        return _open_idx(self.name, FashionMNIST, root, download)


@dataclass(frozen=True, kw_only=True)
class CelebA:
    """CelebA faces; the label is one of the 40 attributes.

    Attributes:
        attribute: name of the attribute, as in list_attr_celeba.txt.
        size: side in pixels after centre cropping.

    Source: Liu et al. 2015; torchvision `CelebA`.
    """

    name: ClassVar[str] = "celeba"

    attribute: str = "Smiling"
    size: int = 64

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the official training and test parts; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "celeba/img_align_celeba and the list_*_celeba.txt files")
        folder = root / datasets.CelebA.base_folder
        pictures = folder / "img_align_celeba"
        advice = _advice(download)
        with _one_sentence(self.name, root, advice):
            if not download:
                lists = [(file, md5) for _, md5, file in datasets.CelebA.file_list if file.endswith(".txt")]
                _check_files(self.name, folder, lists, advice)
                _check_folder(self.name, pictures, advice)
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

    size: int = 64

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the official development training part; see `DatasetSpec.open`."""
        from torchvision.datasets import LFWPeople

        root = _need_root(self.name, root, LFWPeople.base_folder)
        folder = root / LFWPeople.base_folder
        advice = "put the official file there by hand: LFW can no longer be downloaded"

        class Extracted(LFWPeople):
            """Asks for the lists and the pictures, not also for the archive that the pictures came in."""

            def _check_integrity(self) -> bool:
                return True  # the lists are checked below

        with _one_sentence(self.name, root, advice):
            lists = [(file, LFWPeople.checksums[file]) for file in ("peopleDevTrain.txt", LFWPeople.names)]
            _check_files(self.name, folder, lists, advice)
            _check_folder(self.name, folder / LFWPeople.file_dict["deepfunneled"][0], advice)
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

    size: int = 96

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open both parts; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "pcam/camelyonpatch_level_2_split_*.h5")
        folder = root / "pcam"
        advice = _advice(download)
        with _one_sentence(self.name, root, advice):
            import h5py

            if download:
                for part in ("train", "test"):
                    datasets.PCAM(str(root), split=part, download=True)
            for part, kind in (("train", "x"), ("train", "y"), ("test", "x"), ("test", "y")):
                file = f"camelyonpatch_level_2_split_{part}_{kind}.h5"
                _check_files(self.name, folder, [(file, None)], advice)  # only the packed files have an official MD5
                with _one_sentence(self.name, folder / file, advice), h5py.File(folder / file) as content:
                    len(content[kind])
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

    size: int = 32

    def __post_init__(self) -> None:
        _check_size(self.size)

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open all pictures; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "one folder of pictures a class")
        with _one_sentence(self.name, root, "lay the pictures out as DATA_ROOT/<class>/<picture>"):
            pictures = datasets.ImageFolder(str(root))
            return _decoded_pools(
                pictures,
                None,
                size=self.size,
                classes=len(pictures.classes),
                file=lambda pictures, row: pictures.samples[row][0],
            )


def _cifar_files(dataset: Any) -> list[tuple[str, str]]:
    """Names and official MD5s of the files of CIFAR-10 and its relatives."""
    return [*map(tuple, dataset.train_list + dataset.test_list), (dataset.meta["filename"], dataset.meta["md5"])]


def _array_pools(part: Callable[[bool], Any], classes: int) -> Pools:
    """Pools of a dataset that torchvision holds in memory as `.data` and `.targets`."""
    pools = []
    for train in (True, False):
        dataset = part(train)
        images, labels = np.asarray(dataset.data), np.asarray(dataset.targets)
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images but {len(labels)} labels")
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise ValueError(f"labels {labels.min()} to {labels.max()} where 0 to {classes - 1} are allowed")
        pools.append(ArrayPool(images=images, labels=labels, first_id=0 if train else TEST_ID_OFFSET))
    return Pools(train=pools[0], test=pools[1], classes=classes)


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


def _open_idx(name: str, dataset: Any, root: Path | None, download: bool) -> Pools:
    """MNIST and its relatives: four idx files under <root>/<class name>/raw."""
    inside = f"{dataset.__name__}/raw"
    root = _need_root(name, root, inside)
    folder = root / inside
    advice = _advice(download)
    with _one_sentence(name, folder, advice):
        files = [Path(archive).stem for archive, _ in dataset.resources]
        for file in files:  # only the archives have an official MD5, and a download leaves files that are there
            path = folder / file
            if path.is_file() and not _is_idx(path, dimensions=3 if "idx3" in file else 1):
                raise DataError(
                    f"{name}: {path} is damaged (no complete idx file); delete it and {_advice(download=False)}"
                )
        if download:
            dataset(str(root), download=True)
        _check_files(name, folder, [(file, None) for file in files], advice)
        return _array_pools(lambda train: dataset(str(root), train=train), classes=10)


def _is_idx(path: Path, dimensions: int) -> bool:
    """Whether this is an idx file of bytes that is as long as its header says."""
    start = 4 + 4 * dimensions
    with path.open("rb") as handle:
        header = handle.read(start)
    if len(header) < start or header[:4] != bytes([0, 0, 8, dimensions]):
        return False
    shape = struct.unpack(f">{dimensions}I", header[4:])
    return path.stat().st_size == start + math.prod(shape)
