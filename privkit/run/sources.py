"""The code behind a result: hashes of privkit's source and of every user module that takes part."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from privkit.errors import UsageError
from privkit.files.observed import ABSENT, content, hash_file, read_by

if TYPE_CHECKING:
    from privkit.reports.schema import Provenance

_OWN = ("privkit", "privkit.accountants", "privkit.attacks", "privkit.reports")
"""privkit's own trees; in a checkout the three libraries lie beside the package."""

_LIBRARIES = frozenset({"torch", "torchvision", "timm", "numpy", "scipy", "skimage", "sklearn"})
"""Packages whose version is recorded instead of hashes."""

_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".pkl", ".onnx", ".h5")
"""Endings of files from which code may load weights."""

_IMPORTS = ("import_module", "__import__")  # functions that import a module by a name

_seen: dict[str, tuple[object, str]] = {}
"""Module -> its specification in this process and the hash of its file when it was first looked at."""


@cache
def own_source() -> str:
    """SHA-256 of all Python files of privkit, computed at the first call in this process."""
    files = {}
    for package in _OWN:
        spec = find_spec(package)
        for root in spec.submodule_search_locations or () if spec else ():
            for path in Path(root).rglob("*.py"):
                files[Path(package.replace(".", "/"), path.relative_to(root)).as_posix()] = path
    digest = hashlib.sha256()
    for key, path in sorted(files.items()):
        digest.update(f"{key}\0{hash_file(path)}\0".encode())
    return digest.hexdigest()


class Sources(NamedTuple):
    """Dependencies of the results of a user's modules: `code` has the SHA-256 of each module's file. `files` has the
    SHA-256 of weights and of environment variables ($NAME) that the code names. `installed` lists the packages that the
    modules import."""

    code: dict[str, str]
    files: dict[str, str]
    installed: set[str]


def sources(named: Iterable[str]) -> Sources:
    """Hash the modules `named` and all modules that they import, and list the installed packages that they import.

    Imports are found anywhere in the source, and in the objects of a loaded module. privkit, the standard library and
    `_LIBRARIES` are left out; installed packages are hashed only if they are in `named`. A weights file is hashed if a
    string in the source names it and it lies in the module's or the current folder. Raises `UsageError` if a file was
    edited after its import, since the running code then differs from the file.
    """
    named = list(named)
    own = {name.partition(".")[0] for name in named}
    collected = Sources({}, {}, set())
    waiting: list[tuple[str, ModuleType | None]] = [(name, sys.modules.get(name)) for name in named]
    looked: set[str] = set()
    while waiting:
        name, module = waiting.pop()
        top = name.partition(".")[0]
        if name in looked or top == "privkit" or top in sys.stdlib_module_names:
            continue
        looked.add(name)
        if parent := name.rpartition(".")[0]:
            waiting.append((parent, sys.modules.get(parent)))
        path = _file(name, module)
        if path is None or top in _LIBRARIES:
            continue
        if {"site-packages", "dist-packages"} & set(path.parts) and top not in own:
            collected.installed.add(top)
            continue
        collected.code[name] = _digest(name, module, path)
        tree = _tree(path)
        waiting += [(other, sys.modules.get(other)) for other in _imports(name, path, tree)]
        waiting += _held(module)
        collected.files.update(_weights(path, tree))
        collected.files.update(_variables(tree))
    return collected


def files_read(made_of: Provenance) -> dict[str, str]:
    """The files that a user's code was observed to read in this process and that its provenance lacks: name (relative
    to the current folder if possible) -> SHA-256. Raises `UsageError` if a file was edited after it was read."""
    paths = {os.path.abspath(path) for name in made_of.code if (path := _source(name, made_of.code[name]))}
    known = {(os.path.basename(name), digest) for name, digest in made_of.files.items()}
    loaded: set[str] = set()
    if any(_computes_imports(_tree(Path(path))) for path in paths):  # the module may be loaded already
        loaded = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    found = {}
    for file, digest in read_by(paths, loaded).items():
        name = file.removeprefix(os.getcwd() + os.path.sep)
        if (os.path.basename(file), digest) not in known:
            found[file if name in made_of.files else name] = digest
    return found


def _source(name: str, digest: str) -> Path | None:
    path = _file(name, sys.modules.get(name))
    if path is not None and content(str(path)) != digest:
        raise UsageError(f"{path} was edited while this command ran; start it anew, and edit no file while it runs")
    return path


def as_it_is_now(there: Provenance, here: Provenance) -> Provenance:
    """The provenance `here` of a command, with the current content of the files that a stored result's code read."""
    names = [name for name in there.files if name not in here.files and not name.startswith("$")]
    now = {name: content(name) for name in names}
    found = {name: digest for name, digest in now.items() if digest != ABSENT or there.files[name] == ABSENT}
    return here.model_copy(update={"files": here.files | found}) if found else here


def _file(name: str, module: ModuleType | None) -> Path | None:
    """The path of a module's source file; None for built-in modules, namespaces, and names that are no modules."""
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file) if file else None
    where: list[str] | None = None
    for level in range(name.count(".") + 1):
        try:
            spec = PathFinder.find_spec(".".join(name.split(".")[: level + 1]), where)
        except Exception:  # an installed finder may raise anything
            return None
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _digest(name: str, module: ModuleType | None, path: Path) -> str:
    """The hash of a module's file; raises `UsageError` if it changed since the import."""
    try:
        digest = hash_file(path)
    except OSError as error:
        raise UsageError(f"cannot read the source of {name}, {path} ({error.strerror}); restore the file") from None
    spec, (known, first) = getattr(module, "__spec__", None), _seen.get(name, (None, digest))
    same = known is None or known is spec  # a module that is imported again has a new spec
    if spec is not None and same and first != digest:
        raise UsageError(
            f"{path} was edited after this process imported it, and the old code would run; start Python anew"
        )
    _seen[name] = (spec, digest)
    return digest


def _tree(path: Path) -> ast.AST:
    try:
        return _parsed(path.read_bytes() if path.suffix == ".py" else b"")
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return _parsed(b"")


@lru_cache(maxsize=64)
def _parsed(source: bytes) -> ast.AST:
    return ast.parse(source)


def _weights(path: Path, tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(_WEIGHTS):
            for place in (path.parent / node.value, Path(node.value)):
                if len(node.value) < 256 and place.is_file():
                    yield node.value, hash_file(place)
                    break


def _variables(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            key = node.slice
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(("environ.get", "getenv")):
            key = node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            value = os.environ.get(key.value)
            yield f"${key.value}", ABSENT if value is None else hashlib.sha256(value.encode()).hexdigest()


def _computes_imports(tree: ast.AST) -> bool:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return any(_called(node) in _IMPORTS and not isinstance(node.args[0], ast.Constant) for node in calls)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _imports(name: str, path: Path, tree: ast.AST) -> Iterator[str]:
    """Names of modules and attributes that a source file may import."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*filter(None, above), *filter(None, [node.module])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _called(node) in _IMPORTS:
            given = node.args[0]
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield given.value


def _held(module: ModuleType | None) -> Iterator[tuple[str, ModuleType | None]]:
    """Modules to which the objects in a loaded module belong; the source need not import these modules by name."""
    for value in list(vars(module).values()) if module is not None else ():
        if isinstance(value, ModuleType):
            yield value.__name__, value
        elif isinstance(value, type | FunctionType) and isinstance(value.__module__, str):
            yield value.__module__, sys.modules.get(value.__module__)
