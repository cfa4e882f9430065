"""The page in headless Chromium: findings of axe, sizes, both color schemes, its script, and how fast it opens."""

import re
import subprocess
from pathlib import Path

import pytest

from privkit.reports.evidence_schema import page as evidence_page
from tests.needs import program
from tests.reports.grids import SHIFTY, grid, named, rendered
from tests.reports.test_evidence import everything

CHROMIUM = program("chromium")
pytestmark = pytest.mark.needs("chromium")
DARK = ("--blink-settings=preferredColorScheme=0",)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars")


def chromium(*arguments: str, profile: Path) -> str:
    assert CHROMIUM is not None
    offline = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    command = (CHROMIUM, *QUIET, *offline, f"--user-data-dir={profile}", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)  # ends a browser that hangs, no claim
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(page: Path, script: str, profile: Path, *flags: str) -> str:
    """What a script finds on a copy of the page that lets it run; it puts its answer into the title."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    probe = page.parent / "probe.html"
    probe.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    dom = chromium("--dump-dom", *flags, probe.as_uri(), profile=profile)
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    return title[1]


AXE = """
onload = () => {
  for (const details of document.querySelectorAll("details")) { details.removeAttribute("name"); details.open = true; }
  axe.run({resultTypes: ["violations"]}).then(found => {
    const grave = found.violations.filter(one => ["serious", "critical"].includes(one.impact));
    const told = node => node.target + " " + node.any.map(one => one.message);
    const words = grave.map(one => one.id + " " + one.nodes.slice(0, 3).map(told).join(" | "));
    document.title = "axe " + found.passes.length + ": " + words;
  });
};
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), DARK], ids=["light", "dark"])
def test_axe_finds_nothing_grave(tmp_path: Path, flags: tuple[str, ...]) -> None:
    import axe_core_python as axe

    evidence = tmp_path / "evidence.html"
    evidence.write_text(evidence_page(everything()))
    script = (Path(axe.__file__).parent / "axe.min.js").read_text().replace("</script", "<\\/script")
    for page in (rendered(grid(named(2), ("black_box", "jigsaw", "canaries"), 2), tmp_path), evidence):
        told = asked(page, script + AXE, tmp_path / "profile", "--virtual-time-budget=20000", *flags)
        assert re.fullmatch(r"axe [1-9]\d*: ", told), told


MEASURES = """
onload = () => {
  const wide = [...document.querySelectorAll(".box")].filter(box => box.scrollWidth > box.clientWidth);
  document.title = [document.documentElement.scrollHeight, document.documentElement.scrollWidth, innerWidth,
    wide.length, getComputedStyle(document.body).backgroundColor].join(" ");
};
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("width", "flags", "most", "ground"),
    [
        (1280, (), 8_000, "rgb(247, 248, 250)"),
        (800, (), 9_000, "rgb(247, 248, 250)"),
        (500, DARK, 12_000, "rgb(15, 18, 23)"),
    ],
    ids=["desk, light", "tablet, light", "phone, dark"],
)
def test_no_table_is_wider_than_its_panel_and_the_page_is_short(
    page: Path, tmp_path: Path, width: int, flags: tuple[str, ...], most: int, ground: str
) -> None:
    told = asked(page, MEASURES, tmp_path, f"--window-size={width},900", *flags)
    height, own, window, wide, color = told.split(maxsplit=4)
    assert (int(own), int(wide), color) == (int(window), 0, ground)
    assert 2_000 < int(height) < most


USED = """
onload = () => {
  const sheet = document.querySelector("#seeds").closest("[data-sheet]"), body = sheet.querySelector("tbody");
  const button = sheet.querySelectorAll("thead button")[5], input = sheet.querySelector("input");
  const place = [...button.closest("tr").children].indexOf(button.parentElement);
  const shown = () => [...body.rows].filter(row => !row.hidden).map(row => parseFloat(row.cells[place].textContent));
  button.click();
  const first = shown().filter(value => !isNaN(value)), up = first.every((value, i) => !i || first[i - 1] <= value);
  button.click();
  const second = shown().filter(value => !isNaN(value));
  const down = second.every((value, i) => !i || second[i - 1] >= value);
  input.value = "jigsaw masking"; input.dispatchEvent(new Event("input"));
  document.title = [up, down, first.length, shown().length, sheet.querySelector("output").textContent].join(", ");
};
"""


def test_names_of_any_length_stay_on_the_page(tmp_path: Path) -> None:
    page = rendered(grid(("none", "x" * 300), ("y" * 120, "canaries"), 1), tmp_path)
    _, own, window, wide, _ = asked(page, MEASURES, tmp_path / "profile", "--window-size=800,900").split(maxsplit=4)
    assert (int(own), int(wide)) == (int(window), 0)


@pytest.mark.parametrize("width", [1000, 500])
def test_evidence_is_as_wide_as_its_window_whatever_its_names(tmp_path: Path, width: int) -> None:
    page = tmp_path / "evidence.html"
    page.write_text(evidence_page(everything()))
    _, own, window, wide, _ = asked(page, MEASURES, tmp_path / "p", f"--window-size={width},900").split(maxsplit=4)
    assert (int(own), int(wide)) == (int(window), 0)


def test_a_table_can_be_sorted_and_filtered(page: Path, tmp_path: Path) -> None:
    assert asked(page, USED, tmp_path) == "true, true, 12, 1, 1 of 16"


def test_the_script_runs_under_the_pages_own_policy_and_no_other(tmp_path: Path) -> None:
    page = rendered(grid(("none", SHIFTY), ("black_box",), 1), tmp_path)
    dom = chromium("--dump-dom", page.as_uri(), profile=tmp_path / "profile")
    assert "<title>privkit audit: &lt;script&gt;" in dom
    assert '<button type="button">' in dom
    forced = tmp_path / "forced.html"
    forced.write_text(page.read_text().replace("</body>", f"{SHIFTY}</body>"))
    assert "<title>owned" not in chromium("--dump-dom", forced.as_uri(), profile=tmp_path / "profile")


LOADED = "onload = () => { document.title = [performance.now(), document.querySelectorAll('*').length].join(' '); };"


@pytest.mark.slow
def test_a_page_of_200_cells_is_small_and_opens_at_once(tmp_path: Path) -> None:
    report = grid(named(10), ("black_box", "white_box", "jigsaw", "sdar", "canaries"), 4, side=64, channels=3)
    assert len(report.rows) == 200
    page = rendered(report, tmp_path)
    assert page.stat().st_size <= 10e6
    # The fastest of three: other work on this machine only adds.
    assert any(float(asked(page, LOADED, tmp_path / "profile").split()[0]) < 1_000 for _ in range(3))
