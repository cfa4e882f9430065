"""The command line: exit codes, one sentence an error, no traceback for a user's mistake."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from privkit.cli.start import main
from tests.forked import forked

Cli = Callable[..., CompletedProcess[str]]
SMALL = ("--dataset", "tiny_digits", "--budget", "smoke", "--threads", "1")

LONG = "x" * 300
MISTAKES = [
    (("audit", "--defense", "batch_shufle"), "did you mean 'batch_shuffle'?"),
    (("audit", "--dataset", "digit"), "did you mean 'digits'?"),
    (("audit", "--defense", "batch_shuffle:kep=1"), "did you mean 'keep'?"),
    (("audit", "--defens", "none"), "--defense"),
    (("audit", "--seed", "one"), "--seed"),
    (("audti",), "audit"),
    (("audit", "--dataset", "cifar10"), "--data-root"),
    (("audit", "--dataset", "cifar10", "--data-root", "absent"), "absent is not a folder"),
    (("audit", "--config", "absent.toml"), "absent.toml"),
    (("audit", "--gate", "sim<3"), "cannot read the gate"),
    (("audit", "--training", "batch_size=1"), "has no effect"),
    (("audit", "--model", "nothing.Lower:nothing.Upper", *SMALL), "cannot import the segment nothing.Lower"),
    (("audit", "--recorded", "a", "--recorded", "b"), "--recorded is given 2 times, and only one value counts"),
    (("report", "absent"), "absent is not a run folder"),
    (("audit", "--training", "batch_size=1000", "--dry-run", *SMALL), "batch_size=1000 is more than"),
    (("audit", "--defense", "none", "--gate", "ssim<=0.0", *SMALL), "a gate judges defenses"),
    (("audit", "--engine", "dusk", "--dry-run", *SMALL), "unknown engine 'dusk'; did you mean 'dask'?"),
    (("audit", "--dataset", "image_folder:size=1000000", "--dry-run"), ">= 1 and <= 1024"),
    (("audit", "--dataset", "digits", "--auxiliary", "digits"), "private dataset itself"),
    (("audit", "--junit", "absent/unit.xml"), "must be a file in a folder that exists"),
    (("report", "absent", "--annotations", "gitlab"), "unknown kind of annotations 'gitlab'"),
    (("verify", LONG), "manifest.json (File name too long)"),
    (("audit", "--out", LONG, *SMALL), f"{LONG} (File name too long); name another with --out"),
    (("audit", "--recorded", LONG), "cannot read recording.json (File name too long)"),
    (("report", "absent", "--junit", LONG), "must be a file in a folder that exists"),
    (("list", "defences"), "did you mean 'defenses'?"),
]


@pytest.mark.parametrize(("arguments", "hint"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_exit_2(
    privkit_cli: Cli, tmp_path: Path, arguments: tuple[str, ...], hint: str
) -> None:
    done = privkit_cli(*arguments)
    assert done.returncode == 2
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_mistake_in_a_configuration_file(privkit_cli: Cli, tmp_path: Path) -> None:
    for text, hint in [
        ("defence = 'none'", "did you mean 'defense'?"),
        ("defense = ", "not valid TOML"),
        ("[training]\nbatch_sise = 3", "did you mean 'batch_size'?"),
        ("[training]\nbatch_size = 'many'", "training: batch_size should be a valid integer, got 'many'"),
        ("download = 'false'", "download must be true or false, got 'false'"),
        ("\x00", "not valid TOML"),
    ]:
        (tmp_path / "audit.toml").write_text(text)
        done = privkit_cli("audit", "--config", "audit.toml")
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
        assert hint in done.stderr


def test_a_configuration_that_is_a_folder(privkit_cli: Cli, tmp_path: Path) -> None:
    done = privkit_cli("audit", "--config", ".")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "cannot read the configuration" in done.stderr


def test_a_module_that_ends_the_program_is_not_taken_for_success(privkit_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(
        "import sys\nfrom torch import nn\nclass Lower(nn.Module):\n    def forward(self, x):\n        sys.exit(0)\n"
        "def upper(classes):\n    return nn.Linear(64, classes)\n"
    )
    done = privkit_cli("audit", "--model", "ending.Lower:ending.upper", "--out", "run", *SMALL)
    assert done.returncode == 3
    assert "a part raised SystemExit(0)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_stops_early_is_no_traceback(loaded: None, tmp_path: Path) -> None:
    def unread() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        main()

    done = forked(unread, ("privkit", "list"), tmp_path)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
def test_a_run_and_its_report_are_readable_by_machines(privkit_cli: Cli, tmp_path: Path) -> None:
    flags = ("--defense", "none", "--attack", "mean_image", "--out", "run", "--json")
    done = privkit_cli("audit", *flags, *SMALL)
    *events, found = map(json.loads, done.stdout.splitlines())
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1], found["event"]) == ("cell", "cell_end", "result")
    assert events[0] == {"event": "cell", "number": 1, "total": 1, "name": "none / mean_image, seed 0"}
    assert {"stage", "step"} < set(kinds)
    assert (done.returncode, found["verdict"]["outcome"], len(found["rows"])) == (0, "empty", 1)
    assert found["rows"][0]["recovered"]["unaligned"]["mse"]["value"] > 0
    assert json.loads(privkit_cli("report", "run", "--json").stdout)["rows"] == found["rows"]


def test_list_is_readable_by_machines_and_people(privkit_cli: Cli) -> None:
    found = json.loads(privkit_cli("list", "--json").stdout)
    assert {entry["name"] for entry in found["defenses"]} >= {"none", "patch_shuffle", "batch_shuffle"}
    (batch,) = (entry for entry in found["defenses"] if entry["name"] == "batch_shuffle")
    assert batch["options"]["keep"] == 0.4
    assert batch["allowed"]["keep"] == "a finite number >= 0 and <= 1"
    only = privkit_cli("list", "models")
    assert only.returncode == 0
    assert "vit_tiny" in only.stdout
    assert "digits" not in only.stdout
    names = [entry["name"] for entry in found["models"]]
    lines = only.stdout.splitlines()[1:]
    starts = {len(line) - len(line.lstrip()) if line.startswith("   ") else line.index("[") for line in lines}
    assert starts == {2 + max(map(len, names)) + 1}
    assert "    depth=12: a whole number >= 1 and <= 1000" in only.stdout
    assert "    cut=conv2: one of conv1, pool1, conv2, pool2, fc1, fc2" in only.stdout


def test_version_and_help(privkit_cli: Cli) -> None:
    assert privkit_cli("--version").stdout.startswith("privkit 0.")
    shown = privkit_cli("--help").stdout
    assert "audit" in shown
    assert "Exit codes" in shown


@pytest.mark.slow
def test_dry_run_prints_the_cells_and_runs_nothing(privkit_cli: Cli, tmp_path: Path) -> None:
    done = privkit_cli("audit", "--dry-run", "--seed", "0", "--seed", "1", *SMALL)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("none-black_box-s0-")
    assert lines[-1].startswith("4 cells, about ")
    assert list(tmp_path.iterdir()) == []


def test_a_run_from_the_command_line(privkit_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "audit.toml").write_text('defense = [{name = "batch_shuffle", keep = 0.25}]\ndataset = "digits"\n')
    arguments = ("audit", "--config", "audit.toml", "--attack", "mean_image", *SMALL, "--out", "run")
    done = privkit_cli(*arguments, "--gate", "accuracy>=0")
    assert done.returncode == 0, done.stderr
    assert "batch_shuffle:keep=0.25" in done.stdout
    assert "no differential privacy" in done.stdout
    assert str(tmp_path / "run" / "report" / "index.html") in done.stdout
    assert "Traceback" not in done.stderr
    results = (tmp_path / "run" / "results.jsonl").read_text()
    assert [json.loads(line)["dataset"] for line in results.splitlines()] == ["tiny_digits"] * 2
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("audit.toml", "run")] == []

    gated = privkit_cli(
        *arguments, "--gate", "accuracy>=0.99", "--quiet", "--junit", "unit.xml", "--annotations", "github"
    )
    assert gated.returncode == 1
    assert "gate failed: batch_shuffle:keep=0.25, seed 0: accuracy is" in gated.stderr
    assert gated.stdout == ""
    failure, annotation = gated.stderr.splitlines()
    assert annotation == f"::error title=privkit::{failure.removeprefix('privkit: gate failed: ').replace('%', '%25')}"
    assert 'failures="1"' in (tmp_path / "unit.xml").read_text()
    again = privkit_cli("report", "run")
    assert again.returncode == 1  # as the run did
    assert (tmp_path / "run" / "results.jsonl").read_text() == results


@pytest.mark.slow
def test_nothing_but_caches_is_written_outside_the_run_folder(tmp_path: Path) -> None:
    """The temporary and the working folder stay empty, and the home but for privkit's own cache."""
    places = {name: tmp_path / name for name in ("home", "temporary", "work")}
    for place in places.values():
        place.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(places["home"]),
        "TMPDIR": str(places["temporary"]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "privkit", "audit", "--attack", "mean_image", *SMALL, "--out", str(tmp_path / "run")],
        cwd=places["work"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    cache = places["home"] / ".cache" / "privkit"
    assert {path for path in places["home"].rglob("*") if cache not in path.parents} == {cache.parent, cache}
    assert not [*places["temporary"].rglob("*"), *places["work"].rglob("*")]
