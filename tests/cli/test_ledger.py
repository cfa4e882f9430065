"""The command that reads a ledger."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.accountants.ledger import Ledger
from privkit.cli.app import app
from privkit.errors import UsageError
from tests.accountants.one_release import exact, noised


def test_the_command_prints_what_the_ledger_proves(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as book:
        book.charge(noised(2.0), rounds=4)
    runner = CliRunner()
    done = runner.invoke(app, ["ledger", str(tmp_path / "ledger.jsonl"), "--delta", "1e-5", "--json"])
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(exact(1.0), rel=1e-9)
    assert "δ = " in runner.invoke(app, ["ledger", str(tmp_path / "ledger.jsonl"), "--epsilon", "1"]).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delta", "1e-5"], "there is no ledger"),
        ([], "give one of two: --delta"),
        (["--delta", "1e-5", "--epsilon", "1"], "give one of two: --delta"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(
            app, ["ledger", str(tmp_path / "none"), *arguments], catch_exceptions=False, standalone_mode=False
        )
