"""What a notebook gets: tables, data frames, pictures, attacks on recorded releases, and the names to find them."""

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privkit
from privkit.attacks.base import NotApplicable
from privkit.audit.run import AuditRun
from privkit.errors import UsageError
from privkit.reports import columns, tables
from privkit.reports.html import html_table
from privkit.reports.seed_intervals import over_seeds
from privkit.settings.resolve import resolve
from tests.reports.made import made
from tests.small import generator


def test_the_public_names_are_found() -> None:
    assert set(dir(privkit)) == {*privkit.__all__}
    assert {"run_audit", "compare", "attack"} <= set(dir(privkit))
    for name in privkit.__all__:
        assert getattr(privkit, name)


def test_a_run_as_table_and_as_data_frame(small_run: AuditRun) -> None:
    assert small_run.table() == tables.table(small_run.rows)
    assert str(small_run.table()).startswith("| defense | attack | seed |")
    frame = small_run.to_pandas()
    lines = list(csv.DictReader(io.StringIO((small_run.report.parent / "tables" / "audit.csv").read_text())))
    assert list(frame["cell"]) == [line["cell"] for line in lines]
    assert list(frame["unaligned_ssim"]) == [float(line["unaligned_ssim"]) for line in lines]
    assert set(frame.columns) == set(lines[0])


def test_without_pandas_a_sentence_says_what_to_install(small_run: AuditRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'privkit-sl\[pandas\]'"):
        small_run.to_pandas()


def test_a_notebook_shows_verdict_tables_and_pictures(small_run: AuditRun) -> None:
    page = small_run._repr_html_()
    assert small_run.verdict.sentence in page
    assert page.count("<table>") == 1
    assert 'src="data:image/svg+xml;base64,' in page
    evil = tables.Table(headers=("<b>",), rows=(("<script>",),), floor=(True,))
    assert html_table(evil, "<i>").count("&lt;") == 3
    assert "<script>" not in html_table(evil)


def test_every_table_has_a_csv() -> None:
    rows = [made(seed=0, cell="a"), made(seed=1, cell="b")]
    (line,) = csv.DictReader(io.StringIO(columns.seeds_csv(over_seeds(rows))))
    assert (line["defense"], line["seeds"], float(line["ssim"])) == ("batch_shuffle", "0 1", 0.3)
    assert float(line["ssim_low"]) <= 0.3 <= float(line["ssim_high"])
    told = made(answers={"auc": rows[0].accuracy, "direct": rows[0].accuracy})
    for answer in ("auc", "direct"):
        (line,) = csv.DictReader(io.StringIO(columns.answers_csv([rows[0], told], answer)))
        assert [float(line[name]) for name in (f"{answer}_low", answer, f"{answer}_high")] == [0.8, 0.9, 0.95]


def test_recorded_releases_are_attacked_with_and_without_the_truth() -> None:
    private, own = torch.rand(2, 8, 1, 8, 8, generator=generator())
    client = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Unflatten(1, (16, 4)))
    with torch.no_grad():
        views = [client(part) for part in private.split(4)]
    found = privkit.attack(views, "black_box:epochs=1", auxiliary=own, query=client, truth=private, controls=False)
    assert found.guess.shape == private.shape
    assert [line[0] for line in found.table().rows] == ["attack", "mid-grey", "mean image"]
    assert "data:image/png" in found._repr_html_()
    blind = privkit.attack(views, "mid_grey", image_shape=(1, 8, 8))
    assert (blind.scores, blind.floors, blind.controls) == ({}, {}, ())
    assert bool((blind.guess == 0.5).all())


def test_what_cannot_be_attacked_is_said() -> None:
    images = torch.rand(4, 1, 8, 8, generator=generator())
    views = [images.flatten(1)]
    with pytest.raises(UsageError, match="label_leak does not; name another attack"):
        privkit.attack(views, "label_leak", auxiliary=images)
    with pytest.raises(UsageError, match="give image_shape"):
        privkit.attack(views, "mid_grey")
    with pytest.raises(UsageError, match=r"truth must be \[4, 1, 8, 8\], got \[3, 1, 8, 8\]"):
        privkit.attack(views, "mid_grey", truth=images[:3], image_shape=(1, 8, 8))
    with pytest.raises(NotApplicable, match="black_box needs query"):
        privkit.attack(views, auxiliary=images)
    with pytest.raises(UsageError, match="at least one recorded release"):
        privkit.attack([], "mid_grey", image_shape=(1, 8, 8))


@pytest.mark.slow
def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "python.md").read_text("utf-8")
    audit, attack, floor = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    asked: dict[str, object] = {}
    monkeypatch.setattr(privkit, "run_audit", lambda **settings: asked.update(settings), raising=False)
    names: dict[str, Any] = {}
    exec(audit, names)
    asked.pop("out")
    assert resolve(asked).seeds == (0, 1, 2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(attack.replace("500", "60").replace("100", "10").replace("50", "5").replace("16", "8"), names)
    found = names["found"]
    assert found.scores["unaligned"]["ssim"].low > found.floors["mean_image"]["unaligned"]["ssim"].high
    exec(floor, names)
    assert 0 < names["floor"].low < names["floor"].prior
