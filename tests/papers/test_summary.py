"""The three sentences on a paper say what its rows say, and no more."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from privkit.cli.app import app
from privkit.papers import PAPERS
from privkit.papers import summary as module
from privkit.papers.contract import ComparedClaim, Paper
from privkit.papers.orderings import Judged, on_record
from privkit.papers.summary import three_sentences


@pytest.mark.parametrize("name", PAPERS)
def test_every_difference_is_in_one_of_the_sentences(name: str) -> None:
    sentences = " ".join(three_sentences(name))
    shares = re.findall(r"(\d+) of (\d+) (?:differences|could not)", sentences)
    assert len({count for _, count in shares}) == 1
    assert sum(int(part) for part, _ in shares) == int(shares[0][1])
    assert re.search(r"we measured (\d+|none) in its setting", sentences)
    assert ("on digits instead of the paper's data" in sentences) == (name in ("patch_shuffling", "patch_splitnn"))


def test_a_verdict_that_changes_changes_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    before = three_sentences("cutmixsl")

    def all_reversed(name: str) -> list[Judged]:
        return [replace(one, verdict="reversed") for one in on_record(name)]

    monkeypatch.setattr(module, "on_record", all_reversed)
    holds, fails, _ = three_sentences("cutmixsl")
    assert "in our runs" in before[0]
    assert "in our runs" not in holds
    assert "16 of 16 differences vanish" in fails


@pytest.mark.parametrize(("verdict", "sentence"), [("holds", 0), ("fails", 1), ("unproven", 2)])
def test_a_statement_stands_where_its_verdict_belongs(
    verdict: str, sentence: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ComparedClaim(claim="Theorem 99, part 2: pigs fly", verdict=verdict, why="")  # type: ignore[arg-type]
    monkeypatch.setattr(Paper, "comparisons", lambda paper: (one,))
    found = ["Theorem 99" in text for text in three_sentences("cutmixsl")]
    assert found == [place == sentence for place in range(3)]


def test_the_command_begins_with_them() -> None:
    said = CliRunner().invoke(app, ["papers", "patch_splitnn"]).stdout
    assert said.splitlines()[2].startswith("What holds: ")
    told = json.loads(CliRunner().invoke(app, ["papers", "patch_splitnn", "--json"]).stdout)
    assert told["summary"] == [*three_sentences("patch_splitnn")]
