"""The foreign project named privkit, in every order in which it and ours can be installed and removed."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import privkit_sl

OURS = {"privkit/__init__.py": "", "privkit/attacks/__init__.py": "", "privkit/cli/start.py": "", "privkit_sl.py": ""}
FOREIGN = {
    "privkit/__init__.py": "raise ImportError('geopy')\n",
    "privkit/attacks/__init__.py": "",
    "privkit/ppms.py": "",
}
ORDERS = {
    "ours, foreign": ("+ours", "+foreign"),
    "foreign, ours": ("+foreign", "+ours"),
    "ours, foreign, foreign removed": ("+ours", "+foreign", "-foreign"),
    "foreign, ours, foreign removed": ("+foreign", "+ours", "-foreign"),
}
WHOLE = {
    "ours": ("+ours",),
    "both removed, ours again": ("+ours", "+foreign", "-foreign", "-ours", "+ours"),
    "from a clone": (),
}


def changed(site: Path, step: str) -> None:
    """Do in a folder what pip does there: write the files of a distribution and their list, or remove them."""
    name, files = ("privkit_sl", OURS) if step[1:] == "ours" else ("privkit", FOREIGN)
    about = site / f"{name}-0.1.dist-info"
    if step[0] == "-":
        for path in [site / file for file in files] + list(about.iterdir()):
            path.unlink(missing_ok=True)
        about.rmdir()
        return
    for file, text in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1\n")
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of packages, the only one that Python looks into."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_is_one_sentence_that_says_what_to_remove(
    order: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in ORDERS[order]:
        changed(site, step)
    with pytest.raises(SystemExit) as ended:
        privkit_sl.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("privkit: ")
    assert "pip uninstall privkit privkit-sl, then install privkit-sl again" in said
    assert said.count("\n") == 1
    assert ("is missing" in said) is order.endswith("removed")


@pytest.mark.parametrize("order", WHOLE)
def test_a_whole_installation_is_left_in_peace(order: str, site: Path) -> None:
    for step in WHOLE[order]:
        changed(site, step)
    assert privkit_sl.conflict() == ""


@pytest.mark.parametrize(("first", "refused"), [("ours", False), ("foreign", True)])
def test_two_folders_are_told_apart(first: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment that sees the system's packages: what Python finds first is imported."""
    for name in ("ours", "foreign"):
        (tmp_path / name).mkdir()
        changed(tmp_path / name, f"+{name}")
    folders = sorted((str(tmp_path / name) for name in ("ours", "foreign")), key=lambda folder: first not in folder)
    monkeypatch.setattr(sys, "path", folders)
    assert bool(privkit_sl.conflict()) is refused


def test_what_a_build_leaves_in_a_clone_is_no_installation(site: Path) -> None:
    """`privkit.egg-info` of an older clone lists files by the same names, and some are gone."""
    for name in ("privkit", "privkit_sl"):
        about = site / f"{name}.egg-info"
        about.mkdir()
        (about / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1\n")
        (about / "SOURCES.txt").write_text("privkit/__init__.py\nprivkit/long_gone.py\n")
    assert privkit_sl.conflict() == ""


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    about = f"{name}-0.1.dist-info"
    listed = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\nprivkit = privkit_sl:main\n" if name != "privkit" else "",
    }
    path = folder / f"{name}-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in listed.items():
            archive.writestr(file, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in [*listed, f"{about}/RECORD"]))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_pip_itself_in_each_order(order: str, tmp_path: Path) -> None:
    """The real pip and the real command, whose file lies outside the shared folder."""
    ours = {**OURS, "privkit_sl.py": Path(privkit_sl.__file__).read_text()}
    wheels = {"ours": wheel(tmp_path, "privkit_sl", ours), "foreign": wheel(tmp_path, "privkit", FOREIGN)}
    venv.create(tmp_path / "fresh", with_pip=True)
    programs = tmp_path / "fresh" / "bin"
    for step in ORDERS[order]:
        what = ("install", "--no-index", wheels[step[1:]]) if step[0] == "+" else ("uninstall", "--yes", "privkit")
        subprocess.run([programs / "python", "-m", "pip", "--quiet", *what], check=True)
    done = subprocess.run([programs / "privkit", "list"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("privkit: ")
    assert "pip uninstall privkit privkit-sl" in done.stderr
    assert "Traceback" not in done.stderr
