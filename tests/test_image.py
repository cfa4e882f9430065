"""The container image: the Dockerfile, what it is given, and the page that runs it agree with the package."""

import json
import re
import tomllib
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
LINES = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")


def said(instruction: str) -> list[str]:
    """What follows an instruction of the Dockerfile, at each of its places."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")]


def test_the_image_is_given_what_the_package_is_built_from_and_nothing_else() -> None:
    project, setup = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], *setup["package-dir"].values()}
    rules = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in rules
    assert {rule[1:] for rule in rules if rule.startswith("!")} == needed | {f"{one}.py" for one in setup["py-modules"]}


def test_its_python_is_one_that_the_package_allows_and_the_checks_run() -> None:
    (base,) = said("FROM")
    found = re.fullmatch(r"python:(\d+\.\d+)-slim", base)
    assert found
    assert found[1] in SpecifierSet(PYPROJECT["project"]["requires-python"])
    checks = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text("utf-8"))
    assert found[1] in checks["jobs"]["test"]["strategy"]["matrix"]["python"]


def test_it_starts_a_command_of_the_package_as_a_user_without_rights() -> None:
    (entry,) = said("ENTRYPOINT")
    (command,) = json.loads(entry)
    assert command in PYPROJECT["project"]["scripts"]
    (user,) = said("USER")
    assert user not in ("root", "0")


def test_the_page_names_its_arguments_and_its_folder() -> None:
    arguments = {argument.partition("=")[0] for argument in said("ARG")}
    assert set(re.findall(r"--build-arg (\w+)=", PAGE)) == arguments
    assert set(re.findall(r'--volume "\$PWD:([^"]+)"', PAGE)) == {said("WORKDIR")[-1]}
