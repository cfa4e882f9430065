"""`privkit new` writes a part that `privkit check` passes, and neither harms what is there."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.cli.app import app

KINDS = ("defense", "attack", "model", "dataset", "metric")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_what_new_writes_passes_its_test_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for kind in KINDS:
        done = CliRunner().invoke(app, ["new", kind, f"my_{kind}"])
        assert done.exit_code == 0
        assert f"privkit audit --{kind} my_{kind}:My{kind.capitalize()}" in done.stdout
        assert "emplate" not in (tmp_path / f"my_{kind}.py").read_text()
        runpy.run_path(str(tmp_path / f"test_my_{kind}.py"))["test_it_keeps_the_laws_of_its_kind"]()


def test_new_refuses_to_overwrite_and_names_that_are_no_module(privkit_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("kept")
    for given, message in (
        (("defense", "mine"), "test_mine.py exists and is not overwritten; take another name"),
        (("defens", "other"), "unknown kind 'defens'; did you mean 'defense'?"),
        (("defense", "class"), "'class' is a word of Python's own, and no defense can have it; take another"),
        (("metric", "true"), "'true' is a word of Python's own, and no metric can have it; take another"),
        (("defense", "torch"), "'torch' is a module already, which torch.py would hide; take another"),
        (("defense", "../mine"), "is named with small letters, digits and _"),
    ):
        done = privkit_cli("new", *given)
        assert done.returncode == 2
        assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert (tmp_path / "test_mine.py").read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Template", 0, "holds   a number for each image"),
        ("Template:width=2", 2, "unknown option of metric mine:Template 'width'"),
        ("Absent", 2, "mine has no Absent"),
        ("Worse", 1, "broken  equal images are closest"),
    ],
)
def test_check_prints_a_line_a_law_and_exits_as_it_says(
    privkit_cli: Run, tmp_path: Path, name: str, code: int, said: str
) -> None:
    from privkit.templates import metric

    worse = "\n\n@dataclass(frozen=True, kw_only=True)\nclass Worse(Template):\n    {}\n\n    higher_is_closer = True\n"
    text = Path(str(metric.__file__)).read_text() + worse.format('"""It has the wrong direction."""')
    (tmp_path / "mine.py").write_text(text)
    done = privkit_cli("check", f"mine:{name}")
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    if code < 2:
        lines = json.loads(privkit_cli("check", f"mine:{name}", "--json").stdout)
        assert [line["holds"] for line in lines].count(False) == code
