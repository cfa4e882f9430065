"""Pictures of the registry: those of a run's report, of public records only, and none that its line has left behind."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from privkit.audit.report import entries_of
from privkit.audit.run import AuditRun
from privkit.reports.registry import Entry
from tests.reports.test_registry import entry

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with an empty folder of pictures."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = import_module("registry_pictures")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "docs" / "registry")
    return module


def draw(pictures: Any, *lines: Entry) -> None:
    """Some picture of each line."""
    for one in lines:
        pictures.path_of(one).parent.mkdir(parents=True, exist_ok=True)
        pictures.path_of(one).write_bytes(b"")


def test_a_picture_holds_attacked_records_above_the_guesses_of_the_named_attack(
    pictures: Any, small_run: AuditRun
) -> None:
    found = entries_of(small_run.rows)
    pictures.keep(small_run.folder, small_run.rows, found)
    shown = pictures.shown(found)
    assert [one for lines in shown.values() for one in lines] == found
    for picture, lines in shown.items():
        (cell,) = (
            row.cell for row in small_run.rows if (row.defense, row.attack) == (lines[0].defense, lines[0].attack)
        )
        with np.load(small_run.folder / "cells" / cell / "per_example.npz") as arrays:
            truth, guess = (np.concatenate(list(arrays[name][..., 0]), axis=1) for name in ("truth", "guess"))
        assert np.array_equal(np.asarray(Image.open(picture)), np.concatenate([truth, guess]))
        assert picture.stat().st_size < 10_000
    assert pictures.left_over(found) == []


def test_records_of_a_users_own_are_never_pictured(pictures: Any, small_run: AuditRun) -> None:
    own = [one.model_copy(update={"dataset": "folder"}) for one in entries_of(small_run.rows)]
    pictures.keep(small_run.folder, small_run.rows, own)
    assert not list(pictures.FOLDER.parent.parent.rglob("*.png"))


def test_a_run_without_a_report_takes_an_older_picture_away(pictures: Any, small_run: AuditRun, tmp_path: Path) -> None:
    found = entries_of(small_run.rows)
    draw(pictures, *found)
    pictures.keep(tmp_path / "without", small_run.rows, found)
    assert pictures.shown(found) == {}


def test_a_line_that_was_measured_anew_leaves_its_picture_without_a_line(pictures: Any) -> None:
    old, other = entry("clip", 0.9, 0.9, commit="a"), entry("mixup", 0.5, 0.7)
    draw(pictures, old, other)
    anew = old.model_copy(update={"commit": "b"})
    assert pictures.left_over([old, other]) == []
    assert pictures.left_over([anew, other]) == [pictures.path_of(old)]
    draw(pictures, anew)
    assert list(pictures.shown([anew, other])) == [pictures.path_of(anew), pictures.path_of(other)]


def test_adversaries_under_one_attack_share_a_picture_of_the_first_seed_that_has_one(pictures: Any) -> None:
    lines = [
        entry("clip", 0.9, 0.9, threat_model=model, seed=seed) for model in ("query", "weights") for seed in (0, 1, 2)
    ]
    draw(pictures, *(one for one in lines if one.seed))
    ((picture, shown),) = pictures.shown(lines).items()
    assert ([one.seed for one in shown], [one.threat_model for one in shown]) == ([1, 1], ["query", "weights"])
    assert [path.name for path in pictures.left_over(lines)] == [picture.name.replace("-s1-", "-s2-")]


def test_seeds_are_counted_and_a_share_below_nine_tenths_does_not_look_like_it(
    pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = import_module("registry_page")
    lines = [entry("clip", 0.897, 0.9, seed=seed) for seed in (0, 1)] + [entry("mixup", 0.95, 0.9)]
    monkeypatch.setattr(page, "read_registry", lambda: lines)
    assert page.seeds() == "`digits` has 1 with 1 seed and 1 with 2 seeds"
    assert page._least(page.settings(lines), "query") == "`clip` (0.897, accuracy 0.90, 2 seeds)"


def test_the_page_has_a_row_for_each_picture_and_its_check_names_those_without_a_line(
    pictures: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, pages = import_module("registry_page"), import_module("pages")
    lines = [entry("clip", 0.84, 0.9), entry("clip", 0.84, 0.9, threat_model="many_passes"), entry("mixup", 0.5, 0.7)]
    for module in (page, pages):
        monkeypatch.setattr(module, "read_registry", lambda: lines)
    assert page.guesses()[1] == []
    draw(pictures, lines[0])
    heading, (row,) = page.guesses()
    assert dict(zip(heading, row, strict=True)) == {
        "dataset": "digits",
        "setting": "`clip`",
        "guesses": "![Records above, guesses below](../registry/digits/clip-black_box-s0-a.png)",
        "identified": "84 of 100",
        "attack": "black_box",
        "accuracy": "0.90",
        "adversary": "query, many passes",
    }
    draw(pictures, old := entry("clip", 0.7, 0.9, commit="older"))
    monkeypatch.setattr(pages, "pages", dict)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["pages.py", "--check"])
    assert pages.main() == 1
    assert "clip-black_box-s0-older.png belongs to no row" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["pages.py"])
    assert pages.main() == 0
    assert not pictures.path_of(old).exists()
    assert pictures.path_of(lines[0]).exists()
