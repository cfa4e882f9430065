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
