"""Lower segments for control experiments: they output the record itself, so a release contains all of it."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.patches import Geometry, patchify

_CODE = 8  # numbers of the vector that stands for a cell of a table
_MARK = 32  # numbers of each mark of a token; with 8, a jigsaw of a hundred steps did not find whose a token is


def identity_lower(
    release: Tensor, image_shape: tuple[int, ...], columns: tuple[int, ...] = (), *, as_tokens: bool = False
) -> nn.Module:
    """A lower segment for control experiments: it outputs the record itself, in a shape like that of the real release.

    Images become patch tokens, feature maps or vectors, as the release is. A token sequence becomes its numbers. In
    table rows, each category is replaced by a code (a fixed random vector), since its number means nothing.

    Args:
        release: a release of the real clients, with N rows: tokens [N, T, D], feature maps [N, C, h, w] or vectors [N,
            D].
        image_shape: (C, H, W) for images; (T,) for sequences of T tokens and table rows of T columns.
        columns: for table rows, the number of categories of each column, 0 for a dense (numeric) one; else empty.
        as_tokens: whether the image's patches are output as tokens although the release is a feature map, for defenses
            that need tokens.

    >>> identity_lower(torch.zeros(1, 16, 9), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 16, 4])
    >>> identity_lower(torch.zeros(1, 9, 4, 4), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 4, 4, 4])
    >>> identity_lower(torch.zeros(1, 16, 5, 5), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
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
        return _Patches(patch) if as_tokens or release.ndim == 3 else nn.PixelUnshuffle(patch)
    except NotApplicable:
        if release.ndim == 4:
            return nn.Identity()
    shorter = min(height, width)
    sides = [p for p in range(1, shorter + 1) if height % p == 0 == width % p]
    return _Patches(max(p for p in sides if p * p <= shorter))


class _Patches(nn.Module):
    """A lower segment that outputs the image's own patches; a white-box attack gets it in control experiments."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> patches [N, T, p·p·C]."""
        return patchify(images, self.patch)


class _Numbers(nn.Module):
    """A lower segment that outputs the numbers of a token sequence or table row themselves.

    Args:
        by_place: whether each number becomes a vector, for clients that send one token for each place of the sequence.
            Integers (ids of words) then become codes of 16 numbers, since neighboring ids have no similar meaning.
    """

    def __init__(self, by_place: bool) -> None:
        super().__init__()
        self.by_place = by_place
        # not drawn in `forward`: there, each client of a stacked call would draw another code
        self.angles = torch.pi * torch.rand(2 * _CODE, generator=Generator().manual_seed(0))

    def forward(self, records: Tensor) -> Tensor:
        """Numbers [N, T] -> tokens [N, T, 1] (ids: [N, T, 16]), or [N, T]."""
        numbers = records.float()
        if not self.by_place or records.is_floating_point():
            return numbers.unsqueeze(2) if self.by_place else numbers
        return torch.cos(numbers.unsqueeze(2) * self.angles.to(records.device))


class _Codes(nn.Module):
    """A lower segment that outputs each field of a table row as a vector of 8 numbers.

    A category's vector is its random code; a number x in a dense (numeric) column becomes the column's code times 1 +
    x. A second code of the column is added to both.

    Args:
        columns: number of categories of each column, 0 for a dense one.
        by_place: whether the output is one token for each column, instead of one vector for the row.
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
        """Table rows [N, C] -> codes [N, C, 8] or [N, C·8]."""
        dense, first, codes = (part.to(records.device) for part in (self.dense, self.first, self.codes))
        ids = torch.where(dense, 0, records).long()
        scale = torch.where(dense, 1 + records, 1.0).unsqueeze(2)
        cells = codes[first + ids] * scale + self.columns.to(records.device)
        return cells if self.by_place else cells.flatten(1)


class Widened(nn.Module):
    """A lower segment whose tokens are widened by repeating their numbers, for a defense that needs this width.

    Args:
        lower: segment that outputs N rows of T tokens, [N, T, d].
        width: output width D ≥ d.

    >>> Widened(nn.Identity(), 3)(torch.tensor([[[1.0, 2.0]]])).tolist()
    [[[1.0, 2.0, 1.0]]]
    """

    def __init__(self, lower: nn.Module, width: int) -> None:
        super().__init__()
        self.lower, self.width = lower, width

    def forward(self, records: Tensor) -> Tensor:
        """Records [N, ...] -> tokens [N, T, D]."""
        tokens: Tensor = self.lower(records)
        return tokens[..., torch.arange(self.width, device=tokens.device) % tokens.shape[-1]]


class Scaled(nn.Module):
    """A lower segment whose output is multiplied by `factor`, for a defense that expects numbers within bounds.

    >>> Scaled(nn.Identity(), 0.5)(torch.tensor([1.0, 4.0])).tolist()
    [0.5, 2.0]
    """

    def __init__(self, lower: nn.Module, factor: float) -> None:
        super().__init__()
        self.lower, self.factor = lower, factor

    def forward(self, records: Tensor) -> Tensor:
        """The output of `lower`, multiplied; the same shape."""
        numbers: Tensor = self.factor * self.lower(records)
        return numbers


class Marked(nn.Module):
    """A lower segment for control experiments whose tokens reveal their record, and optionally their place.

    Each token is extended by a random projection of the mean of its record's tokens. Tokens after attention reveal
    their record in a similar way. So an attack that sorts tokens by record must succeed.

    Args:
        lower: segment that outputs N rows of T tokens, [N, T, D].
        tokens: number T of tokens.
        width: width D of a token.
        places: whether each token is also extended by a code of its place, as with a position embedding.

    >>> Marked(nn.Identity(), 9, 4, places=True)(torch.rand(2, 9, 4)).shape
    torch.Size([2, 9, 68])
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
