"""The package as users get it: wheel, editable, lazy, layered, and never as a bare `attacks`."""

import ast
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("attacks", "accountants", "reports")
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def modules(package: str) -> list[Path]:
    """Python files of a top-level folder, links not followed."""
    return [p for p in sorted((ROOT / package).rglob("*.py")) if not any(parent.is_symlink() for parent in p.parents)]


def test_the_packages_list_is_what_lies_on_disk() -> None:
    found = set()
    for folder in ("privkit", *LIBRARIES):
        for init in (path for path in modules(folder) if path.name == "__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(parts if folder == "privkit" else ("privkit", *parts)))
    assert sorted(SETUP["packages"]) == sorted(found)


@pytest.mark.parametrize("library", LIBRARIES)
def test_links_serve_the_static_tools(library: str) -> None:
    link = ROOT / "privkit" / library
    assert link.is_symlink()
    assert os.readlink(link) == f"../{library}"
    assert SETUP["package-dir"][f"privkit.{library}"] == library


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_bare_name_is_refused(library: str) -> None:
    done = run(sys.executable, "-c", f"import {library}", cwd=ROOT)
    assert done.returncode == 1
    assert f"ImportError: import privkit.{library}, not {library}" in done.stderr


def imports(path: Path) -> set[str]:
    """Modules of privkit that a file imports, wherever in the file; `TYPE_CHECKING` blocks included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"privkit.{alias.name}" for alias in node.names if node.module == "privkit"}
    return {name for name in found if name.split(".")[0] == "privkit"}


CORE = {"training", "defenses", "models", "domains", "metrics"}


SHARED = ("privkit.lazy", "privkit.constraints", "privkit.shared")
"""Modules on the ground that every library may import."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_knows_only_itself(library: str) -> None:
    for path in modules(library):
        below = ("privkit.torch_utils", "privkit.shared.seeds") if library == "attacks" else ()
        allowed = (f"privkit.{library}", *SHARED, *below)
        foreign = {name for name in imports(path) if not name.startswith(allowed)}
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_what_the_libraries_share_knows_nothing_of_privkit() -> None:
    for path in (ROOT / "privkit" / "lazy.py", ROOT / "privkit" / "constraints.py"):
        assert not imports(path), path
    for name in ("shared", "torch_utils"):  # modules of one package may use one another
        for path in modules(f"privkit/{name}"):
            assert {one for one in imports(path) if not one.startswith(f"privkit.{name}.")} == set(), path


def layers() -> list[set[str]]:
    """Names in the picture "Layers" of docs/architecture.md, the top layer first; blank lines part the layers."""
    picture = (
        (ROOT / "docs" / "architecture.md").read_text().partition("## Layers")[2].split("```")[1].partition("──")[0]
    )
    parts = [[line.strip().partition("  ")[0] for line in part.splitlines()] for part in picture.split("\n\n")]
    return [{name.strip() for line in part for name in line.split(",") if name.strip()} for part in parts]


def test_every_module_stands_in_the_picture_of_the_layers_and_imports_point_down() -> None:
    level = {name: number for number, names in enumerate(layers()) for name in names}
    there = {path.stem for path in (ROOT / "privkit").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert set(level) == {name for name in there if not name.startswith("__")} - set(LIBRARIES)
    for name, number in level.items():
        home = ROOT / "privkit" / name
        for path in modules(f"privkit/{name}") if home.is_dir() else [home.with_suffix(".py")]:
            used = {found.split(".")[1] for found in imports(path) if "." in found}
            upward = {other for other in used if level.get(other, number) < number}
            assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


def test_the_training_core_knows_no_attack_and_no_report() -> None:
    for package in CORE:
        for path in modules(f"privkit/{package}"):
            foreign = {name for name in imports(path) if name.startswith(("privkit.attacks", "privkit.reports"))}
            foreign = {name for name in foreign if not name.startswith("privkit.attacks.scores")}  # they know no attack
            assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_scores_know_no_attack() -> None:
    for path in modules("attacks/scores"):
        foreign = {name for name in imports(path) if not name.startswith(("privkit.attacks.scores", *SHARED))}
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


LIGHT = [
    ("privkit", ("torch", "numpy", "pydantic", "typer")),
    ("privkit.pytest_plugin", ("torch", "numpy", "pydantic")),
    ("privkit.cli.app", ("torch", "numpy", "pydantic", "rich", "scipy")),
    ("privkit.accountants", ("torch", "numpy", "opacus", "pydantic")),
    ("privkit.accountants.shuffles.permutations", ("torch", "opacus", "matplotlib")),
    ("privkit.reports.schema", ("torch", "matplotlib", "numpy")),
    ("privkit.attacks.inversion.black_box", ("timm", "matplotlib", "scipy", "pydantic")),
]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(("module", "absent"), LIGHT, ids=[module for module, _ in LIGHT])
def test_a_module_costs_only_itself(module: str, absent: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print([name for name in {absent!r} if name in sys.modules])"
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


SURFACES = [
    "privkit",
    "privkit.accountants",
    *(f"privkit.accountants.{room}" for room in ("auditing", "bounds", "golden", "interop", "shuffles", "spec")),
    *("privkit.attacks", "privkit.attacks.goals", "privkit.reports", "privkit.papers"),
    *(f"privkit.{room}" for room in sorted(CORE)),
]


@pytest.mark.parametrize("surface", SURFACES)
def test_every_public_name_is_there(surface: str) -> None:
    module = importlib.import_module(surface)
    assert len(set(module.__all__)) == len(module.__all__) > 0
    assert all(hasattr(module, name) for name in module.__all__)
    if "__getattr__" not in vars(module):
        return
    submodules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    for node in typed_imports(module):
        for name in (alias.name for alias in node.names):
            assert name in module.__all__
            assert name not in submodules or node.module == surface, "what it is would depend on the order of imports"
    with pytest.raises(AttributeError, match=f"module '{surface}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def typed_imports(module: ModuleType) -> list[ast.ImportFrom]:
    """Imports of a package's `if TYPE_CHECKING:` block."""
    blocks = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    return [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]


@pytest.mark.slow
def test_the_wheel_works_beside_a_users_own_attacks_module(tmp_path: Path) -> None:
    """Build it, install it into a fresh environment and run it from a folder with an `attacks.py`.

    Dependencies come from the environment that runs the tests, through a path file: they are not what is tested.
    """
    built = run(
        sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-w", tmp_path, cwd=tmp_path
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("privkit_sl-*.whl")
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).stdout.strip())
    here = run(sys.executable, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).stdout.strip()
    (site / "dependencies.pth").write_text(here + "\n")  # a bare path: the editable install there stays unseen
    installed = run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr

    user = tmp_path / "user"
    user.mkdir()
    (user / "attacks.py").write_text("mine = True\n")
    listed = run(tmp_path / "fresh" / "bin" / "privkit", "list", cwd=user)
    assert listed.returncode == 0, listed.stderr
    assert "batch_shuffle" in listed.stdout
    assert "black_box" in listed.stdout
    where = "import attacks, privkit, privkit.attacks as a, privkit.reports.page; print(attacks.mine, a.__file__)"
    found = run(python, "-c", where, cwd=user)
    assert found.stdout.startswith("True " + str(tmp_path)), found.stdout + found.stderr
    assert (site / "privkit" / "reports" / "templates" / "page.html.j2").is_file()
    assert (site / "privkit" / "py.typed").is_file()
    assert not (site / "attacks").exists()
