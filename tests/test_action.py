"""The GitHub Action and the pre-commit hook: their commands, run as the services would run them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
CHEAP = "--attack mean_image --dataset tiny_digits --budget smoke --threads 1"


def audited(arguments: str, folder: Path, pictures: str = "false") -> subprocess.CompletedProcess[str]:
    """The step that audits, with the inputs and folders that GitHub would give."""
    assert STEPS["Audit"]["env"] == {"ARGUMENTS": "${{ inputs.arguments }}", "PICTURES": "${{ inputs.pictures }}"}
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"ARGUMENTS": arguments, "PICTURES": pictures, "RUNNER_TEMP": str(folder), "PATH": own}
    given["GITHUB_ACTIONS"] = "true"
    return subprocess.run(
        ["bash", "-e", "-c", STEPS["Audit"]["run"]],
        env=os.environ | given,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_the_action_fails_with_its_gates_and_keeps_what_it_promises(tmp_path: Path) -> None:
    done = audited(f"""--defense patch_shuffle {CHEAP} --gate "ssim<=0.0" --gate 'accuracy>=0'""", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "::error" in done.stdout + done.stderr  # the service reads both
    kept = [Path(line.split("}}/")[1]) for line in STEPS["Keep the report"]["with"]["path"].split("\n") if line]
    assert kept == [Path("privkit/run/report"), Path("privkit/junit.xml")]
    assert "data:image" not in (tmp_path / kept[0] / "index.html").read_text("utf-8")
    assert not (tmp_path / kept[0] / "figures" / "reconstructions.svg").exists()
    assert any("ssim" in one.get("message", "") for one in ElementTree.parse(tmp_path / kept[1]).iter("failure"))
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    command = [*shlex.split(hook["entry"]), str(tmp_path / "privkit" / "run")]
    command[0] = str(Path(sys.executable).parent / command[0])
    assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 1


def test_pictures_of_private_records_are_kept_only_if_they_are_asked_for() -> None:
    assert ACTION["inputs"]["pictures"]["default"] == "false"
    assert "--no-pictures" in STEPS["Audit"]["run"]


def test_nothing_in_the_arguments_is_executed(tmp_path: Path) -> None:
    done = audited("--defense none; touch broken $(touch broken) `touch broken`", tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize(
    "arguments", ["--defense none --gate 'ssim<=0.4", '--gate "ssim<=0.4', "--defense none \\", ""]
)
def test_arguments_that_cannot_be_split_audit_nothing(tmp_path: Path, arguments: str) -> None:
    """An open quote left no argument at all: the default was audited without any gate, and the build was green."""
    left = tmp_path / "privkit" / "run" / "report" / "index.html"  # of another use in the job
    left.parent.mkdir(parents=True)
    left.write_text("clean")
    done = audited(arguments, tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not left.exists()


def test_the_report_is_kept_also_if_the_audit_fails() -> None:
    assert STEPS["Keep the report"]["if"] == "always()"
    assert list(STEPS) == ["Install", "Audit", "Keep the report"]
    assert all("${{" not in step.get("run", "") for step in STEPS.values())
