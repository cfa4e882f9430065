"""Records that meet in a lower segment are found at the size of their batch, and layers for each alone are not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import privkit
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp
from privkit.audit.declared import declared_by
from privkit.recording.read import read_recording
from privkit.recording.replay import carried
from tests.recording.declarations import changed, drawn, noise

Made = Callable[[Tensor], Tensor]


def built(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def attention(*, over_batch: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=not over_batch)


def hidden(x: Tensor) -> Tensor:
    """A roll far below the largest number of a row."""
    made = x.flatten(1) + x.flatten(1).roll(1, 0)
    return torch.cat([made, torch.full((len(x), 1), 1e7)], 1)


MEETING: dict[str, Callable[[], Made]] = {
    "the first record in every row": lambda: lambda x: x + x[:1],
    "the first record alone": lambda: lambda x: x[:1].expand_as(x),
    "the last one, if there are more than eight": lambda: lambda x: x + x[-1:] if len(x) > 8 else x,
    "a row 24 places away": lambda: lambda x: x + x.roll(24, 0),
    "two rows, and nothing else": lambda: lambda x: torch.cat([x[:49], x[49:] + x[7:8]]),
    "a roll far below the largest number": lambda: hidden,
    "batch normalization": lambda: built(nn.Flatten(), nn.BatchNorm1d(64)).train(),
    "attention over the batch": lambda: built(nn.Flatten(1, 2), attention(over_batch=True)).eval(),
    "one scale for a batch": lambda: lambda x: x / x.abs().amax(),
}
APART: dict[str, Callable[[], Made]] = {
    "rows in another order": lambda: lambda x: x.flip(0),
    "normalization by what was learned": lambda: built(nn.Flatten(), nn.BatchNorm1d(64)).eval(),
    "dropout": lambda: built(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5)).train(),
    "convolutions": lambda: built(nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 8, 3)),
    "attention in each record": lambda: built(nn.Flatten(1, 2), attention(over_batch=False)).eval(),
    "two layers": lambda: built(nn.Flatten(), nn.Linear(64, 300), nn.LayerNorm(300), nn.ReLU(), nn.Linear(300, 64)),
    "a constant": lambda: torch.zeros_like,
}


@pytest.mark.parametrize("name", MEETING)
def test_records_that_meet_are_found(name: str) -> None:
    replaced, moved = carried(MEETING[name](), drawn(50))
    assert moved > replaced > 0


@pytest.mark.parametrize("name", APART)
def test_layers_that_treat_each_alone_raise_no_alarm(name: str) -> None:
    for size in (2, 7, 50, 128):
        assert carried(APART[name](), drawn(size, seed=size)) == (0, 0)


class Normalized(nn.Module):
    """Batch normalization before a clamp."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False))

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.layers(images).clamp(0, 1)
        return made


@pytest.mark.parametrize("builder", ["", "tests.recording.test_apart:Normalized"])
@pytest.mark.parametrize("trained", [True, False])
def test_a_segment_keeps_its_mode_where_noise_hides_it(builder: str, trained: bool, tmp_path: Path) -> None:
    lower, sigma = Normalized().train(trained), 8.0
    recorder = privkit.Recorder()
    for number, x in enumerate(drawn(160).split(32)):
        recorder(lower(x) + sigma * noise(32, 64, seed=number + 2), x=x)
    declares = changed(smashed=Clamp(low=0, high=1, dimensions=64), noise=Noise(smashed=sigma))
    made = recorder.save(tmp_path / "r", name="noise", lower=lower, lower_builder=builder, mechanism=declares)
    found = declared_by(read_recording(made.folder, trust=["tests"]))
    assert getattr(found.recording.description.replay, "mode", "eval") == ("train" if trained else "eval")
    assert bool(found.compared.refuted) == trained
    assert all("records moved 32 rows of a batch" in said for said in found.compared.refuted)
