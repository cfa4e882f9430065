"""ImageNet, from the official archives or the folders that they unpack to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privkit.constraints import Checked
from privkit.domains.base import Pools
from privkit.domains.images.decoded import Size, decoded_pools, opened
from privkit.domains.official import check_files, need_root, one_sentence
from privkit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ImageNet(Checked):
    """ImageNet of 2012: 1,281,167 + 50,000 pictures of 1,000 classes; the validation part is the test part.

    It reads train/<WordNet id>/ and val/<WordNet id>/. If a folder is not there, torchvision unpacks its official
    archive into the data root, for which it needs the devkit's archive, too. Classes are numbered in the order of
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
                    datasets.ImageNet(str(root), split=part)  # unpacks, and compares the official MD5 before
                if (packed := next((root / part).glob("*.tar"), None)) is not None:
                    raise DataError(f"{self.name}: {packed} is not unpacked; delete {root / part} to unpack it again")
            train, test = (datasets.ImageFolder(str(root / part), loader=opened) for part in ("train", "val"))
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
