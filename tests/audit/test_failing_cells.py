"""Cells that fail, and what a run makes of them."""

from pathlib import Path

import pytest

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.audit.run import run_audit
from privkit.errors import PrivkitError, UsageError
from privkit.parts.registry import PART_TABLES
from privkit.run.records import read_rows
from privkit.settings.resolve import resolve
from tests.audit.audits import Odd, again, registered
from tests.small import SMALL


class Refuses(Odd):
    name = "refuses"

    def run(self, *given: object) -> Reconstruction:
        raise NotApplicable("needs what nobody has")


class Crashes(Odd):
    name = "crashes"

    def run(self, *given: object) -> Reconstruction:
        raise RuntimeError("shapes\ndo not fit")


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_an_attack_that_does_not_apply_is_a_row_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, Refuses)
    run = run_audit(resolve({"attack": ["refuses", "mean_image"], **SMALL}), out=tmp_path / "run")
    assert [row.status for row in run.rows] == ["not_applicable", "done"] * 2
    assert run.rows[0].reason == "needs what nobody has"
    assert run.rows[0].recovered == {}
    assert run.exit_code == 0  # the other attack gave a number


def test_a_model_on_which_no_attack_gave_a_number_fails_and_keeps_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, Refuses)
    run = run_audit(resolve({"attack": "refuses", **SMALL}), out=tmp_path / "run")
    assert run.exit_code == 1
    assert run.failures == tuple(
        f"{defense}, seed 0: no attack gave a number (refuses: needs what nobody has)"
        for defense in ("none", "batch_shuffle")
    )
    for row in run.rows:
        assert row.status == "not_applicable"
        assert row.certificate is not None
        assert row.costs is not None
        assert row.accuracy is not None
        assert row.training_curve
    text = run.report.read_text()
    assert "not applicable" in text
    assert f"{run.rows[1].accuracy.value:.3f} [" in text  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_crash_is_an_error_row_and_the_other_cells_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, Crashes)
    config = resolve({"attack": ["crashes", "mean_image"], **SMALL})
    run = run_audit(config, out=tmp_path / "run")
    assert [row.status for row in run.rows] == ["error", "done"] * 2
    assert run.rows[0].reason.startswith("RuntimeError: shapes do not fit (trace in ")
    assert run.exit_code == 3
    assert "Traceback" in (tmp_path / "run" / "cells" / run.rows[0].cell / "log.txt").read_text()
    assert len(read_rows(tmp_path / "run")) == 4
    run_audit(config, out=tmp_path / "run")  # errors are tried again, and leave one row each
    assert len(read_rows(tmp_path / "run")) == 4


def test_a_defense_that_needs_tokens_on_a_model_without_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "maps.py").write_text(
        "from torch import nn\ndef lower():\n    return nn.Conv2d(1, 4, 2, 2)\n"
        "def upper(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"batch_shuffle does not fit maps.lower:maps.upper: .* tokens \[M, B, T, D\]"):
        run_audit(model="maps.lower:maps.upper", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_batches_at_which_a_defense_does_nothing_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no effect"):
        again(tmp_path / "run", training="batch_size=1")
    assert not (tmp_path / "run").exists()


def test_every_error_has_an_exit_code() -> None:
    codes = {cls.__name__: cls.exit_code for cls in PrivkitError.__subclasses__()}
    assert set(codes.values()) == {2, 3}
    assert codes["UsageError"] == 2
    assert set(PART_TABLES) >= {"defenses", "attacks"}
