"""Twins: the undefended model meets an attack of `auto` if, and only if, that attack failed on a defense."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from privkit.attacks.base import Mounting
from privkit.attacks.goals.reconstruct import ImageMounting, Reconstruction
from privkit.audit.compare import compare
from privkit.audit.run import AuditRun, run_audit
from privkit.parts.threats import threats_of
from privkit.reports.ci import junit
from privkit.run.plan import plan
from privkit.run.records import last_verdict
from privkit.run.verify import examine
from privkit.settings.quick_attacks import Chosen
from privkit.settings.resolve import resolve
from tests.audit.audits import Notes
from tests.small import timeless

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")

RIDGE = "ridge:repeats=1,epochs=1"
BLIND = "tests.audit.test_twins:Blind"
LITTLE, MUCH = "gaussian_noise:sigma=0.1", "gaussian_noise:sigma=50.0"
"""Ridge regression wins on the first (SSIM .99) and reads nothing behind the second (identified .02, undefended 1)."""
SHORT: dict[str, Any] = {
    "attack": "auto",
    "dataset": "tiny_digits",
    "model": "cnn",
    "budget": "smoke:private=100,auxiliary=150,test=100,victims=50,epochs=6,attack_epochs=1",
    "training": "batch_size=10",
    "threads": 1,
}


@dataclass(frozen=True, kw_only=True)
class Blind:
    """An attack that guesses grey, whatever it sees."""

    name: ClassVar[str] = "blind"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting()

    def run(self, observation: Any, generator: object, session: object = None) -> Reconstruction:
        sent = sum(len(view.smashed) for view in observation.views)
        return Reconstruction(images=torch.full((sent, *observation.image_shape), 0.5))


def choosing(monkeypatch: pytest.MonkeyPatch, attacks: tuple[str, ...]) -> None:
    """Let `auto` choose these attacks for defenses, and another one for the undefended model."""
    chosen = {True: Chosen(attacks=("nearest_record",)), False: Chosen(attacks=attacks)}
    monkeypatch.setattr("privkit.settings.resolve.choose", lambda defense, *_, **__: chosen[defense.name == "none"])


def audited(monkeypatch: pytest.MonkeyPatch, folder: Path, attacks: tuple[str, ...], **given: Any) -> AuditRun:
    """An audit by an `auto` of `choosing`."""
    choosing(monkeypatch, attacks)
    return run_audit(out=folder, **{**SHORT, **given})


def mounted(run: AuditRun) -> list[str]:
    return [f"{row.defense} / {row.attack}" for row in run.rows]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("defense", "attack", "twins", "outcome"),
    [(LITTLE, RIDGE, 0, "falls"), (MUCH, RIDGE, 1, "holds"), (LITTLE, BLIND, 1, "not_shown")],
)
def test_a_twin_is_paid_for_where_a_verdict_needs_it(
    defense: str, attack: str, twins: int, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = audited(monkeypatch, tmp_path / "run", (attack,), defense=defense)
    undefended = ["none / nearest_record", f"none / {attack}"]
    assert mounted(run) == [*undefended[: 1 + twins], f"{defense} / {attack}"]
    found = next(one for one in threats_of(run.rows) if one.attack == attack)
    assert found.outcome == outcome
    assert (found.undefended is None) == (not twins)
    if outcome == "holds":
        assert found.sentence.startswith(f"holds against {attack}, which wins on the undefended model")
    if outcome == "not_shown":
        assert found.sentence.startswith("not shown: the attack fails on the undefended model as well")
    assert run.verdict.sentence.startswith(f"clean: {2 + twins} of {2 + twins} cells finished")
    left = [(cell.attack, cell.status, cell.reason) for cell in run.verdict.cells if cell.status != "done"]
    assert left == [(attack, "not_needed", f"the attack won on {defense}")] * (1 - twins)
    assert ('skipped="1"' in junit(run.verdict)) == (not twins)
    assert (examine(run.folder).exit_code, run.exit_code) == (0, 0)


def test_a_named_attack_meets_the_undefended_model_once_and_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, (RIDGE,))
    cells = plan(resolve({**SHORT, "attack": ["auto", RIDGE], "defense": ["none", LITTLE, MUCH]}))
    planned = [f"{cell.defense.label} / {cell.attack.label}" for cell in cells]
    assert planned == ["none / nearest_record", f"none / {RIDGE}", f"{LITTLE} / {RIDGE}", f"{MUCH} / {RIDGE}"]
    assert not any(cell.twin_of for cell in cells)


class Killed(Notes):
    """Progress that ends the process without a word as soon as the twin begins."""

    def cell(self, number: int, total: int, name: str) -> None:
        if name.startswith(f"none / {RIDGE}"):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_is_killed_between_a_cell_and_its_twin_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One defense that falls, and one that does not, share the twin; two workers give the same rows."""
    given: dict[str, Any] = {"defense": [LITTLE, MUCH]}
    straight = audited(monkeypatch, tmp_path / "straight", (RIDGE,), **given)
    child = os.fork()
    if child == 0:
        audited(monkeypatch, tmp_path / "run", (RIDGE,), progress=Killed(), **given)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    verdict = last_verdict(tmp_path / "run")
    assert (verdict.outcome, verdict.exit_code) == ("unfinished", 3)
    assert [(cell.defense, cell.attack) for cell in verdict.cells if cell.status == "missing"] == [("none", RIDGE)]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("cells/*/log.txt")}
    run = audited(monkeypatch, tmp_path / "run", (RIDGE,), **given)
    assert mounted(run) == mounted(straight)
    assert timeless(run.folder / "results.jsonl") == timeless(straight.folder / "results.jsonl")
    assert {path: path.stat().st_mtime_ns for path in before if "none-ridge" not in path.parent.name}.items() <= (
        before.items()
    )
    assert run.verdict == straight.verdict
    assert examine(run.folder).exit_code == 0
    shared = audited(
        monkeypatch, tmp_path / "two", (RIDGE,), engine="tests.run.test_engines:threads", workers=2, **given
    )
    assert timeless(shared.folder / "results.jsonl") == timeless(straight.folder / "results.jsonl")
    assert shared.verdict == straight.verdict
    differences = compare(straight.folder, shared.folder).differences
    assert differences
    assert all(found.difference.value == 0 for found in differences)


@pytest.mark.slow
def test_a_run_that_an_earlier_version_began_without_twins_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("privkit.run.plan._on", _without_twins)
        old = audited(monkeypatch, tmp_path / "run", (RIDGE,), defense=MUCH)
    assert mounted(old) == ["none / nearest_record", f"{MUCH} / {RIDGE}"]
    assert {one.outcome for one in threats_of(old.rows)} & {"falls", "holds", "not_shown"} == {"not_shown"}
    run = audited(monkeypatch, tmp_path / "run", (RIDGE,), defense=MUCH)
    assert mounted(run) == ["none / nearest_record", f"none / {RIDGE}", f"{MUCH} / {RIDGE}"]
    assert examine(run.folder).exit_code == 0


def _without_twins(config: Any, defense: Any, seed: int) -> list[Any]:
    from privkit.run.plan import _cell

    return [_cell(config, defense, attack, seed) for attack in config.attacks_on(defense)]
