"""The documentation's site: every page is on it, it builds without a warning, and it loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.reports.test_page_browser import asked

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """The hooks."""
    spec = spec_from_file_location("privkit_docs_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_stands_once_in_the_navigation(site: ModuleType) -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    nav = yaml.safe_load(text)["nav"]
    named = set(site.pages(nav))
    shown = [page for entry in nav for page in site.pages(site.filled(entry, named))]
    assert sorted(shown) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_a_package_stands_for_its_public_names(site: ModuleType) -> None:
    text = site.on_page_markdown("# Audits\n\n::: privkit\n\n::: privkit.testing.assert_audit\n")
    assert "::: privkit.audit.run.run_audit\n" in text
    assert "__version__" not in text
    assert text.endswith("::: privkit.testing.assert_audit\n")


SEEN = r"""
onload = () => {
  const all = document.querySelectorAll("select"), found = [all.length];
  for (const chosen of ["weights", "query", ""]) {
    for (const one of all) { one.value = chosen; one.dispatchEvent(new Event("input")); }
    found.push(...[...document.querySelectorAll("table")].map(table => table.innerText.replace(/\s+/g, " ")));
  }
  document.title = found.join(" # ");
};
"""


@pytest.mark.needs("chromium")
def test_tables_are_filtered_by_adversary(site: ModuleType, tmp_path: Path) -> None:
    """Where an adversary has a column, the others' go, and rows without a number; else rows that do not name it."""
    wide = [["name", "query", "weights"], *([f"w{n}", ".1", "–" if n else ".2"] for n in range(8))]
    others = "query, weights and many passes"
    long = [["name", "adversary"], *([f"l{n}", others if n < 7 else "weights"] for n in range(8))]
    plain = [["name", "share"], *([f"p{n}", ".1"] for n in range(8))]
    text = site.on_page_content("".join(map(as_html, (wide, long, plain))))
    page = tmp_path / "page.html"
    script = (ROOT / "docs" / "tables.js").read_text("utf-8")
    page.write_text(f'<body class="md-typeset">{text}<script>{script}</script></body>', "utf-8")
    selects, *seen = asked(page, SEEN, tmp_path / "profile").split(" # ")
    every = [" ".join(cell for row in table for cell in row) for table in (wide, long, plain)]
    assert (selects, seen[6:]) == ("2", every)
    assert seen[:3] == ["name weights w0 .2", "name adversary l7 weights", every[2]]
    assert seen[3:6] == [
        "name query " + " ".join(f"w{n} .1" for n in range(8)),
        every[1].removesuffix(" l7 weights"),
        every[2],
    ]


def as_html(table: list[list[str]]) -> str:
    """A table as the site writes it."""
    heading, *body = table
    heads = "".join(f"<th>{cell}</th>" for cell in heading)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.search(r"<(?:script|img|iframe)[^>]* src=\"?(?:https?:)?//", text), page
        assert not re.search(r"<link[^>]* rel=\"?(?:stylesheet|preconnect|icon)[^>]* href=\"?(?:https?:)?//", text), (
            page
        )
    reference = (tmp_path / "reference" / "python" / "attacks.html").read_text("utf-8")
    assert 'id="privkit.attacks.order.jigsaw.Jigsaw"' in reference
