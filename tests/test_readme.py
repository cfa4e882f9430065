"""What the README says runs, and what it points to exists."""

import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import privkit
from privkit.attacks.inversion import black_box
from privkit.attacks.inversion.budgeted import mounted
from privkit.audit.run import run_audit
from tests.forked import script

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
ACCOUNTING = (ROOT / "docs" / "explanation" / "accounting.md").read_text()


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
    if smaller:
        monkeypatch.setattr(black_box, "mounted", partial(mounted, steps=10))
        monkeypatch.setattr("privkit.audit.goals.context.AttackContext.controls", lambda context, mount, **of: ())
        monkeypatch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
    monkeypatch.setattr(privkit, "run_audit", partial(run_audit, **smaller), raising=False)
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    for defense in ("patch_shuffle", "batch_shuffle:keep=0.25"):
        assert f"It is not shown whether {defense} protects these images: " in shown  # a smoke run shows nothing
    assert "no DP" in shown
    assert str(tmp_path / "my-run" / "report" / "index.html") in shown


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 700


def test_the_readmes_arrangements_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pages = import_module("pages")
    table = pages.arrangements(pages.SOURCES / "shuffling" / "arrangements.jsonl").splitlines()
    shown = [line for line in README.splitlines() if line.startswith(("| defense", "| none", "| batch_", "| patch_"))]
    assert len(shown) >= 6
    assert set(shown) <= set(table)
    newest = "| batch_shuffle, block1 + t | 0.51 |"  # "weights" was measured on another training, of accuracy .52
    assert any(line.startswith(newest) for line in table)


def test_pages_of_results_are_those_of_their_tables() -> None:
    done = script(ROOT / "benchmarks" / "pages.py", "--check")
    assert done.returncode == 0, done.stdout


def test_the_two_commands_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("audit", "test"):
        assert f"make {target} " in README
        assert f"\n{target}: " in makefile


def test_the_example_of_the_accounting_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", ACCOUNTING, flags=re.DOTALL)
    exec(compile(code, "docs/explanation/accounting.md", "exec"), {})
    assert "differential privacy of one record" in capsys.readouterr().out
