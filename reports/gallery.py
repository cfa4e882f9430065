"""Pictures of images and guesses at them. A strip is a PNG of several images; a block has strips of the same
originals."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from privkit.reports.schema import Row
from privkit.reports.strongest import metric_of, strongest
from privkit.reports.tables import interval
from privkit.shared.grouped import grouped
from privkit.shared.measures import floor_title, likeness, measure

_Pixels = NDArray[np.uint8]

_ROOM = 5_500_000  # bytes of all pixels on one page, before compression
_LARGEST, _SMALLEST = 128, 16  # largest and smallest longer side of a shown image in pixels


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """The first attacked images of one attack on one defense with one seed, and the guesses at them."""

    truth: _Pixels  # the k images, uint8 [k, H, W, C]
    guess: _Pixels  # the guesses at these images, uint8 [k, H, W, C]
    floors: Mapping[str, _Pixels] = field(default_factory=dict)  # name of a guess without the release -> its k images


@dataclass(frozen=True, kw_only=True)
class _Strip:
    name: str  # the defense, "original", or the name of a floor (a guess without the release)
    attack: str = ""  # the attack's name; empty for originals and floors
    cell: str = ""  # id of the result row; empty for originals and floors
    found: str = ""  # the measured metrics as text
    columns: int  # number of images
    source: str  # the picture as a data URI


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Guesses at the same originals: by each defense's strongest attack, and by the other attacks."""

    seed: int  # seed of the rows
    above: tuple[_Strip, ...]  # strips of the originals, then of the floors
    strongest: tuple[_Strip, ...]
    others: tuple[_Strip, ...]


@dataclass(frozen=True, kw_only=True)
class _Gallery:
    blocks: tuple[_Block, ...]  # one block for each seed and set of attacked images
    side: int = 0  # longer side in pixels after reduction; 0 if all images are shown at full size
    left_out: int = 0  # number of strips of weaker attacks that did not fit on the page


def gallery(rows: Sequence[Row], pictures: Mapping[str, Pictures]) -> _Gallery:
    """The pictures of a run in blocks; images are reduced, and weaker attacks left out, to keep the page small."""
    shown = [row for row in rows if row.cell in pictures]
    if not shown:
        return _Gallery(blocks=())
    best = {found.row.cell for found in strongest(shown)}
    channels = max(pictures[row.cell].guess.shape[-1] for row in shown)
    images = max(len(pictures[row.cell].guess) for row in shown)
    room = _ROOM // (images * channels * _SMALLEST**2)
    kept = {row.cell for row in sorted(shown, key=lambda row: row.cell not in best)[:room]}
    shown, left_out = [row for row in shown if row.cell in kept], len(shown) - len(kept)
    side = max(_SMALLEST, min(_LARGEST, isqrt(_ROOM // (images * channels * len(shown)))))
    groups = grouped(shown, lambda row: (row.seed, pictures[row.cell].truth.tobytes()))
    blocks = tuple(_block(group, pictures, best, side) for group in groups.values())
    longest = max(max(pictures[row.cell].truth.shape[1:3]) for row in shown)
    return _Gallery(blocks=blocks, side=side if longest > side else 0, left_out=left_out)


def _block(rows: Sequence[Row], pictures: Mapping[str, Pictures], best: set[str], side: int) -> _Block:
    def made(images: _Pixels, **words: str) -> _Strip:
        return _Strip(columns=len(images), source=data_uri(strip([images], side)), **words)

    floors = {name: images for row in rows for name, images in pictures[row.cell].floors.items()}
    above = [made(pictures[rows[0].cell].truth, name="original")]
    above += [made(images, name=floor_title(name)) for name, images in floors.items()]
    strongest, others = list[_Strip](), list[_Strip]()
    for row in rows:
        words = {"name": row.defense, "attack": row.attack, "cell": row.cell, "found": _found(row)}
        (strongest if row.cell in best else others).append(made(pictures[row.cell].guess, **words))
    return _Block(seed=rows[0].seed, above=tuple(above), strongest=tuple(strongest), others=tuple(others))


def _found(row: Row) -> str:
    own = row.recovered.get("unaligned", {})
    names = dict.fromkeys(filter(None, (likeness(list(own)), metric_of(row))))
    return ", ".join(f"{measure(name).title} {interval(own[name], measure(name).digits)}" for name in names)


def strip(lines: Sequence[_Pixels], side: int = _LARGEST) -> bytes:
    """Join lines of images, each uint8 [k, H, W, C] of one shape, to a PNG, each image at most `side` pixels long."""
    from PIL import Image

    pixels = np.concatenate([np.concatenate(list(images), axis=1) for images in lines])
    picture = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
    if (longest := max(lines[0].shape[1:3])) > side:
        size = (max(1, picture.width * side // longest), max(1, picture.height * side // longest))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=False)
    return buffer.getvalue()


def data_uri(data: bytes, kind: str = "image/png") -> str:
    """A file's content as a data URI, for a self-contained page."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
