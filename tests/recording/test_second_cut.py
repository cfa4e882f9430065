"""The second cut of a recorded U-shape: what goes down and up in each round, and none of the labels."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from privkit.errors import DataError, UsageError
from privkit.recording.read import read_recording
from privkit.recording.recorder import Recorder
from tests.recording.edited import redescribed
from tests.small import digits

ROWS, ROUNDS = 20, 3


def played(recorder: Recorder) -> list[tuple[Tensor, Tensor]]:
    """Rounds of a U-shape: features, and the gradient at them, which the loop took itself."""
    kept, data = [], digits(ROWS * ROUNDS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lower, middle, tail = nn.Linear(64, 16), nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Linear(8, 10)
    for x, y in zip(data.x.split(ROWS), data.y.split(ROWS), strict=True):
        features = recorder.features(middle(recorder(lower(x.flatten(1)), x=x, y=y)))
        features.retain_grad()
        nn.functional.cross_entropy(tail(features), y).backward()
        assert features.grad is not None
        kept.append((features.detach().clone(), features.grad.clone()))
    return kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorder = Recorder()
    played(recorder)
    recorder.save(tmp_path / "r", name="none")
    return tmp_path / "r"


def test_the_second_cut_comes_back_as_it_was(tmp_path: Path) -> None:
    recorder = Recorder(rounds=2)
    kept = played(recorder)
    recorder.save(tmp_path / "r", name="none")
    found = read_recording(tmp_path / "r")
    assert len(found.second) == len(found.views) == 2
    for view, (features, gradient) in zip(found.second, kept[1:], strict=True):
        assert view.cut_gradient is not None
        assert torch.equal(view.smashed, features)
        assert torch.equal(view.cut_gradient, gradient)
        assert view.labels is None
    assert [len(part) for part in (found.within(victims=ROWS, own=0).second, found.second)] == [1, 2]


BAD: list[tuple[dict[str, Tensor | None], str]] = [
    ({"round_1.features": None}, "round_1.features is missing; a U-shape has features and features_gradient in each"),
    ({"round_2.features_gradient": None}, "round_2.features_gradient is missing; a U-shape has"),
    ({"round_0.labels": torch.arange(ROWS) % 2}, "in a U-shape labels stay at clients, and nothing is mixed; leave"),
    ({"round_1.features": torch.rand(ROWS, 7)}, "round_1.features must be float [20, …], alike in each round, got"),
    ({"round_0.features": torch.ones(ROWS, 8).long()}, "round_0.features must be float [20, …], alike in each round"),
    ({"round_0.features_gradient": torch.rand(5, 8)}, "round_0 has 20 released rows, features [20, 8] and features_"),
]


@pytest.mark.parametrize(("changed", "sentence"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_does_not_fit_is_refused(changed: dict[str, Tensor | None], sentence: str, folder: Path) -> None:
    path = folder / "tensors.safetensors"
    known: dict[str, Any] = {**load_file(path), **changed}
    save_file({name: value for name, value in known.items() if value is not None}, path)
    with pytest.raises(DataError) as told:
        read_recording(redescribed(folder))
    assert sentence in str(told.value)


def test_features_belong_to_every_round(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(UsageError, match="features belong to a recorded round, and there is none yet"):
        recorder.features(torch.rand(ROWS, 8))
    played(recorder)
    recorder(torch.rand(ROWS, 16), x=digits(ROWS).x)
    with pytest.raises(UsageError, match="features were given in 3 of 4 rounds; give those of each round"):
        recorder.save(tmp_path / "r", name="none")
