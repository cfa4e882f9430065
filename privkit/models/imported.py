"""A user's own pair of segments, named by import path."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import nn

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import PrivkitError, UsageError, one_line
from privkit.models.base import SplitModel
from privkit.models.places import hides_places


@dataclass(frozen=True, kw_only=True)
class ImportedPair:
    """`lower:upper`, two dotted import paths of nn.Module classes or of functions that return one.

    Each is called with those of the keywords `domain`, `image_shape` (for images), `classes` and `positions` that it
    takes. Modules are looked up on the Python path and in the current folder. If `positions` is False, a lower segment
    whose tokens tell their places is refused, since a shuffle would not hide their order (`privkit.models.places`).

    Attributes:
        lower: for example "mynets.client.Lower".
        upper: for example "mynets.server.Upper".

    Source: the user's.

    >>> pair = ImportedPair(lower="torch.nn.Identity", upper="torch.nn.Flatten")
    >>> pair.build(Images(shape=(1, 4, 4)), 16, positions=True, seed=0).upper
    Flatten(start_dim=1, end_dim=-1)
    """

    domain: ClassVar[str] = "any"

    lower: str
    upper: str

    def imports(self) -> set[str]:
        """Import both segments and return the names of their modules."""
        places = {path.rpartition(".")[0] for path in (self.lower, self.upper)}
        return places | {str(getattr(_import(path), "__module__", "")) for path in (self.lower, self.upper)} - {""}

    def build(self, domain: Domain, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Import and build both segments; see `ModelSpec.build`."""
        offered = {"domain": domain, "classes": classes, "positions": positions}
        if isinstance(domain, Images):
            offered["image_shape"] = domain.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            lower, upper = _make(self.lower, offered), _make(self.upper, offered)
            hidden = None if positions else hides_places(lower, domain)
        if hidden is False:
            raise UsageError(
                f"{self.lower} lets tokens tell their places, so that a shuffle would not hide their order: take the "
                "keyword `positions`, embed no position where it is False, and mix no neighboring patches; or name no "
                "defense that shuffles"
            )
        return SplitModel(lower=lower, upper=upper, hides_places=hidden)


def _make(path: str, offered: dict[str, Any]) -> nn.Module:
    """Import one segment and call it with what it takes."""
    factory = _import(path)
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-ins have no signature
        parameters = {}  # type: ignore[assignment]
    try:
        module = factory(**{name: value for name, value in offered.items() if name in parameters})
    except PrivkitError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot build the segment {path}: {one_line(error, None)}") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"{path} must give a torch.nn.Module, got {type(module).__name__}")
    return module


def _import(path: str) -> Callable[..., Any]:
    """The object behind a dotted path."""
    module, _, name = path.rpartition(".")
    if not module:
        raise UsageError(f"{path!r} is no import path; name a segment as package.module.Name")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that a user's file never hides an installed package
    try:
        target = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever a user's module does at import, an exit among it
        raise UsageError(f"cannot import the segment {path}: {one_line(error, None)}") from error
    if not callable(target):
        raise UsageError(f"{path} must be an nn.Module class or a function that returns a module")
    return target  # type: ignore[no-any-return]
