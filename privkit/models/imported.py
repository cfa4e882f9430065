"""A user's own segments by import path, and a test whether a segment's tokens reveal their positions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tokens.domain import Tokens
from privkit.errors import PrivkitError, UsageError, one_line
from privkit.files.import_path import imported
from privkit.models.base import SplitModel

# standard deviation of noise that is added to trained weights, since a position embedding may still be zero
_NOISE = 0.1
# largest distance of equal tokens, as a share of a typical distance; rounding is a hundred times smaller
_TOLERANCE = 1e-3
_OTHERS = 8  # largest number of tokens that represent no patch: class token, distillation token, registers


def hides_places(lower: nn.Module, domain: Domain) -> bool | None:
    """Whether tokens hide their positions in the image or sequence; None if unknown. The test is `told_places`."""
    return told_places(lower, domain)[0]


@torch.no_grad()
def told_places(lower: nn.Module, domain: Domain, batch: int = 3) -> tuple[bool | None, int]:
    """Test whether permuting an image's patches, or a sequence's tokens, only permutes a segment's output tokens.

    Only then does a shuffle of the output hide the order, since no token reveals its own position. Output tokens may
    represent the patches in any order; a token that represents no patch, such as a class token, must keep its position.
    The test uses the finest grid of patches that does not exceed the number of tokens. It fails for a position
    embedding, and for overlapping patches, which reveal their neighbors. A copy of the segment runs on three orders of
    one random record, repeated to `batch` ≥ 3 records; a segment with random layers advances the global generator.

    Returns whether positions are hidden, and the number of tokens that represent no patch (0 unless positions are
    hidden). The first value is None if no test is possible: the tokens match no grid of patches and no sequence; the
    record is a table row; the segment is random; or it cannot be copied or run (training reports this error). The
    first value is also None, not False, if the test fails and some tokens represent no patch; and None, not True, if
    more tokens than these are equal in all orders (in a sequence, only if all tokens are).

    >>> told_places(nn.Sequential(nn.Flatten(2), nn.ZeroPad1d((1, 0)), nn.Unflatten(2, (5, 1)), nn.Flatten(0, 1)),
    ...     Images(shape=(1, 2, 2)))  # a pixel is a token, and one of zeros is in front
    (True, 1)
    """
    draws = Generator().manual_seed(0)
    probe = domain.random(1, draws)
    try:
        segment = deepcopy(lower).eval()
        grid = _grid(segment(probe), domain)
        if grid is None:
            return None, 0
        for weight in segment.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype), alpha=_NOISE)
        for name, moment in segment.named_buffers():
            if name.endswith(("running_mean", "running_var")):  # trained statistics can differ by position
                moment.add_(torch.rand(moment.shape, generator=draws, dtype=moment.dtype), alpha=_NOISE)
        places = prod(grid)
        orders = [torch.arange(places), torch.arange(places).roll(1), torch.randperm(places, generator=draws)]
        records = torch.cat([_permuted(probe, grid, order) for order in orders])
        records = records[torch.arange(max(batch, 3)) % 3]
        tokens, again = segment(records), segment(records)
    except Exception:
        return None, 0
    if not (tokens.isfinite().all() and torch.equal(tokens, again)):
        return None, 0
    apart, sequence = torch.pdist(tokens[0]), isinstance(domain, Tokens)
    limit = _TOLERANCE * (apart.max() if sequence else apart.median())  # a sequence may repeat most of its tokens
    distances = torch.cdist(tokens[1:], tokens[:1], compute_mode="donot_use_mm_for_euclid_dist")
    same = bool((distances.amin(1) <= limit).all() and (distances.amin(2) <= limit).all())
    others = tokens.shape[1] - places
    if not same:
        return (None if others else False), 0
    stayed = (distances.diagonal(dim1=1, dim2=2) <= limit).all(0).sum()
    moved = stayed < places if sequence else stayed == others  # a word may be the same in another place
    return (True, others) if moved else (None, 0)


def _grid(tokens: Tensor, domain: Domain) -> tuple[int, ...] | None:
    """Rows and columns of the patches that the tokens may represent, or a sequence's length; None if nothing fits."""
    if tokens.ndim != 3:
        return None
    count = tokens.shape[1]
    if isinstance(domain, Tokens):
        return (count,) if count == domain.length > 1 else None
    if not isinstance(domain, Images):
        return None
    _, height, width = domain.shape
    fit = [
        (rows, columns)
        for rows in range(1, min(height, count) + 1)
        for columns in range(1, min(width, count // rows) + 1)
        if not height % rows and not width % columns and max(2, count - _OTHERS) <= rows * columns
    ]
    oblong = {grid: (abs(height / grid[0] - width / grid[1]), abs(grid[0] - grid[1])) for grid in fit}
    return min(fit, key=lambda grid: (-prod(grid), oblong[grid]), default=None)


def _permuted(record: Tensor, grid: tuple[int, ...], order: Tensor) -> Tensor:
    if record.ndim == 2:
        return record[:, order]
    (_, c, h, w), (rows, columns) = record.shape, grid
    patches = record.view(c, rows, h // rows, columns, w // columns).permute(1, 3, 0, 2, 4).flatten(0, 1)[order]
    moved: Tensor = patches.unflatten(0, (rows, columns))
    return moved.permute(2, 0, 3, 1, 4).reshape(1, c, h, w)


class _Imported(ABC):
    """Base class of models whose segments a user wrote.

    Of the keywords `domain`, `image_shape` (for images), `classes` and `positions`, the user's functions get those that
    they accept. Modules are looked up on the Python path and in the current folder. If `positions` is False, a lower
    segment whose tokens reveal their positions (`told_places`) is refused, since a shuffle would not hide their order.
    """

    domain: ClassVar[str] = "any"

    @property
    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """The import paths; the first one builds the lower segment."""

    @abstractmethod
    def segments(self, offered: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
        """Build the lower and the upper segment; each gets those of the keywords `offered` that it accepts."""

    def imports(self) -> set[str]:
        places = {path.replace(":", ".").rpartition(".")[0] for path in self.paths}
        return places | {str(getattr(_import(path), "__module__", "")) for path in self.paths} - {""}

    def build(self, domain: Domain, classes: int, *, positions: bool, seed: int) -> SplitModel:
        offered = {"domain": domain, "classes": classes, "positions": positions}
        if isinstance(domain, Images):
            offered["image_shape"] = domain.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            lower, upper = self.segments(offered)
            hidden, others = (None, 0) if positions else told_places(lower, domain)
        if hidden is False:
            raise UsageError(
                f"{self.paths[0]}'s tokens reveal their places, so a shuffle would not hide their order: accept the "
                f"keyword `positions`, embed no position if it is False, and mix no neighboring patches; or choose a "
                f"defense that does not shuffle"
            )
        return SplitModel(lower=lower, upper=upper, hides_places=hidden, other_tokens=others)


@dataclass(frozen=True, kw_only=True)
class ImportedPair(_Imported):
    """A user's model from two import paths, `lower:upper`, of nn.Module classes or of functions that return modules.

    Attributes:
        lower: import path of the client's segment, for example "mynets.client.Lower".
        upper: import path of the server's segment, for example "mynets.server.Upper".

    Source: the user's.

    >>> pair = ImportedPair(lower="torch.nn.Identity", upper="torch.nn.Flatten")
    >>> pair.build(Images(shape=(1, 4, 4)), 16, positions=True, seed=0).upper
    Flatten(start_dim=1, end_dim=-1)
    """

    lower: str
    upper: str

    @property
    def paths(self) -> tuple[str, ...]:
        return self.lower, self.upper

    def segments(self, offered: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
        return _module(self.lower, offered), _module(self.upper, offered)


@dataclass(frozen=True, kw_only=True)
class FromFunction(_Imported):
    """A user's model from the import path `module:function` of a function that returns the segments (lower, upper).

    Attributes:
        function: the import path, for example "mynets:segments".

    Source: the user's.
    """

    function: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.function,)

    def segments(self, offered: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
        made = _called(self.function, offered)
        if not (isinstance(made, tuple) and [isinstance(part, nn.Module) for part in made] == [True, True]):
            raise UsageError(
                f"{self.function} must return two torch.nn.Modules, the lower and the upper segment, got "
                f"{type(made).__name__}"
            )
        return made


def _module(path: str, offered: dict[str, Any]) -> nn.Module:
    module = _called(path, offered)
    if not isinstance(module, nn.Module):
        raise UsageError(f"{path} must give a torch.nn.Module, got {type(module).__name__}")
    return module


def _called(path: str, offered: dict[str, Any]) -> Any:
    factory = _import(path)
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-ins have no signature
        parameters = {}  # type: ignore[assignment]
    try:
        return factory(**{name: value for name, value in offered.items() if name in parameters})
    except PrivkitError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot build the segment {path}: {one_line(error, None)}") from error


def _import(path: str) -> Callable[..., Any]:
    target = imported("the segment", path)
    if not callable(target):
        raise UsageError(f"{path} must be an nn.Module class or a function that returns a module")
    return target  # type: ignore[no-any-return]
