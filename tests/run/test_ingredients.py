"""A run folder goes on only with what it was made of: data, code, files, versions, device and threads."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from privkit.audit.report import build
from privkit.audit.run import AuditRun, run_audit
from privkit.errors import RunFolderError, UsageError
from privkit.metrics.perception import Perception
from privkit.parts.registry import part_table
from privkit.run import provenance, sources
from privkit.run.records import read_rows

MODULES = {
    "mynets.py": "from torch import nn\n\ndef lower():\n    from myhelper import layer\n\n    return layer()\n\n\n"
    "def upper(classes):\n    return nn.LazyLinear(classes) if False else nn.Linear(12, classes)\n",
    "myhelper.py": "import numpy as np\nfrom pathlib import Path\nfrom torch import nn\n\nWIDTH = 12\n\n\n"
    "def layer():\n"
    "    assert np.load(Path(__file__).parent / 'start.npy').size\n"
    "    return nn.Sequential(nn.Flatten(), nn.Linear(192, WIDTH))\n",
    "myattacks.py": "from dataclasses import dataclass\nfrom typing import ClassVar\n\n"
    "from privkit.attacks.inversion.floors import MidGrey\nfrom myconstants import SHADE\n\n\n"
    "@dataclass(frozen=True, kw_only=True)\nclass Shade(MidGrey):\n    name: ClassVar[str] = 'shade'\n\n"
    "    def run(self, observation, generator, session=None):\n"
    "        return type(super().run(observation, generator))("
    "images=super().run(observation, generator).images * 0 + SHADE)\n",
    "myconstants.py": "SHADE = 0.25\n",
    "mydefenses.py": "from dataclasses import dataclass\nfrom typing import ClassVar\n\n"
    "from privkit.defenses.none import NoDefense\n\n\n@dataclass(frozen=True, kw_only=True)\n"
    "class Open(NoDefense):\n    name: ClassVar[str] = 'open'\n",
}
POINTS = "[privkit.attacks]\nshade = myattacks:Shade\n\n[privkit.defenses]\nopen = mydefenses:Open\n"
NAMES = tuple(name.removesuffix(".py") for name in MODULES)


def restart() -> None:
    """What a new process would know: nothing of the user's modules."""
    for name in NAMES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    part_table.cache_clear()


def pictures(folder: Path, shift: int = 0) -> None:
    """Forty small pictures of two classes, others for another shift."""
    for label in (0, 1):
        (folder / "photos" / str(label)).mkdir(parents=True, exist_ok=True)
        for number in range(20):
            draws = np.random.default_rng(100 * label + number + 1000 * shift)
            image = draws.integers(0, 256, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(image).save(folder / "photos" / str(label) / f"{number}.png")


def command(home: Path, **changes: Any) -> AuditRun:
    """The same command, in a process of its own as far as the user's modules are concerned."""
    restart()
    settings = {
        "model": "mynets.lower:mynets.upper",
        "dataset": "image_folder:size=8",
        "data_root": str(home / "photos"),
        "attack": ["mean_image", "shade"],
        "defense": ["none", "open"],
        "budget": "smoke:private=20,auxiliary=10,test=10,victims=10",
        "training": "batch_size=5",
        "features": "file:net.pt",
        "threads": 1,
        "seed": [0, 1],
        "device": "cpu",
    }
    again, out = changes.pop("again", False), changes.pop("out", home / "run")
    return run_audit(out=out, again=again, **{**settings, **changes})


def network(path: Path, scale: float) -> None:
    """A feature network as a file."""
    last = nn.Linear(12, 12, bias=False)
    with torch.no_grad():
        last.weight.copy_(scale * torch.eye(12))
    torch.jit.script(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), last)).save(str(path))  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a user's own parts, its code and its data: two seeds, two defenses, two attacks."""
    home = tmp_path_factory.mktemp("made")
    for name, text in MODULES.items():
        (home / name).write_text(text)
    (home / "mine-1.0.dist-info").mkdir()
    (home / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (home / "mine-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    network(home / "net.pt", 1.0)
    np.save(home / "start.npy", np.ones(3))
    pictures(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.syspath_prepend(str(home))
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder)
        assert command(home).exit_code in (0, 1)
    restart()
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it to change, on the Python path."""
    copy = Path(shutil.copytree(finished, tmp_path / "home"))
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(str(copy))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(
        "privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html"
    )  # takes seconds
    yield copy
    restart()


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but the copy of the rows, which every start mends."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "results.jsonl"}


def refused(home: Path, **changes: Any) -> str:
    """The sentence with which a command is refused; the folder stays as it was."""
    before = contents(home / "run")
    with pytest.raises(RunFolderError) as caught:
        command(home, **changes)
    assert contents(home / "run") == before
    assert "\n" not in str(caught.value)
    assert "--out" in str(caught.value)
    assert "--again" in str(caught.value)
    return str(caught.value)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def trained(home: Path) -> dict[str, int]:
    """When each model was stored."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (home / "run" / "models").glob("*/trained.json")}


@pytest.mark.slow
def test_the_same_command_with_the_same_things_does_nothing(home: Path) -> None:
    rows, models = read_rows(home / "run"), trained(home)
    assert sorted(read_rows(command(home).folder), key=lambda row: row.cell) == sorted(rows, key=lambda row: row.cell)
    assert trained(home) == models
    made = next(row for row in rows if (row.defense, row.attack) == ("open", "shade")).provenance
    assert set(made.code) == set(NAMES)
    assert made.packages["mine"] == "1.0"


CHANGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "model": (
        lambda home: edit(home / "mynets.py", "nn.Linear(12, classes)", "nn.Linear(12, classes, bias=False)"),
        "the source of mynets;",
        "4 of 4 models, 8 of 8 cells",
    ),
    "a module that the model imports when it is built": (
        lambda home: edit(home / "myhelper.py", "nn.Flatten()", "nn.Flatten(), nn.Identity()"),
        "the source of myhelper;",
        "4 of 4 models, 8 of 8 cells",
    ),
    "attack": (
        lambda home: edit(home / "myattacks.py", "* 0 +", "* 0 + 0.5 *"),
        "the source of myattacks;",
        "0 of 4 models, 4 of 8 cells",
    ),
    "a constant that the attack imports": (
        lambda home: edit(home / "myconstants.py", "0.25", "0.75"),
        "the source of myconstants;",
        "0 of 4 models, 4 of 8 cells",
    ),
    "defense": (
        lambda home: edit(home / "mydefenses.py", "'open'", "'open'  # as before"),
        "the source of mydefenses;",
        "2 of 4 models, 4 of 8 cells",
    ),
    "plug-in": (
        lambda home: edit(home / "mine-1.0.dist-info" / "METADATA", "1.0", "1.1"),
        "mine (1.0 there, 1.1 here);",
        "2 of 4 models, 6 of 8 cells",
    ),
    "weights that the model loads": (
        lambda home: np.save(home / "start.npy", np.zeros(3)),
        "the file start.npy;",
        "4 of 4 models, 8 of 8 cells",
    ),
    "feature network": (
        lambda home: network(home / "net.pt", 2.0),
        "the file file:net.pt;",
        "0 of 4 models, 8 of 8 cells",
    ),
    "images": (
        lambda home: pictures(home, shift=1),
        "the records of seed 0, the records of seed 1;",
        "4 of 4 models, 8 of 8 cells",
    ),
}


@pytest.mark.slow(but=6)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_on_disk_is_refused_and_named(home: Path, change: str) -> None:
    act, named, size = CHANGES[change]
    act(home)
    said = refused(home)
    assert named in said
    assert size in said


def test_other_images_under_another_root_are_refused_and_the_same_ones_are_not(home: Path) -> None:
    rows = read_rows(home / "run")
    shutil.copytree(home / "photos", home / "elsewhere" / "photos")
    shutil.move(home / "photos", home / "gone")
    assert len(command(home, data_root=str(home / "elsewhere" / "photos")).rows) == len(rows)
    pictures(home, shift=1)
    assert "the records of seed 0, the records of seed 1;" in refused(home)


def test_versions_and_privkits_own_source(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.0")
        assert f"torch ({read_rows(home / 'run')[0].provenance.packages['torch']} there, 9.9.0 loaded" in refused(home)
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "own_source", lambda: "f" * 64)
        assert "privkit's own source (both 0.1.0);" in refused(home)
    with monkeypatch.context() as patch:
        patch.setattr("privkit.__version__", "0.2.0")
        assert "privkit (0.1.0, source " in refused(home)


def test_another_device_and_other_threads(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(home, threads=None).rows  # takes over the run's count
    said = refused(home, threads=2)
    assert "threads (1 there, 2 here); restore what changed (--threads 1)," in said
    load = Perception.of
    monkeypatch.setattr("privkit.audit.run.pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(
        "privkit.audit.worker.Perception.of", lambda names, device, own: load(names, torch.device("cpu"), own)
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    said = refused(home, device="auto")
    assert "device (cpu there, cuda, H200 here); restore what changed (--device cpu)," in said


def test_again_recomputes_what_an_edited_attack_touches_and_nothing_else(home: Path) -> None:
    rows, models = {row.cell: row for row in read_rows(home / "run")}, trained(home)
    edit(home / "myconstants.py", "0.25", "0.75")
    run = command(home, again=True)
    assert trained(home) == models
    for row in run.rows:
        before = rows[row.cell]
        if row.attack == "mean_image":
            assert row == before
        else:
            assert row.recovered["unaligned"]["mse"] != before.recovered["unaligned"]["mse"]
            assert row.provenance.code["myconstants"] != before.provenance.code["myconstants"]
    assert len(list((home / "run" / "superseded" / "1" / "cells").iterdir())) == 4
    assert len(read_rows(home / "run")) == 8
    assert command(home).rows == run.rows


def pending(home: Path, seed: int) -> None:
    """As after a kill before this seed."""
    for kind in ("models", "cells"):
        for path in (home / "run" / kind).glob(f"*-s{seed}-*"):
            shutil.rmtree(path)


@pytest.mark.slow
def test_images_replaced_between_two_seeds(home: Path, tmp_path: Path) -> None:
    """Killed after seed 0 and resumed on other images: refused; `again` makes seed 0 anew, and no table mixes both."""
    pending(home, 1)
    pictures(home, shift=1)
    said = refused(home)
    assert "the records of seed 0;" in said
    assert "2 of 4 models, 4 of 8 cells" in said
    rows = command(home, again=True).rows
    assert rows == command(home, out=tmp_path / "straight").rows


@pytest.mark.slow
def test_stored_weights_never_run_under_new_code(home: Path, tmp_path: Path) -> None:
    """A model of which one cell is pending, and none finished, is refused when its code changes."""
    shutil.rmtree(home / "run" / "cells")
    edit(home / "mynets.py", "nn.Linear(12, classes)", "nn.Sequential(nn.Tanh(), nn.Linear(12, classes))")
    assert "the source of mynets;" in refused(home)
    (home / "run" / "models" / next(iter(trained(home))) / "made_of.json").unlink()
    assert "its record is missing" in refused(home)
    assert command(home, again=True).rows == command(home, out=tmp_path / "straight").rows


def test_an_attack_that_crashed_may_be_mended_without_a_word(home: Path) -> None:
    """Its row holds no number, so that nothing finished is touched."""
    for path in (home / "run" / "cells").glob("*-shade-*"):
        shutil.rmtree(path)
    edit(home / "myattacks.py", "* 0 +", "* 0 / 0 @")
    assert [row.status for row in command(home).rows if row.attack == "shade"] == ["error"] * 4
    edit(home / "myattacks.py", "* 0 / 0 @", "* 0 +")
    assert {row.status for row in command(home).rows} == {"done"}


def test_a_module_edited_under_a_living_process_is_refused(home: Path) -> None:
    command(home)
    edit(home / "myconstants.py", "0.25", "0.75")
    with pytest.raises(UsageError, match=r"myconstants\.py was edited after this process imported it.*start Python"):
        sources.sources(["myattacks"])


def test_control_experiments_follow_their_attack(small_run: AuditRun, tmp_path: Path) -> None:
    """Stored gates are taken up by the same attack only, and by other seeds."""
    from privkit.reports.schema import Check, Provenance
    from privkit.run.ledger import RunLedger
    from privkit.run.records import read_manifest

    folder = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    gates = (Check(name="wins", passed=True, detail="", decisive=True),)
    first = Provenance(data={"private": "a"}, code={"mine": "1"})
    manifest = read_manifest(folder)
    assert manifest is not None
    with RunLedger(folder, manifest) as opened:
        path = opened.control({"name": "mine"})
        opened.write_checks(path, 0, first, gates, 2.5)
        assert opened.read_checks(path, 0, first) == (gates, 2.5)
        assert opened.read_checks(path, 1, first.model_copy(update={"data": {"private": "b"}})) == (gates, 2.5)
        assert opened.read_checks(path, 0, first.model_copy(update={"data": {"private": "b"}})) is None
        assert opened.read_checks(path, 1, first.model_copy(update={"code": {"mine": "2"}})) is None


def test_rows_that_are_not_made_alike_say_so_wherever_they_are_shown(small_run: AuditRun, tmp_path: Path) -> None:
    """Also where a stranger wrote them: no line of a LaTeX comment ends early, no column of numbers is replaced."""
    folder = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    first, second = small_run.rows
    machine = {"device": "cuda, H200", "threads": "1\n\\input{x}", "epsilon": "9"}
    other = second.provenance.model_copy(update={"machine": machine})
    rows = [first, second.model_copy(update={"provenance": other})]
    page = build(folder, rows).read_text()
    tables = {path.name: path.read_text() for path in (folder / "report" / "tables").iterdir()}
    for text in (page, tables["audit.md"], tables["audit.tex"]):
        assert "rows differ in more than defense and attack" in text
        assert "device cuda, H200" in text
    assert "% Verdict" in tables["audit.tex"].splitlines()[0]
    bare = [line for line in tables["audit.tex"].splitlines() if not line.startswith("% ")]
    assert bare[0] == r"\begin{tabular}{llrrrrrrrrrrr}"
    assert ",made_of_machine_device," in tables["audit.csv"].splitlines()[0]
    assert "rows differ in more than defense and attack" not in small_run.report.read_text()


def test_what_is_installed_is_read_once_and_again_if_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every audit asks for versions, and the files of all installed packages take a quarter of a CPU second."""
    reads: list[int] = []

    def read() -> Mapping[str, list[str]]:
        reads.append(1)
        return packages_distributions()

    monkeypatch.setattr("privkit.run.provenance.packages_distributions", read)
    installed = [entry for entry in sys.path if entry.endswith("-packages")]  # not the working folder, where files come
    monkeypatch.setattr(sys, "path", [str(tmp_path), *installed])
    assert provenance.versions({"mylib"}) == {}
    assert provenance.versions({"numpy"}) == {"numpy": np.__version__}
    assert len(reads) == 1
    about = tmp_path / "mylib-1.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mylib\nVersion: 1.5\n")
    (about / "top_level.txt").write_text("mylib\n")
    assert provenance.versions({"mylib"}) == {"mylib": "1.5"}
    assert len(reads) == 2
