"""Settings that are wrong in kind, and what counts as the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privkit.errors import UsageError
from privkit.settings.resolve import read_toml, resolve

WRONG = [
    ({"download": "false"}, "download must be true or false, got 'false'"),
    ({"data_root": 5}, "data_root must be the path of a folder, got 5"),
    ({"seed": [[1]]}, "a seed is a whole number"),
    ({"seed": "1"}, "a seed is a whole number"),
    ({"budget": {"name": []}}, "unknown budget '[]'"),
    ({"budget": 3}, "budget is a table of options"),
    ({"device": ["cpu"]}, "device must be auto, cpu, cuda, or cuda:0, cuda:1, …, got"),
    ({"victims": ["private"]}, "victims must be private or test"),
    ({"gate": 0.4}, "a gate is a text such as"),
    ({"gate": ["ssim<=1e999"]}, "cannot read the gate"),
    ({"auxiliary": 5}, "a dataset is a name or a table, got 5"),
    ({"auxiliary": "digits"}, "is the private dataset itself"),
    ({"dataset": "image_folder:size=16", "auxiliary": "image_folder"}, "is the private dataset itself"),
    ({"dataset": "image_folder:size=1000000"}, "size must be a whole number >= 1 and <= 1024"),
    ({"defense": "none", "gate": "ssim<=0.4"}, "a gate judges defenses, and none is audited here"),
    ({"dataset": "breast_cancer", "defense": "gaussian_noise", "gate": "ssim<=0.4"}, "holds table rows, whose guesses"),
    ({"parts": [{"name": "part_1"}]}, "a part of a release has a name, such as part_1, got {'name': 'part_1'}"),
    ({"cell_seconds": 1e30}, "cell_seconds must be a number of seconds above 0 and at most 1e9"),
    ({"cell_memory": "999999999999G"}, "cell_memory is an amount such as 500MiB or 4GiB, at most 1073741824GiB"),
    ({"trust": np.array(["a", "b"])}, "trust takes texts, numbers, and lists or tables of them, got array(['a', 'b']"),
    ({"auxiliary": np.eye(2)}, "auxiliary takes texts, numbers, and lists or tables of them, got array([[1., 0.], [0."),
    ({"defense": [{"name": "scaling", "factor": np.ones(2)}]}, "make a list of the array with its method tolist"),
    ({"victims": torch.ones(2)}, "victims takes texts, numbers, and lists or tables of them, got tensor([1., 1.])"),
    ({5: 1}, "unknown setting '5'"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_wrong_kinds_are_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_file_is_checked_alike(tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text("download = 'false'\n")
    with pytest.raises(UsageError, match="download must be true or false"):
        resolve(read_toml(file))
    file.write_text("\ufeffdownload = true\ndata_root = '~/pictures'\nseed = 3\n")
    found = resolve(read_toml(file))
    assert found.download
    assert found.data_root == Path.home() / "pictures"
    assert found.seeds == (3,)


def test_one_attack_in_two_wordings_is_one_attack() -> None:
    found = resolve({"attack": ["black_box", "black_box:epochs=2"], "budget": "smoke"})
    assert [attack.label for attack in found.attacks] == ["black_box"]
    assert len(resolve({"attack": ["black_box", "black_box:epochs=3"], "budget": "smoke"}).attacks) == 2


def test_one_defense_in_two_wordings_is_one_defense() -> None:
    one, other = (resolve({"defense": f"batch_shuffle:keep={keep}"}) for keep in ("1", "1.0"))
    assert one.fingerprint == other.fingerprint
    assert one.defenses == other.defenses
    assert len(resolve({"defense": ["batch_shuffle:keep=1", "batch_shuffle:keep=1.0"]}).defenses) == 2  # with none


def test_a_baseline_with_options_does_not_stand_in_for_the_plain_one() -> None:
    found = resolve({"defense": "none:frozen_block=true"})
    assert [defense.label for defense in found.defenses] == ["none", "none:frozen_block=true"]


def test_all_attacks_are_those_that_look_at_the_release() -> None:
    names = [attack.name for attack in resolve({"attack": "all"}).attacks]
    assert {"black_box", "jigsaw", "white_box", "unsplit"} <= set(names)
    assert not {"mean_image", "mid_grey"} & set(names)
    assert [attack.label for attack in resolve({"attack": ["black_box:decoder=set", "all"]}).attacks][:2] == [
        "black_box:decoder=set",
        names[0],
    ]


def test_another_file_in_the_data_root_may_be_the_adversarys() -> None:
    """Of a text, a table, and a table of several parties, whose list of files keeps its quotes."""
    lists = ('party_files:files=["p1.csv","p2.csv"]', 'party_files:files=["q1.csv","p2.csv"]')
    for own, other in (
        ("table_file:file=a.csv", "table_file:file=b.csv"),
        ("text_file", "text_file:file=b.tsv"),
        lists,
    ):
        config = resolve({"dataset": own, "auxiliary": other})
        assert config.other is not None
        assert config.other.spec != config.dataset.spec
        with pytest.raises(UsageError, match="is the private dataset itself"):
            resolve({"dataset": own, "auxiliary": own})
    with pytest.raises(UsageError, match="is the private dataset itself"):
        resolve({"dataset": "table_file:file=a.csv", "auxiliary": "table_file:file=./a.csv,skip_bad_rows=true"})
