"""Shared by the tests of the page."""

from pathlib import Path

import pytest

from tests.reports.grids import grid, named, rendered


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four defenses, four attacks, two seeds."""
    return rendered(
        grid(named(4), ("black_box", "white_box", "jigsaw", "canaries"), 2), tmp_path_factory.mktemp("page")
    )
