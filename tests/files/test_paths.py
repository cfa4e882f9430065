"""Names of files and folders: a part's name becomes one, and a path never leaves its folder."""

from pathlib import Path

import pytest

from privkit.errors import RunFolderError, UsageError
from privkit.files.import_path import imported, is_trusted
from privkit.files.paths import file_name, inside, root
from privkit.files.toml_text import TooMuch, parse_toml


def test_a_folder_is_named_without_links_and_steps_up() -> None:
    assert root("/") / "runs" == root("/runs/../runs/")


def test_a_path_stays_inside_its_folder() -> None:
    assert inside(Path("/runs/a"), "cells", "none-s0").as_posix() == "/runs/a/cells/none-s0"
    with pytest.raises(RunFolderError, match="is not a name of a file in /runs/a"):
        inside(Path("/runs/a"), "cells", "../../b")


def test_an_import_path_becomes_a_file_name() -> None:
    assert file_name("gaussian_noise+masking") == "gaussian_noise+masking"
    assert file_name("mine.stages:Squash") == "mine.stages.Squash"
    assert len(file_name("+".join(["gaussian_noise"] * 20))) == 100  # a file system allows 255 for two parts


def test_submodules_of_a_trusted_module_are_trusted() -> None:
    assert is_trusted("mynets.small", ["mynets"])
    assert not is_trusted("mynetsandmore", ["mynets"])


def test_a_misspelt_object_is_suggested() -> None:
    with pytest.raises(UsageError, match=r"function math:sqrot: math has no sqrot; did you mean 'sqrt'\?"):
        imported("the function", "math:sqrot")


def test_a_number_of_toml_has_64_bits() -> None:
    with pytest.raises(TooMuch, match="a whole number must have at most 64 bits, and one has 1329"):
        parse_toml("epochs = 1" + "0" * 400)
