"""Official datasets through torchvision.datasets, from a data root; downloaded only when told to."""
from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
        label: turns the dataset's target into a class index.
        first_id: id of row 0.
    """

    dataset: Any
    size: int
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
            except (OSError, SyntaxError, ValueError) as error:
                raise DataError(f"picture {int(row)} cannot be decoded ({error}); replace or remove that file") from None
            labels[place] = self.label(target)
        batch = ArrayPool(images=images, labels=labels).take(np.arange(len(rows)))
        return Batch(x=batch.x, y=batch.y, ids=torch.from_numpy(rows + self.first_id))


def _need_root(name: str, root: Path | None, inside: str) -> Path:
    """The data root, or one sentence that says how to name it."""
    if root is None:
        raise DataError(
            f"{name} needs a data root: pass --data-root DIR (or set PRIVKIT_DATA) to the folder that holds {inside}"
        )
    if not root.is_dir():
        raise DataError(f"the data root {root} is no folder; {name} looks there for {inside}")
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


@contextmanager
def _one_sentence(name: str, root: Path, advice: str) -> Iterator[None]:
    """Turn what torchvision and its decoders raise on missing or damaged files into one sentence."""
    try:
        yield
    except DataError:
        raise
    except (RuntimeError, OSError, ValueError, KeyError, EOFError, AssertionError, struct.error, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name}: files under {root} are missing or damaged ({reason}); {advice}") from None
    except ImportError as error:
        raise DataError(f"{name} needs one more package ({error}); install it with pip install 'privkit[{name}]'") from None


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
        subset = type("Cifar10Subset", (CIFAR10,), {"train_list": CIFAR10.train_list[:count]})
        with _one_sentence(self.name, root, advice):
            if download:
                subset(str(root), download=True)
            meta = (CIFAR10.meta["filename"], CIFAR10.meta["md5"])
            files = [(file, md5) for file, md5 in (*subset.train_list, *subset.test_list, meta)]
            _check_files(self.name, root / CIFAR10.base_folder, files, advice)
            return _array_pools(lambda train: subset(str(root), train=train), classes=10)


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
            _check_files(self.name, root / CIFAR100.base_folder, [*CIFAR100.train_list, *CIFAR100.test_list], advice)
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

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the official training and test parts; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "celeba/img_align_celeba and the list_*_celeba.txt files")
        with _one_sentence(self.name, root, _advice(download)):
            parts = {
                part: datasets.CelebA(str(root), split=part, target_type="attr", download=download)
                for part in ("train", "test")
            }
        names = [name for name in parts["train"].attr_names if name]
        if self.attribute not in names:
            raise DataError(f"celeba has no attribute {self.attribute!r}; allowed: {', '.join(names)}")
        column = names.index(self.attribute)
        return _decoded_pools(parts["train"], parts["test"], self.size, 2, lambda target: int(target[column]))


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

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open the official development training part; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "lfw-py")
        with _one_sentence(self.name, root, _advice(download)):
            people = datasets.LFWPeople(str(root), split="train", image_set="deepfunneled", download=download)
            return _decoded_pools(people, None, self.size, len(people.class_to_idx))


@dataclass(frozen=True, kw_only=True)
class Pcam:
    """PatchCamelyon: 262,144 + 32,768 histology patches, 96×96 colour, 2 classes. Needs h5py.

    Attributes:
        size: side in pixels.

    Source: Veeling et al. 2018; torchvision `PCAM`.
    """

    name: ClassVar[str] = "pcam"

    size: int = 96

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open both parts; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "pcam/camelyonpatch_level_2_split_*.h5")
        with _one_sentence(self.name, root, _advice(download)):
            parts = [datasets.PCAM(str(root), split=part, download=download) for part in ("train", "test")]
            return _decoded_pools(parts[0], parts[1], self.size, 2)


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
        if self.size < 1:
            raise ValueError(f"size must be a whole number of pixels >= 1, got {self.size}")

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        """Open all pictures; see `DatasetSpec.open`."""
        from torchvision import datasets

        root = _need_root(self.name, root, "one folder of pictures a class")
        with _one_sentence(self.name, root, "lay the pictures out as DATA_ROOT/<class>/<picture>"):
            pictures = datasets.ImageFolder(str(root))
            return _decoded_pools(pictures, None, self.size, len(pictures.classes))


def _array_pools(part: Callable[[bool], Any], classes: int) -> Pools:
    """Pools of a dataset that torchvision holds in memory as `.data` and `.targets`."""
    train, test = part(True), part(False)
    return Pools(
        train=ArrayPool(images=np.asarray(train.data), labels=np.asarray(train.targets)),
        test=ArrayPool(images=np.asarray(test.data), labels=np.asarray(test.targets), first_id=TEST_ID_OFFSET),
        classes=classes,
    )


def _decoded_pools(train: Any, test: Any, size: int, classes: int, label: Callable[[Any], int] = int) -> Pools:
    """Pools of a dataset that torchvision decodes picture by picture."""
    return Pools(
        train=DecodedPool(dataset=train, size=size, label=label),
        test=None if test is None else DecodedPool(dataset=test, size=size, label=label, first_id=TEST_ID_OFFSET),
        classes=classes,
    )


def _open_idx(name: str, dataset: Any, root: Path | None, download: bool) -> Pools:
    """MNIST and its relatives: four idx files under <root>/<class name>/raw."""
    folder = f"{dataset.__name__}/raw"
    root = _need_root(name, root, folder)
    advice = _advice(download)
    with _one_sentence(name, root, advice):
        if download:
            dataset(str(root), download=True)
        files = [(Path(archive).stem, None) for archive, _ in dataset.resources]
        _check_files(name, root / folder, files, advice)
        return _array_pools(lambda train: dataset(str(root), train=train), classes=10)
