"""A decoded picture as numbers in [0, 1]: 16-bit grey by its own scale, everything else by 8-bit color."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
"""Pillow's modes of more than 8 bits; its own conversion to color clips them at 255."""
_SIXTEEN_BITS = 65_535


class NotOnScale(DataError):
    """A picture whose values do not fit the scale of its mode."""


def unit_pixels(picture: Image, size: int) -> NDArray[np.float32]:
    """The centre square of a picture, resampled to float32 [size, size, 3] in [0, 1].

    16-bit grey is divided by 65535. 32-bit integers are read as 16-bit grey, which is how Pillow opens such files;
    floats are taken as they are.

    Raises:
        NotOnScale: if values do not fit that scale, with the file format that does.

    >>> from PIL import Image
    >>> grey = Image.fromarray(np.full((4, 4), 32768, dtype=np.uint16))
    >>> unit_pixels(grey, 2)[0, 0].round(3).tolist()
    [0.5, 0.5, 0.5]
    """
    from PIL import Image, ImageOps

    if picture.mode not in _DEEP:
        color = ImageOps.fit(picture.convert("RGB"), (size, size))
        return np.asarray(color, dtype=np.float32) / np.float32(255)
    values = np.asarray(picture).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    most = 1 if picture.mode == "F" else _SIXTEEN_BITS
    if not 0 <= low <= high <= most:  # written so that NaN fails
        kind = "floats in [0, 1]" if picture.mode == "F" else "16-bit grey, 0 to 65535"
        raise NotOnScale(
            f"it holds values from {low:g} to {high:g}, and a picture of mode {picture.mode} must hold {kind}; save it "
            "as 8-bit or 16-bit PNG"
        )
    grey = ImageOps.fit(Image.fromarray((values / most).astype(np.float32)), (size, size))
    square = np.asarray(grey).clip(0, 1)  # resampling may overshoot
    return np.repeat(square[..., None], 3, axis=2)
