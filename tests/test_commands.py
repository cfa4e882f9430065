"""Every command of the documentation is run: an audit as far as its plan, everything else whole."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.cli.app import app
from tests.recording.made import written

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN_TESTS = ("add-a-part.md",)  # its parts have to be registered first: tests/test_how_to.py
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(privkit [a-z]+ [^`]+)`")
PLANNED = ("audit", "frontier", "reproduce")
"""They train networks for minutes or hours, so that they run with --dry-run; tests/audit runs audits whole."""
ELSEWHERE = {
    "privkit papers dp_cutmixsl --results my-run": "needs CIFAR-10: tests/papers/test_papers.py judges runs",
    "privkit frontier --from RUN": "needs a defense at several strengths: tests/cli and tests/audit draw frontiers",
    "privkit place RUN": "needs a run on the digits of the registry: tests/audit/test_place.py places one",
    "privkit doctor": "recomputes all reference values: tests/accountants does",
}
"""Commands that this file does not run -> the reason."""
NAMED = {
    "privkit tests",
    "privkit audit --preset",
    "privkit calibrate sigma --advantage .1",
    "privkit papers accurate_sl --figures",
}
"""What a sentence names by its beginning: the whole command stands elsewhere. The first is two folders."""
EXPERIMENTS = ROOT / "privkit" / "papers" / "dp_cutmixsl" / "experiments"


def commands(page: Path) -> list[str]:
    """The commands of a page: lines of its code, and those in sentences that have all their arguments."""
    text = page.read_text("utf-8")
    code = "\n".join(body for language, body in FENCED.findall(text) if language not in ("python", "text")).replace(
        "\\\n", " "
    )
    lines = [re.sub(r"^\s*(?:\$ |- run: |run: )?", "", line).split("  #")[0].strip() for line in code.splitlines()]
    named = [
        one for one in INLINE.findall(FENCED.sub("", text)) if not re.search(r"…|\b(?:NAME|PAPER|TABLE|FILE)\b", one)
    ]
    return [line for line in [*lines, *named] if re.match(r"privkit [a-z]+( |$)", line)]


FOUND = {command: page for page in PAGES if page.name not in OWN_TESTS for command in commands(page)}
COMMANDS = sorted(set(FOUND) - set(ELSEWHERE) - NAMED)


def is_planned(command: str) -> bool:
    return command.split()[1] in PLANNED and "--help" not in command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that pages show."""
    for page in PAGES:
        for name, text in re.findall(
            r"```(?:python|toml)\n# (\S+\.\w+)\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL
        ):
            (tmp_path / Path(name).name).write_text(text, "utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the run itself: names, options, files and gates are resolved."""
    seen: list[object] = []
    for recording in re.findall(r"--recorded (\S+)", command):
        written(Path(recording))

    def preview(config: object, *rest: object) -> str:
        seen.append(config)
        return ""

    monkeypatch.setattr("privkit.cli.estimate.preview", preview)
    monkeypatch.setattr("privkit.cli.papers._preview", preview)
    arguments = shlex.split(command.replace(".../experiments", str(EXPERIMENTS)))[1:]
    result = CliRunner().invoke(app, [*arguments, *(["--dry-run"] if "--dry-run" not in arguments else [])])
    assert result.exit_code == 0, result.exception or result.output
    assert seen


@pytest.mark.slow(but=22)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [one for one in COMMANDS if is_planned(one)])
def test_the_plan_of_a_run_is_made(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(command, monkeypatch)


@pytest.mark.slow(but=5)
@pytest.mark.parametrize("command", [one for one in COMMANDS if not is_planned(one)])
def test_the_command_runs(command: str, folder: Path, request: pytest.FixtureRequest) -> None:
    words = shlex.split(command)[1:]
    for name in {"A", "B", "RUN", "my-run", "privkit-run"} & set(words):
        shutil.copytree(request.getfixturevalue("small_run").folder, folder / name)
    for name in {"table.csv", "big.csv"} & set(words):
        shutil.copyfile(ROOT / "accountants" / "examples" / "papers.csv", folder / name)
    if words[0] == "ledger":  # which the page makes first
        exec(compile(FENCED.findall(FOUND[command].read_text("utf-8"))[0][1], str(FOUND[command]), "exec"), {})
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception or result.output
    assert result.output.strip()


@pytest.mark.slow
def test_the_tutorial_comes_true(folder: Path) -> None:
    command = commands(ROOT / "docs" / "tutorial.md")[0]
    shown = CliRunner().invoke(app, shlex.split(command)[1:]).output
    assert re.search(r"query +falls to jigsaw", shown)
    assert "σ-privacy over 16!/∏m! = 10^5.7 orderings of an image in which patches occur m times" in shown
    assert "run: empty: 4 of 4 cells finished; 10 of 10 decisive checks met; no model is shown to have learned" in shown
    assert list(folder.rglob("report/index.html"))


def test_a_refusal_is_as_the_page_shows_it() -> None:
    shown = [
        block.group(1, 2)
        for page in PAGES
        for block in re.finditer(r"^```text\n\$ (privkit .*)\nprivkit: (.*?)```", page.read_text("utf-8"), re.M | re.S)
    ]
    assert shown
    for command, sentence in shown:
        refused = CliRunner().invoke(app, shlex.split(command)[1:])
        assert str(refused.exception).split() == sentence.split()


def test_the_commands_are_found() -> None:
    assert set(ELSEWHERE) <= set(FOUND)
    assert len(COMMANDS) >= 60
    pages = {FOUND[one].name for one in COMMANDS}
    assert {"tutorial.md", "training.md", "accounting.md", "reproduce.md", "compare-runs.md"} <= pages
