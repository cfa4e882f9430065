"""A declared shuffle that moved nothing is refuted, and no honest one is."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privkit.audit.declared import declared_by
from privkit.audit.run import run_audit
from privkit.defenses.base import Defense
from privkit.parts.registry import parse
from privkit.recording.read import read_recording
from privkit.recording.recorder import Recorder
from privkit.reports.columns import DECLARATION
from tests.small import generator

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")
ROWS, TOKENS = 20, 16
SHUFFLES = (
    "patch_shuffle:frozen_block=false",
    "batch_shuffle:frozen_block=false",
    "batch_shuffle:keep=.9,frozen_block=false",
    "batch_shuffle:variant=algorithm_2,frozen_block=false",
    "batch_shuffle:variant=kept_in_place,frozen_block=false",
    "batch_shuffle:variant=kept_in_place,keep=.9,frozen_block=false",
)


class Patches(nn.Module):
    """Tokens of an image: its 2x2 patches, each in a linear layer of its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 6, 2, 2)
        with torch.no_grad():
            self.embed.weight.copy_(torch.randn(6, 1, 2, 2, generator=generator()))

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images).flatten(2).transpose(1, 2)


def recorded(folder: Path, defense: str, *, by: str = "", still: int = 0) -> Path:
    """A recording of two rounds that declares `defense`; `by` is what was done but to the first `still` tokens."""
    lower, draws = Patches(), generator()
    images = torch.rand(2 * ROWS, 1, 8, 8, generator=draws)
    recorder, done = Recorder(rounds=2), None
    if by:
        made: Defense = parse("defenses", by).spec
        done = made
    with torch.no_grad():
        for x in images.split(ROWS):
            sent = lower(x)
            if done is not None:
                moved = done.apply(sent[None, :, still:], torch.zeros(1, ROWS), draws)[0].smashed[0]
                sent = torch.cat([sent[:, :still], moved], 1)
            recorder(sent, x=x)
    own = torch.rand(2 * ROWS, 1, 8, 8, generator=draws)
    recorder.save(folder, name="mine", lower=lower, own=own, defense=defense)
    return folder


def refuted(folder: Path) -> list[str]:
    return declared_by(read_recording(folder)).compared.refuted


@pytest.mark.parametrize("defense", SHUFFLES)
def test_a_shuffle_that_moved_nothing_is_refuted_and_an_honest_one_is_not(defense: str, tmp_path: Path) -> None:
    (said,) = refuted(recorded(tmp_path / "lie", defense))
    told = (
        f"but {2 * ROWS * TOKENS} of {2 * ROWS * TOKENS} different tokens in {2 * ROWS} rows are still in their places"
    )
    assert told in said
    assert not refuted(recorded(tmp_path / "truth", defense, by=defense))
    assert not refuted(recorded(tmp_path / "class token", defense, by=defense, still=2))


@pytest.mark.parametrize("chain", ["{noise}+{shuffle}", "{shuffle}+{noise}"])
def test_noise_does_not_hide_that_a_shuffle_moved_nothing(chain: str, tmp_path: Path) -> None:
    noise = "gaussian_noise:sigma=.03"
    defense = chain.format(noise=noise, shuffle="batch_shuffle:frozen_block=false")
    said = refuted(recorded(tmp_path / "lie", defense, by=noise))
    assert any("the recording declares batch_shuffle, but " in one for one in said)
    assert not refuted(recorded(tmp_path / "truth", defense, by=defense))


def test_a_frozen_block_that_nobody_ran_excuses_nothing(tmp_path: Path) -> None:
    assert refuted(recorded(tmp_path / "lie", "patch_shuffle:frozen_block=true"))


def test_a_shuffle_that_keeps_all_tokens_in_place_is_what_it_says(tmp_path: Path) -> None:
    assert not refuted(recorded(tmp_path / "kept", "batch_shuffle:variant=kept_in_place,keep=1,frozen_block=false"))


def test_a_run_on_such_a_recording_fails(tmp_path: Path) -> None:
    """It met every gate before, and said that what the shuffle made of an image cannot be told."""
    lie = recorded(tmp_path / "lie", SHUFFLES[0])
    run = run_audit(recorded=lie, attack="mid_grey", out=tmp_path / "run", budget="smoke", threads=1)
    assert (run.exit_code, run.verdict.outcome) == (1, "failed")
    (check,) = [one for one in run.rows[0].checks if one.name == DECLARATION]
    assert (check.passed, check.decisive) == (False, True)
    assert check.detail.startswith("the recording declares patch_shuffle, but ")
    assert not any("cannot be told" in note for note in run.rows[0].notes)
    truth = recorded(tmp_path / "truth", SHUFFLES[0], by=SHUFFLES[0])
    run = run_audit(recorded=truth, attack="mid_grey", out=tmp_path / "honest", budget="smoke", threads=1)
    assert run.exit_code == 0
