"""What the README says runs, and what it points to exists."""

import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import privkit
from privkit.attacks.inversion import black_box
from privkit.audit.run import run_audit
from privkit.cli.app import app
from tests.forked import script

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
ACCOUNTING = (ROOT / "docs" / "explanation" / "accounting.md").read_text()
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
GUIDES = [ROOT / "docs" / "tutorial.md", *(page for page in HOW_TO if page.name != "add-a-part.md")]  # its own test
LINES = "\n".join(page.read_text() for page in GUIDES).replace("\\\n", " ").splitlines()
COMMANDS = sorted({line.split("  #")[0].strip() for line in LINES if line.startswith("privkit audit")})


def test_links_lead_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize(
    "smaller",
    [{"dataset": "tiny_digits", "threads": 1}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["tiny digits", "as it stands"],
)
def test_the_python_example_runs(
    smaller: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(code.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(black_box, "mounted", partial(black_box.mounted, steps=50))  # half as long, and enough to win
    monkeypatch.setattr(privkit, "run_audit", partial(run_audit, **smaller), raising=False)
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "batch_shuffle:keep=0.25: accuracy" in shown
    assert "no differential privacy" in shown
    assert str(tmp_path / "my-run" / "report" / "index.html") in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_understood(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the run itself: in a folder with the files of the pages, names, options and gates are resolved."""
    for page in GUIDES:
        for name, text in re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", page.read_text(), flags=re.DOTALL):
            (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    seen: list[object] = []

    def preview(config: object) -> str:
        seen.append(config)
        return ""

    monkeypatch.setattr("privkit.cli.estimate.preview", preview)
    arguments = [*shlex.split(command)[1:], "--dry-run"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    assert seen
    assert len(COMMANDS) >= 6


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 700


def test_pages_of_results_are_those_of_their_tables() -> None:
    done = script(ROOT / "benchmarks" / "pages.py", "--check")
    assert done.returncode == 0, done.stdout


def test_the_two_commands_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("audit", "test"):
        assert f"make {target} " in README
        assert f"\n{target}: " in makefile


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            line.split("  #")[0].strip()
            for line in [*LINES, *ACCOUNTING.replace("\\\n", " ").splitlines()]
            if re.match(r"privkit (epsilon --|calibrate|permutations)", line)
        }
    ),
)
def test_the_accountants_commands_run(command: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 3


def test_the_example_of_the_accounting_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", ACCOUNTING, flags=re.DOTALL)
    exec(compile(code, "docs/explanation/accounting.md", "exec"), {})
    assert "differential privacy of one record" in capsys.readouterr().out
