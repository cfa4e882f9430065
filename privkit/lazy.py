"""Imports a package's public names on first use, so that only used libraries are loaded."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(package: str, targets: Iterable[str] = ()) -> Callable[[str], Any]:
    """Build a package's `__getattr__`, which imports a public name on first use.

    The public names are those that the package imports in its `if TYPE_CHECKING:` block, so that one list serves users
    and type checkers. `targets` adds further objects, each as "module:object".
    """
    further = {target.partition(":")[2]: target.partition(":")[0] for target in targets}

    def __getattr__(name: str) -> Any:
        home = further.get(name) or _homes(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)

    return __getattr__


@cache
def _homes(package: str) -> dict[str, str]:
    """Name -> module, for each import in the package's `if TYPE_CHECKING:` block, read from its source text."""
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
