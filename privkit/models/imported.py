"""A user's own segments, named by import path: two modules, or a function that makes both."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import PrivkitError, UsageError, one_line
from privkit.files.import_path import imported
from privkit.models.base import SplitModel
from privkit.models.places import told_places


class _Imported(ABC):
    """Segments of a user's own.

    They are called with those of the keywords `domain`, `image_shape` (for images), `classes` and `positions` that they
    take. Modules are looked up on the Python path and in the current folder. If `positions` is False, a lower segment
    whose tokens tell their places is refused, since a shuffle would not hide their order (`privkit.models.places`).
    """

    domain: ClassVar[str] = "any"

    @property
    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """What is imported; the first one makes the lower segment."""

    @abstractmethod
    def segments(self, offered: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
        """The lower and the upper segment, made with those of the keywords that they take."""

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
                f"{self.paths[0]} lets tokens tell their places, so that a shuffle would not hide their order: take "
                "the keyword `positions`, embed no position where it is False, and mix no neighboring patches; or name "
                "no defense that shuffles"
            )
        return SplitModel(lower=lower, upper=upper, hides_places=hidden, other_tokens=others)


@dataclass(frozen=True, kw_only=True)
class ImportedPair(_Imported):
    """`lower:upper`, two dotted import paths of nn.Module classes or of functions that return one.

    Attributes:
        lower: for example "mynets.client.Lower".
        upper: for example "mynets.server.Upper".

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
    """`module:function`, the import path of a function that returns both segments, (lower, upper).

    Attributes:
        function: for example "mynets:segments".

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
