"""The files around the code keep their habits: short bullets in the changelog, workflows that call the Makefile."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
BULLETS = re.findall(r"^\* (.+(?:\n  .+)*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_a_bullet_of_the_changelog_is_one_short_sentence() -> None:
    assert len(BULLETS) > 50
    for bullet in BULLETS:
        prose = re.sub(r"`[^`]*`", "Code", bullet)
        assert len(bullet.split()) <= 40, bullet
        assert bullet.endswith("."), bullet
        assert not re.search(r"[.!?]\s+[A-Z]", prose), bullet


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_of_the_makefile_only(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        assert re.fullmatch(r"make [\w-]+", command), command
        assert command.split()[1] in targets, command


def test_there_is_a_workflow() -> None:
    assert WORKFLOWS
