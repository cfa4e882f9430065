"""The page: what it holds, what it needs, and how it does in a real browser."""

import io
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from privkit.audit.report import build, cell_command
from privkit.audit.run import AuditRun
from privkit.reports.charts import AxisScale, area_chart, score_charts
from privkit.reports.gallery import Pictures, gallery, strip
from privkit.reports.strongest import undefended
from privkit.run.plan import plan
from privkit.run.records import read_rows
from privkit.settings.resolve import resolve
from privkit.shared.interval import Interval
from tests.reports.grids import SHIFTY, grid, named, rendered
from tests.reports.made import made


def test_the_report_can_be_built_again(small_run: AuditRun, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    shutil.rmtree(folder / "report")
    found = build(folder)
    assert found.read_text() == small_run.report.read_text()
    assert {str(p.relative_to(folder / "report")) for p in (folder / "report").rglob("*") if p.is_file()} == {
        "index.html",
        *(f"tables/{name}.{kind}" for name in ("audit", "threats") for kind in ("md", "csv", "tex")),
        "figures/frontier.svg",
        "figures/reconstructions.svg",
    }


def test_the_page_needs_nothing_from_elsewhere_and_links_only_its_own_files(page: Path) -> None:
    text = page.read_text()
    links = set(re.findall(r'(?:src|href)="(?!data:|#)([^"]*)', text))
    assert {"tables/audit.csv", "tables/seeds.csv", "tables/answers.csv", "figures/frontier.svg"} <= links
    assert all((page.parent / link).is_file() for link in links)
    assert not re.search(
        r"url\(|@import|http", re.sub(r'http-equiv|xmlns="[^"]*"|<pre>.*?</pre>', "", text, flags=re.DOTALL)
    )
    anchors = set(re.findall(r'href="#([^"]*)', text))
    assert anchors <= set(re.findall(r'id="([^"]*)', text))


def test_the_verdicts_come_first_and_a_picture_before_any_long_table(page: Path) -> None:
    text = page.read_text()
    order = [
        text.index(mark) for mark in ('id="verdict"', "<img", 'id="threats"', "<svg", 'id="seeds"', 'id="untried"')
    ]
    assert order == sorted(order)
    body = text[text.index('id="seeds"') : text.index("</table>", text.index('id="seeds"'))]
    assert "mean image" not in body  # floors are folded below the table


def test_the_caption_names_the_undefended_model_only_if_it_is_there(page: Path, tmp_path: Path) -> None:
    told = "The diamond is the undefended model"
    assert told in page.read_text()
    alone = grid(tuple(one for one in named(4) if not undefended(one)), ("black_box", "jigsaw"), 1)
    text = rendered(alone, tmp_path).read_text()
    assert 'id="tradeoff"' in text
    assert told not in text


def test_the_page_escapes_what_a_run_says(small_run: AuditRun, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    rows = read_rows(folder)
    evil = rows[1].model_copy(update={"status": "error", "reason": SHIFTY})
    text = build(folder, [rows[0], evil]).read_text()
    assert SHIFTY not in text
    assert SHIFTY.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;") in text


def test_the_command_of_a_cell_plans_this_very_cell(small_run: AuditRun) -> None:
    for row in small_run.rows:
        argv = ("privkit", "audit", "--dataset", "tiny_digits", "--budget=smoke", "--seed", "0", "--out", "run")
        words = shlex.split(cell_command(argv, row).replace("=", " ", 1))
        assert words[:2] == ["privkit", "audit"]
        settings = dict(zip(words[2::2], words[3::2], strict=True))
        assert set(settings) == {"--dataset", "--budget", "--defense", "--attack", "--seed"}
        named = {name.removeprefix("--"): value for name, value in settings.items()}
        config = resolve(named | {"seed": int(named["seed"])})
        assert row.cell in [cell.id for cell in plan(config)]
    assert cell_command(("notebook.py",), small_run.rows[0]) == ""


def test_the_command_of_a_cell_leaves_out_what_would_be_refused_there(small_run: AuditRun) -> None:
    """A gate on an undefended model, the part of a release that is not split, and tuning without anything to tune."""
    row = small_run.rows[1]
    argv = ("privkit", "audit", "--gate", "ssim<=0.9", "--parts=part_1", "--tune", "trials=3", "--budget", "smoke")
    own = f"--budget smoke --defense {row.defense} "
    split, fixed = {"parts": ("part_1",)}, {"notes": (f"{row.attack} was not tuned: it has no field to tune",)}
    assert cell_command(argv, row).startswith(f"privkit audit --tune trials=3 {own}")
    assert cell_command(argv, row.model_copy(update=split)).startswith("privkit audit --parts=part_1 --tune trials=3 ")
    assert cell_command(argv, row.model_copy(update=fixed)).startswith(f"privkit audit {own}")


# pictures and charts


def test_a_strip_shows_the_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), dtype=np.uint8)
    shown = np.asarray(Image.open(io.BytesIO(strip([images, 255 - images]))))
    assert np.array_equal(shown[:8], np.concatenate(list(images), axis=1))
    assert np.array_equal(shown[8:], 255 - shown[:8])
    assert Image.open(io.BytesIO(strip([images[..., :1]], side=4))).size == (12, 4)


def test_originals_stand_once_above_the_guesses_at_them() -> None:
    report = grid(named(3), ("black_box", "jigsaw"), 2)
    found = gallery(report.rows, report.pictures)
    assert [(block.seed, len(block.above), len(block.strongest), len(block.others)) for block in found.blocks] == [
        (0, 2, 3, 3),
        (1, 2, 3, 3),
    ]
    assert [one.name for one in found.blocks[0].above] == ["original", "mean image"]


def test_pictures_never_outgrow_the_page() -> None:
    large = np.zeros((8, 300, 300, 3), dtype=np.uint8)
    rows = [made(cell=str(number), defense=f"mixup:group={number}") for number in range(40)]
    found = gallery(rows, {row.cell: Pictures(truth=large, guess=large) for row in rows})
    assert 16 < found.side < 128
    assert found.left_out == 0
    assert 8 * 40 * 3 * found.side**2 < 6e6


def test_a_roc_curve_lies_beside_what_is_proven(page: Path) -> None:
    report = grid(("mixup",), ("canaries",), 1)
    (told,) = report.told.values()
    roc, bars = score_charts(told)
    gray = [shape for shape in roc.shapes if shape.kind == "ruled-out"]
    corners = [tuple(map(float, corner.split(","))) for corner in gray[0].points.split()]
    limits = told.limits
    assert limits is not None
    places = {
        (round(float(roc.x([f])[0]), 1), round(float(roc.y([t])[0]), 1))
        for f, t in zip(limits.false_positives, limits.true_positives, strict=True)
    }
    assert places <= set(corners)
    assert [shape.kind for shape in bars.shapes] == ["bars no", "bars yes"]


def test_a_page_of_scores_alone_has_no_empty_table_and_shows_proven_curves_first(tmp_path: Path) -> None:
    report = grid(("none", "mixup"), ("canaries",), 1)
    text = rendered(report, tmp_path).read_text()
    assert "All numbers" not in text
    assert text.count('id="numbers"') == 1
    assert text.index("<b>mixup / canaries") < text.index("<b>none / canaries")


def test_a_card_leaves_out_an_interval_that_says_nothing(tmp_path: Path) -> None:
    report = grid(named(2), ("black_box",), 1)
    blank = Interval(value=0.0, low=-1.0, high=1.0, n=9, method="m")
    rows = [row.model_copy(update={"task": {"mcc": blank, "auc": replace(blank, low=0.2)}}) for row in report.rows]
    text = rendered(replace(report, rows=rows), tmp_path).read_text()
    assert "MCC 0.000, AUC 0.000 [0.200, 1.000]" in text


def test_each_failed_check_has_a_comment_line_of_its_own(tmp_path: Path) -> None:
    report = grid(named(2), ("black_box",), 1)
    verdict = report.verdict.model_copy(update={"failures": ("one fails", "another fails by 5 %")})
    rendered(replace(report, verdict=verdict), tmp_path)
    said = (tmp_path / "tables" / "audit.tex").read_text().splitlines()
    assert said[1:3] == ["% one fails", r"% another fails by 5 \%"]
    assert said[3].startswith(r"\begin{tabular}")


def test_areas_by_epoch_have_a_legend_if_there_are_several() -> None:
    area = Interval(value=0.7, low=0.6, high=0.8, n=9, method="m")
    assert area_chart({"a": [area, area]}).keys == []
    assert [key.name for key in area_chart({"a": [area], "b": [area, area]}).keys] == ["a", "b"]


def test_a_logarithmic_scale_puts_decades_at_one_distance() -> None:
    scale = AxisScale(low=0.01, high=1, start=0, end=100, logarithmic=True)
    assert scale([0.01, 0.1, 1, 5]).tolist() == pytest.approx([0, 50, 100, 100])
    assert [text for _, text in AxisScale(low=1, high=4, start=0, end=1, whole=True).ticks] == ["1", "2", "3", "4"]
