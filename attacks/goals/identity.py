"""Lower segments for control experiments: they output the record itself, so a release contains all of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.patches import Geometry, patchify

_CODE = 8  # length of the vector that stands for a cell of a table
_MARK = 32  # length of each mark of a token; with 8, `jigsaw` did not find a token's record in a hundred steps


def identity_lower(
    release: Tensor, image_shape: tuple[int, ...], columns: tuple[int, ...] = (), *, as_tokens: bool = False
) -> nn.Module:
    """Build a lower segment for control experiments that outputs the record itself, in a shape like the real release's.

    Images become patch tokens, feature maps or vectors, like the release; with `as_tokens`, they become patch tokens
    instead of feature maps. A token sequence becomes its numbers. In table rows (`columns` as in `ImageObservation`),
    each category is replaced by a code (a fixed random vector), since the numbering of categories has no meaning.
    """
    if columns:
        return _Codes(columns, by_place=release.ndim == 3)
    if len(image_shape) == 1:
        return _Numbers(by_place=release.ndim == 3 and release.shape[1] == image_shape[0])
    if release.ndim == 2 or len(image_shape) != 3:
        return nn.Flatten()
    channels, height, width = image_shape
    try:
        patch = Geometry.of(release, (channels, height, width)).patch
        return _patches(patch) if as_tokens or release.ndim == 3 else nn.PixelUnshuffle(patch)
    except NotApplicable:
        if release.ndim == 4:
            return nn.Identity()
    shorter = min(height, width)
    sides = [p for p in range(1, shorter + 1) if height % p == 0 == width % p]
    return _patches(max(p for p in sides if p * p <= shorter))


def _patches(side: int) -> nn.Module:
    return Then(nn.Identity(), lambda images: patchify(images, side))


class _Numbers(nn.Module):
    """A lower segment that outputs the numbers of a record or, with `by_place`, a vector for each number.

    With `by_place`, integers become codes of 16 numbers, since words with neighboring ids can have unrelated meanings.
    """

    def __init__(self, by_place: bool) -> None:
        super().__init__()
        self.by_place = by_place
        # not drawn in `forward`: there, each client of a stacked call would draw another code
        self.angles = torch.pi * torch.rand(2 * _CODE, generator=Generator().manual_seed(0))

    def forward(self, records: Tensor) -> Tensor:
        numbers = records.float()
        if not self.by_place or records.is_floating_point():
            return numbers.unsqueeze(2) if self.by_place else numbers
        return torch.cos(numbers.unsqueeze(2) * self.angles.to(records.device))


class _Codes(nn.Module):
    """A lower segment that outputs a vector of 8 numbers for each field of a table row, or joins these into one vector.

    A category's vector is its random code; a number x in a dense (numeric) column becomes the column's code times 1 +
    x. In both cases, a second code of the column is added.
    """

    def __init__(self, columns: tuple[int, ...], by_place: bool) -> None:
        super().__init__()
        self.by_place = by_place
        self.dense = torch.tensor([size == 0 for size in columns])
        sizes = torch.tensor(columns).clamp_min(1)
        self.first = sizes.cumsum(0) - sizes
        draws = Generator().manual_seed(0)
        self.codes = torch.randn(int(sizes.sum()), _CODE, generator=draws)
        self.columns = torch.randn(len(columns), _CODE, generator=draws)

    def forward(self, records: Tensor) -> Tensor:
        dense, first, codes = (part.to(records.device) for part in (self.dense, self.first, self.codes))
        ids = torch.where(dense, 0, records).long()
        scale = torch.where(dense, 1 + records, 1.0).unsqueeze(2)
        cells = codes[first + ids] * scale + self.columns.to(records.device)
        return cells if self.by_place else cells.flatten(1)


class Then(nn.Module):
    """A lower segment followed by a function, for a defense that needs tokens of a given width or bounded numbers."""

    def __init__(self, lower: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lower, self.change = lower, change

    def forward(self, records: Tensor) -> Tensor:
        return self.change(self.lower(records))


class Marked(nn.Module):
    """A lower segment for control experiments: each token [N, T, D] reveals its record and, with `places`, its place.

    Each token is extended by a random projection of the mean of its record's tokens, so an attack that sorts tokens by
    record must succeed. With `places`, a code of the token's place follows, like a position embedding.
    """

    def __init__(self, lower: nn.Module, tokens: int, width: int, *, places: bool) -> None:
        super().__init__()
        self.lower, self.places = lower, places
        draws = Generator().manual_seed(0)  # not in `forward`: each client of a stacked call would draw other marks
        self.common, self.codes = (torch.randn(size, _MARK, generator=draws) for size in (width, tokens))

    def forward(self, records: Tensor) -> Tensor:
        """Records [N, ...] -> tokens [N, T, D + 32] or, with places, [N, T, D + 64]."""
        tokens: Tensor = self.lower(records)
        marks = [(tokens.mean(1, keepdim=True) @ self.common.to(tokens)).expand(-1, tokens.shape[1], -1)]
        if self.places:
            marks.append(self.codes.to(tokens).expand(len(tokens), -1, -1))
        return torch.cat([tokens, *marks], 2)
