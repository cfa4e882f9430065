"""What an older version wrote is read by this one, number by number; what a newer one writes is refused."""

import csv
import importlib
import json
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from privkit.files.sealed import sealed
from privkit.recording.schema import RECORDING_VERSION as RECORDED
from privkit.reports.schema import SCHEMA_VERSION

HERE = Path(__file__).parent
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with what that version wrote."""
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def table(run: Path) -> list[dict[str, str]]:
    with (run / "report" / "tables" / "audit.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_release_keeps_what_it_wrote() -> None:
    series = ".".join(importlib.import_module("privkit").__version__.split(".")[:2])
    assert series in VERSIONS, f"keep what this version writes: python tests/kept/make.py {series}"
    assert sum(path.stat().st_size for path in HERE.glob("*.tar.xz")) < 150_000 * len(VERSIONS)


def test_a_report_repeats_every_number_and_the_exit_code(kept: Path, privkit_cli: Cli) -> None:
    before = table(kept / "run")
    shutil.rmtree(kept / "run" / "report")
    told = privkit_cli("report", "run")
    assert told.returncode == json.loads((kept / "run" / "verdict.json").read_text("utf-8"))["exit_code"] == 0
    assert "falls to nearest_record" in told.stdout
    after = table(kept / "run")
    assert len(after) == len(before) == 6
    for old, new in zip(before, after, strict=True):
        numbers = {name: value for name, value in old.items() if is_number(value)}
        assert len(numbers) >= 15
        assert {name: new.get(name) for name in numbers} == numbers


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_its_files_are_whole_and_a_changed_one_is_found(kept: Path, privkit_cli: Cli) -> None:
    told = privkit_cli("verify", "run")
    assert told.returncode == 0, told.stdout
    assert told.stdout.startswith("whole: ")
    weights = next((kept / "run" / "models").glob("*/client.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    assert privkit_cli("verify", "run").returncode == 3


def test_it_is_compared(kept: Path, privkit_cli: Cli) -> None:
    told = privkit_cli("compare", "run", "run", "--json")
    assert told.returncode == 0, told.stderr
    assert '"ssim"' in told.stdout


@pytest.mark.slow
def test_its_recording_is_audited_and_agrees_with_its_run(kept: Path, privkit_cli: Cli) -> None:
    command = "audit --recorded recording --attack nearest_record --threads 1 --budget smoke --out again --json --quiet"
    told = privkit_cli(*shlex.split(command))
    assert told.returncode == 0, told.stderr
    (found,) = json.loads(told.stdout.splitlines()[-1])["rows"]
    rows = [json.loads(line) for line in (kept / "run" / "results.jsonl").read_text("utf-8").splitlines()]
    (stored,) = [row for row in rows if row["defense"] != "none" and row["attack"].startswith("nearest_record")]
    for metric, scores in stored["recovered"]["unaligned"].items():
        value = found["recovered"]["unaligned"][metric]["value"]
        assert isclose(value, scores["value"], rel_tol=0.02), metric  # another processor rounds differently
    assert found["certificate"]["standing"] == "declared"
    assert isclose(found["certificate"]["epsilon"], stored["certificate"]["epsilon"], rel_tol=1e-3)


def test_its_table_has_the_same_budgets(kept: Path, privkit_cli: Cli) -> None:
    before = json.loads((kept / "budgets.json").read_text("utf-8"))
    told = privkit_cli("epsilon", "table.csv", "--compare", "--out", "again.json")
    assert told.returncode == 3  # a row is refused, then as now
    after = json.loads((kept / "again.json").read_text("utf-8"))
    assert [row["status"] for row in after] == ["ok", "ok", "ok", "error"]
    for old, new in zip(before, after, strict=True):
        assert old.keys() <= new.keys()
        fixed = (
            new["published"] if new["published_order"] is None else new["published_at_order_2"]
        )  # its only order then
        for value, now in ((old["epsilon"], new["epsilon"]), (old["published"], fixed)):
            assert (value is None and now is None) or isclose(value, now, rel_tol=1e-4)


def test_its_ledger_goes_on(kept: Path, privkit_cli: Cli) -> None:
    told = privkit_cli("ledger", "ledger.jsonl", "--delta", "1e-5", "--json")
    assert told.returncode == 0, told.stderr
    assert isclose(json.loads(told.stdout)["epsilon"], 1.698, rel_tol=1e-3)


def test_the_page_names_the_version_that_is_read() -> None:
    page = (HERE.parents[1] / "docs" / "reference" / "run-folder.md").read_text("utf-8")
    assert f"version of its schema (its list of fields), which is {SCHEMA_VERSION} in privkit" in page


def newer(path: Path) -> int:
    """Give a record the version that follows today's, as a later privkit would write it."""
    fields: dict[str, Any] = json.loads(path.read_text("utf-8"))
    del fields["sha256"]
    version = (RECORDED if path.name == "recording.json" else SCHEMA_VERSION) + 1
    path.write_text(sealed({**fields, "schema_version": version}), "utf-8")
    return version


@pytest.mark.parametrize(
    "command",
    [
        "report run",
        "verify run",
        "compare run run",
        "record run --out again",
        "audit --recorded recording --attack nearest_record",
        "audit --dataset tiny_digits --defense batch_shuffle --budget smoke --out run",
    ],
)
def test_what_a_newer_version_wrote_is_refused_in_a_sentence(command: str, kept: Path, privkit_cli: Cli) -> None:
    version = newer(kept / ("recording/recording.json" if "--recorded" in command else "run/manifest.json"))
    files = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    told = privkit_cli(*shlex.split(command))
    assert told.returncode == 2
    assert told.stdout == ""
    assert told.stderr.count("\n") == 1
    assert f"has schema version {version}, and this privkit reads" in told.stderr
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == files
