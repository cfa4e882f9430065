"""Caches and settings of libraries: never from a run folder or the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from privkit.audit.report import build
from privkit.audit.run import AuditRun
from privkit.files.caches import cache_folder, use_own_caches


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """An empty home, and no cache that is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, "")
    cache_folder.cache_clear()
    yield tmp_path
    cache_folder.cache_clear()


def test_caches_lie_in_the_users_cache_folder(home: Path) -> None:
    use_own_caches()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(home / "cache" / "privkit" / "torchinductor")
    assert os.environ["MPLCONFIGDIR"] == str(home / "cache" / "privkit" / "matplotlib")
    assert (home / "cache" / "privkit").stat().st_mode & 0o777 == 0o700


def test_what_a_user_has_set_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    use_own_caches()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/somewhere"


@pytest.mark.parametrize("how", ["others may write", "a link", "a file"])
def test_a_cache_that_others_can_fill_is_not_taken(home: Path, how: str) -> None:
    place = home / "cache" / "privkit"
    place.parent.mkdir()
    if how == "others may write":
        place.mkdir()
        place.chmod(0o777)
    elif how == "a link":
        (home / "elsewhere").mkdir()
        place.symlink_to(home / "elsewhere")
    else:
        place.touch()
    found = cache_folder()
    assert found != place
    assert found.stat().st_mode & 0o777 == 0o700
    found.rmdir()


PLANTED = ["\xff\xfe", "font.size: 40\nsavefig.facecolor: red\n", "text.usetex: True\n"]


@pytest.mark.parametrize("text", PLANTED, ids=["no text", "other settings", "starts a program"])
def test_a_matplotlibrc_in_the_current_folder_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "matplotlibrc").write_bytes(text.encode("latin-1"))
    code = (
        "from privkit.files.caches import plain_matplotlib\n"
        "with plain_matplotlib():\n"
        "    import matplotlib\n"
        "    print(matplotlib.rcParams['font.size'], matplotlib.rcParams['text.usetex'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("10.0 False\n", "")


def test_a_report_leaves_no_cache_in_the_run_folder(small_run: AuditRun) -> None:
    build(small_run.folder)
    assert not (small_run.folder / ".cache").exists()
