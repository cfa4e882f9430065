"""What stands in for official files in a dry run: the published shape and number, and nothing of the files."""

from pathlib import Path

import numpy as np
import pytest

from privkit.cli.estimate import preview
from privkit.domains import DATASETS
from privkit.domains.stand_in import OFFICIAL, stand_in
from privkit.errors import DataError
from privkit.parts.registry import parse
from privkit.settings.resolve import resolve


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_stand_in_opens_without_a_root(name: str) -> None:
    spec = parse("datasets", name).spec
    with pytest.raises(DataError, match="needs a data root"):
        spec.open(None, download=False, train_images=1)
    pools = stand_in(spec)
    assert pools is not None
    batch = pools.train.take(np.arange(3))
    assert batch.domain.name == spec.domain
    assert pools.classes == OFFICIAL[name].classes
    assert len(pools.train) == OFFICIAL[name].train


def test_options_of_the_dataset_count() -> None:
    pools = stand_in(parse("datasets", "mnist:classes=[0,4]").spec)
    assert pools is not None
    assert pools.classes == 2
    assert set(pools.train.targets()) == {0, 1}
    faces = stand_in(parse("datasets", "celeba:attribute=all,size=32").spec)
    assert faces is not None
    batch = faces.train.take(np.arange(2))
    assert batch.x.shape == (2, 3, 32, 32)
    assert batch.y.shape == (2, 40)


def test_nothing_stands_in_for_a_dataset_that_needs_no_files() -> None:
    for name in set(DATASETS) - set(OFFICIAL):
        assert stand_in(parse("datasets", name).spec) is None


def test_a_dry_run_needs_no_files_unless_a_root_is_named(tmp_path: Path) -> None:
    small = {"defense": "none", "attack": "mean_image", "dataset": "mnist", "model": "lenet5", "budget": "smoke"}
    text = preview(resolve({**small, "threads": 1}))
    assert text.endswith("the run needs --data-root with the files of mnist")
    assert "1 cells, about" in text
    with pytest.raises(DataError, match="missing"):
        preview(resolve({**small, "threads": 1, "data_root": str(tmp_path)}))
