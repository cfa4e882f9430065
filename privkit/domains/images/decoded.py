"""Picture files, decoded when a batch needs them: cut to the centre square, resampled, with values in [0, 1]."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from privkit.domains.base import TEST_ID_OFFSET, VALIDATION_ID_OFFSET, Batch, Pools
from privkit.domains.files import reason
from privkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
"""Pillow's modes of more than 8 bits; Pillow's own conversion to color clips them at 255."""
_SIXTEEN_BITS = 65_535


class _NotOnScale(DataError):
    """Raised for a picture whose values do not fit the scale of its Pillow mode."""


def _unit_pixels(picture: Image, size: int, channels: int) -> NDArray[np.float32]:
    """The centre square of a picture, resampled to float32 [size, size, channels] in [0, 1]; channels = 1 means grey.

    16-bit grey is divided by 65535. 32-bit integers count as 16-bit grey, because Pillow opens some 16-bit files as
    32-bit integers. Floats are taken unchanged. Raises `_NotOnScale` for values beyond the scale.
    """
    from PIL import Image, ImageOps

    if picture.mode not in _DEEP:
        plain = ImageOps.fit(picture.convert("L" if channels == 1 else "RGB"), (size, size))
        return np.asarray(plain, dtype=np.float32).reshape(size, size, channels) / np.float32(255)
    values = np.asarray(picture).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    most = 1 if picture.mode == "F" else _SIXTEEN_BITS
    if not 0 <= low <= high <= most:  # written so that NaN fails
        kind = "floats in [0, 1]" if picture.mode == "F" else "16-bit grey, 0 to 65535"
        raise _NotOnScale(
            f"it holds values from {low:g} to {high:g}, and a picture of mode {picture.mode} must hold {kind}; save it "
            "as 8-bit or 16-bit PNG"
        )
    grey = ImageOps.fit(Image.fromarray((values / most).astype(np.float32)), (size, size))
    square = np.asarray(grey).clip(0, 1)  # resampling may overshoot
    return np.repeat(square[..., None], channels, axis=2)


Size = Annotated[int, Ge(1), Le(1024)]
"""Side in pixels. At the largest side, a single message of 50 pictures takes more than half a gigabyte."""


@dataclass(frozen=True, kw_only=True)
class _DecodedPool:
    """A `Pool` over a torchvision dataset: a picture is decoded when taken, cut to the centre square, and resampled."""

    dataset: Any  # gives (PIL image, target) by index
    labels: NDArray[np.int64]  # the class number of each picture, [N]; or [N, L] of 0 and 1, several labels per picture
    size: int  # side in pixels
    channels: int  # 3 for color, 1 for grey
    file: Callable[[Any, int], object]  # (dataset, index) -> the picture's file, for errors
    first_id: int = 0  # id of the first picture

    def __len__(self) -> int:
        return len(self.dataset)

    def targets(self) -> NDArray[np.int64]:
        return self.labels

    def take(self, rows: NDArray[np.int64]) -> Batch:
        from PIL import Image

        images = np.empty((len(rows), self.channels, self.size, self.size), dtype=np.float32)
        for place, row in enumerate(rows):
            try:
                with warnings.catch_warnings():  # Pillow only warns of a picture that unpacks to gigabytes
                    warnings.simplefilter("error", Image.DecompressionBombWarning)
                    picture, _ = self.dataset[int(row)]
                self._check_sides(row, picture.size)
                images[place] = _unit_pixels(picture, self.size, self.channels).transpose(2, 0, 1)
            except MemoryError:
                raise
            except _NotOnScale as error:
                raise DataError(f"picture {row} ({self.file(self.dataset, int(row))}): {error}") from None
            except DataError:
                raise
            except Exception as error:  # a decoder raises nearly anything on a damaged file
                file = self.file(self.dataset, int(row))
                raise DataError(f"picture {row} ({file}) cannot be decoded ({reason(error)}); replace it") from error
        return Batch(
            x=torch.from_numpy(images),
            y=torch.from_numpy(self.labels[rows]),
            ids=torch.from_numpy(rows + self.first_id),
        )

    def _check_sides(self, row: np.int64, sides: tuple[int, int]) -> None:
        """Refuse a picture that would be enlarged more than twofold: interpolated pixels are easy to recover."""
        if 2 * min(sides) < self.size:
            raise DataError(
                f"picture {row} ({self.file(self.dataset, int(row))}) is {sides[0]}×{sides[1]} pixels, too small for "
                f"size={self.size}; take it out, or set size to at most {2 * min(sides)}"
            )


def open_picture(path: str) -> Any:
    """Decode a picture file with its own channels and bits; torchvision's loader would convert it to 8-bit color."""
    from PIL import Image

    with open(path, "rb") as file:
        picture = Image.open(file)
        picture.load()
    return picture


def decoded_pools(
    train: Any,
    test: Any,
    *,
    size: int,
    classes: int,
    file: Callable[[Any, int], object],
    labels: Callable[[Any], object] = lambda dataset: dataset.targets,
    validation: Any = None,
    grey: bool = False,
) -> Pools:
    """Build the parts of a dataset from torchvision datasets, which give (PIL image, target) for an index.

    `file` maps a part and an index to the picture's file, for error messages. `labels` maps a part to its labels, [N],
    or 0 and 1 in [N, L]. With `grey`, pictures are converted to one channel, the brightness.
    """
    channels = 1 if grey else 3

    def pool(dataset: Any, first_id: int) -> _DecodedPool:
        labelled = np.asarray(labels(dataset), dtype=np.int64)
        if len(labelled) != len(dataset):
            raise ValueError(f"{len(dataset)} pictures but {len(labelled)} labels")
        return _DecodedPool(
            dataset=dataset, labels=labelled, size=size, channels=channels, file=file, first_id=first_id
        )

    return Pools(
        train=pool(train, 0),
        test=None if test is None else pool(test, TEST_ID_OFFSET),
        validation=None if validation is None else pool(validation, VALIDATION_ID_OFFSET),
        classes=classes,
    )
