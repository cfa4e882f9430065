"""The examples of the how-to page on new parts: registered as the page says, they are listed, keep the laws and run."""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from math import inf
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Generator, nn
from typer.testing import CliRunner

from privkit.accountants import answer, compile
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Categories, Clamp
from privkit.attacks.declaration import check_declared
from privkit.attacks.goals.labels import controls, observe
from privkit.attacks.scores.leak import pooled_auc
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.app import app
from privkit.laws.parts import laws as every_law
from privkit.parts.entries import part_entries
from privkit.parts.registry import load, parse, part_table

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "how-to" / "add-a-part.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n# (\S+?)(?:, in ([A-Z]+))?\n(.*?)```", PAGE, flags=re.DOTALL)
PARTS = {"defenses": "squash", "attacks": "gradient_peak", "bounds": "bounded_losses", "datasets": "parity_digits"}


def package(file: str) -> str:
    """The package that a file of the repository belongs to, as it is imported."""
    folder = ".".join(Path(file).parts[:-1])
    return folder if folder.startswith("privkit") else f"privkit.{folder}"


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each file of the page lies in its package, and each line stands in its table."""
    part_table.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for file, name, code in BLOCKS:
            home = import_module(package(file))
            if name:
                for part, target in ast.literal_eval(f"{{{code}}}").items():
                    patch.setitem(getattr(home, name), part, target)
                continue
            folder = tmp_path_factory.mktemp("part")
            (folder / Path(file).name).write_text(code, "utf-8")
            patch.setattr(home, "__path__", [*home.__path__, str(folder)])
        yield
    part_table.cache_clear()
    for file, _, _ in BLOCKS:
        sys.modules.pop(f"{package(file)}.{Path(file).stem}", None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_the_network_of_the_page_on_models_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file and its command as they stand, on few images and with an attack that costs nothing."""
    page = (TESTS.parent / "docs" / "how-to" / "your-model.md").read_text("utf-8")
    ((name, code),) = re.findall(r"```python\n# (\S+)\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / name).write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mynets", raising=False)
    command = re.findall(r"^privkit (audit .*?) --attack", page, flags=re.MULTILINE)[0]
    small = "--attack mid_grey --training batch_size=20 --threads 1 --json --quiet --budget"
    budget = "smoke:private=40,auxiliary=80,test=40,victims=20,epochs=1"
    result = CliRunner().invoke(app, [*shlex.split(f"{command} {small}"), budget])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["status"], row["certificate"]["kind"]) for row in rows] == [
        ("done", "nothing"),
        ("done", "differential_privacy"),
    ]


@pytest.mark.slow
def test_the_check_of_opacus_finds_the_lost_noise_and_nothing_else(tmp_path: Path) -> None:
    """The page's file as it stands."""
    page = (TESTS.parent / "docs" / "how-to" / "check-opacus.md").read_text("utf-8")
    ((name, code),) = re.findall(r"```python\n# (\S+)\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / name).write_text(code, "utf-8")
    command = [sys.executable, "-W", "ignore", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    honest, lost, rmia = ([float(n) for n in re.findall(r"\d*\.\d+", line)] for line in done.stdout.splitlines())
    stated, least, most = honest
    assert f"stated ε = {stated}; " in page  # which no draw changes
    assert least < stated < most
    assert lost[-1] == stated
    assert lost[-2] > stated
    assert "refuted: True" in done.stdout
    assert 0.5 < rmia[1] < rmia[0] < rmia[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """One audit of the stage, alone and before noise, under the attack and on the dataset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
        return run_audit(
            defense=["squash", "squash:bound=2+gaussian_noise:sigma=1,clip=1"],
            attack="gradient_peak",
            dataset="parity_digits",
            budget="smoke:private=100,auxiliary=100,test=40,victims=20,epochs=1",
            training="batch_size=20",
            threads=1,
            out=tmp_path_factory.mktemp("audit") / "run",
        )


def laws(file: str) -> ModuleType:
    """A file of tests, imported anew, so that it meets what is registered now."""
    spec = importlib.util.spec_from_file_location("laws_of_the_page", TESTS / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_a_file_and_a_line_for_each_part() -> None:
    assert [bool(name) for _, name, _ in BLOCKS] == [False, True] * len(PARTS)
    assert all(len(code.splitlines()) == 1 for _, name, code in BLOCKS if name)


@pytest.mark.parametrize("kind", PARTS)
def test_each_part_is_listed_documented_and_sourced(kind: str) -> None:
    summary = {entry["name"]: entry["summary"] for entry in part_entries(kind)}[PARTS[kind]]
    shown = CliRunner().invoke(app, ["list", kind]).output
    assert re.search(rf"  {PARTS[kind]} .*{re.escape(summary)}", shown)
    registry = laws("parts/test_registry.py")
    assert (kind, PARTS[kind]) in registry.NAMES
    registry.test_everything_has_a_docstring_with_its_source(kind, PARTS[kind])
    if kind != "bounds":
        registry.test_specifications_keep_the_laws_of_every_part(kind, PARTS[kind])


def test_the_commands_of_the_page_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = re.findall(r"^privkit audit .*", PAGE, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        laws("test_commands.py").plan(command, monkeypatch)


@pytest.mark.parametrize("kind", ["defenses", "attacks", "datasets"])
def test_each_part_keeps_its_laws(kind: str) -> None:
    found = {law: broken for law, broken in every_law(PARTS[kind], kind) if broken}
    assert found == {}


@pytest.mark.slow
def test_stage_attack_and_dataset_go_through_an_audit(run: AuditRun) -> None:
    rows = {row.defense.partition(":")[0]: row for row in run.rows}
    assert set(rows) == {"none", "squash"}
    assert len(run.rows) == 3
    assert {(row.status, row.reason, row.dataset, row.attack) for row in run.rows} == {
        ("done", "", "parity_digits", "gradient_peak")
    }
    assert [row.certificate.kind for row in run.rows if row.certificate] == [
        "nothing",
        "nothing",
        "differential_privacy",
    ]
    for row in run.rows:
        assert row.answers
        assert [check.passed for check in row.checks if check.decisive] == [True, True]


def test_the_attack_runs_on_any_pair_of_modules() -> None:
    attack = parse("attacks", "gradient_peak").spec
    check_declared(attack)
    assert [control.passed for control in controls(attack, 0)] == [True, True]
    draws = Generator().manual_seed(0)
    upper = nn.Linear(16, 2)
    with torch.no_grad():
        upper.bias.copy_(torch.tensor([2.0, -2.0]))  # a rare label has the longer gradients
    labels = (torch.rand(200, generator=draws) < 0.5).long()
    observation = observe(nn.Flatten(), upper, torch.rand(200, 1, 4, 4, generator=draws), labels, batch_size=50)
    scores = attack.run(observation, draws)
    assert pooled_auc(scores.values.numpy(), labels[scores.examples].numpy()).auc.value > 0.9


def test_the_bound_is_valid_and_asked() -> None:
    bound = load(part_table("bounds")["bounded_losses"])
    answered = SplitMechanism(
        smashed=Categories(classes=4, answers=3),
        noise=Noise(law="randomized_response", smashed=0.5),
        lower_model="frozen",
        rounds=300,
    )
    steps = compile.steps(answered)  # 900 answers, whose δ is known
    one, (exact,) = bound(steps), compile.bounds(steps)
    for epsilon in (10.0, 600.0, 1000.0):
        assert one.log_delta(epsilon).value >= exact.log_delta(epsilon).value
    assert one.epsilon(1e-5).value >= exact.epsilon(1e-5).value

    unbounded = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=4), lower_model="frozen")
    assert bound(compile.steps(unbounded)) is None
    laplace = SplitMechanism(
        smashed=Clamp(low=0, high=1, dimensions=4),
        noise=Noise(law="laplace", smashed=400),
        lower_model="frozen",
        rounds=50,
    )
    asked = {found.method: found.epsilon(0.2).value for found in compile.bounds(compile.steps(laplace), tight=False)}
    assert 0 < asked["bounded losses"] < inf
    assert answer.epsilon(laplace, 0.2, tight=False).epsilon == min(asked.values())
