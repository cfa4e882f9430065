"""What `Recorder.save` is given beside the rounds: clients, passes, fields; and what a failed or odd save says."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privkit.errors import DataError, UsageError
from privkit.recording.recorder import Recorder
from tests.recording.kinds import CARS, cars
from tests.small import generator

ROWS = 6
X = torch.rand(2 * ROWS, 1, 8, 8, generator=generator())
Y = torch.arange(2 * ROWS) % 2
OWN = torch.rand(9, 1, 8, 8, generator=generator(1))


class Half(nn.Module):
    """A lower segment of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, images: Tensor) -> Tensor:
        return self.factor * images.flatten(1)


def recorded(given: tuple[bool, ...] = (True,), x: Tensor = X) -> Recorder:
    """Two rounds for each pass, with or without the records and labels."""
    recorder = Recorder(rounds=2 * len(given))
    for known in given:
        for one, y in zip(x.split(ROWS), Y.split(ROWS), strict=True):
            recorder(one.flatten(1).float() / 2, **({"x": one, "y": y} if known else {}))
    return recorder


def test_a_save_that_fails_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    """The second one said that the folder holds files already."""
    recorder = recorded()
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(DataError, match=r"own\.labels has 3 labels for 9"):
            recorder.save(folder, name="none", own=OWN, own_labels=Y[:3], lower=Half())
        assert list(tmp_path.iterdir()) == []
    assert len(recorder.save(tmp_path, name="none", own=OWN, lower=Half()).own) == 9


def test_measurements_stand_beside_the_accuracy(tmp_path: Path) -> None:
    """The bytes were dropped."""
    found = recorded().save(tmp_path / "r", name="none", accuracy=(0.9, 10), measured={"bytes_up": 16384})
    measured = found.description.measured
    assert (measured.accuracy, measured.test_images, measured.bytes_up) == (0.9, 10, 16384)
    for wrong in (0.9, (90, 10)):
        with pytest.raises(UsageError, match=r"the share of right answers, from 0 to 1, .* accuracy=\(0.95, 200\)"):
            recorded().save(tmp_path / "s", name="none", accuracy=wrong)  # type: ignore[arg-type]
    twice = {"accuracy": 0.8, "test_images": 10}
    with pytest.raises(UsageError, match="accuracy is given twice, also in measured"):
        recorded().save(tmp_path / "s", name="none", accuracy=(0.9, 10), measured=twice)


@pytest.mark.parametrize("given", [(True, True, True), (True, False, False), (False, True, False)])
def test_passes_send_the_same_records_again(given: tuple[bool, ...], tmp_path: Path) -> None:
    """Records and labels of one pass suffice."""
    found = recorded(given).save(tmp_path / "r", name="none", passes=3, lower=Half())
    assert (found.description.passes, len(found.views)) == (3, 6)
    assert torch.equal(found.truth.x, X)
    assert found.labels is not None
    assert torch.equal(found.labels, Y)
    assert found.description.replay is not None
    assert found.description.replay.distance == 0


def test_what_are_no_passes_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"4 kept rounds are not 3 passes of equal size; keep as many rounds as"):
        recorded((True, True)).save(tmp_path / "r", name="none", passes=3)
    recorder = Recorder()
    for one in (*X.split(ROWS), *X.flip(0).split(ROWS)):
        recorder(one.flatten(1), x=one)
    with pytest.raises(UsageError, match="x of kept round 3 differs from that of round 1; shuffle alike in each pass"):
        recorder.save(tmp_path / "r", name="none", passes=2)


def test_clients_share_a_release(tmp_path: Path) -> None:
    """The batch size of each follows; it was that of the whole."""
    described = recorded().save(tmp_path / "r", name="none", clients=2, lower=Half()).description
    assert (described.clients, described.batch_size) == (2, ROWS // 2)
    assert recorded().save(tmp_path / "s", name="none", batch_size=ROWS).description.batch_size == ROWS
    with pytest.raises(UsageError, match="clients=4 cannot have equally many of the 6 records of a release"):
        recorded().save(tmp_path / "t", name="none", clients=4)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"batch_size": 3},
            "a release has 6 records, so that batch_size=3 does not fit clients=1; leave batch_size out",
        ),
        ({"rounds": 3}, "save fills in rounds by what was recorded; leave it out"),
        ({"watched": 3}, "save fills in watched by what was recorded; leave it out"),
        ({"truth": X}, "unknown field 'truth'"),
        ({"data_set": "digits"}, "unknown field 'data_set'; did you mean 'dataset'?"),
    ],
)
def test_fields_that_do_not_fit_are_a_sentence(fields: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """Some were a TypeError of another function."""
    with pytest.raises(UsageError, match=re.escape(sentence)):
        recorded().save(tmp_path / "r", name="none", **fields)


def test_records_of_some_rounds_are_left_out_with_a_note(tmp_path: Path) -> None:
    recorder = recorded()
    recorder(X[:ROWS].flatten(1) / 2)
    found = recorder.save(tmp_path / "r", name="none", own=OWN, lower=Half())
    assert len(found.truth) == 0
    assert "x was given in 1 of 2 rounds, so it was left out" in found.description.notes


def moved(*factors: float) -> tuple[Recorder, Half]:
    """A round for each factor, and the segment after them."""
    recorder, half = Recorder(), Half()
    for factor in factors:
        recorder(factor * X[:ROWS].flatten(1), x=X[:ROWS])
    return recorder, half


def test_weights_that_moved_after_a_release_are_warned_about(tmp_path: Path) -> None:
    recorder, half = moved(0.5, 0.4)
    with pytest.warns(UserWarning, match=r"the last round, sent again through lower, differs by 0\.25 of its size"):
        recorder.save(tmp_path / "r", name="none", lower=half)
    recorder, half = moved(0.2, 0.4, 0.5, 0.5)
    with pytest.warns(UserWarning, match=r"the last 2 of 4 kept rounds, .* 0\.25 of its size.*Recorder\(rounds=2\)"):
        recorder.save(tmp_path / "s", name="none", lower=half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder, half = moved(0.5, 0.5)
        recorder.save(tmp_path / "t", name="none", lower=half)


def test_images_that_the_loop_normalized_are_refused_at_the_first_round() -> None:
    """They were refused after the training, and with a cure that made `lower` wrong."""
    told = r"x: images are float32 in \[0, 1\], got .*; give them as before a normalization .* \(lower\) do the"
    for x in (4 * X - 2, 255 * X, (255 * X).byte()):
        with pytest.raises(UsageError, match=told):
            Recorder()(torch.rand(len(x), 4), x=x)
        client = nn.Flatten()
        Recorder(client)
        with pytest.raises(UsageError, match=told):
            client(x)
    with pytest.raises(DataError, match=r"use x\.permute\(0, 3, 1, 2\)"):
        Recorder()(torch.rand(len(X), 4), x=X.permute(0, 2, 3, 1))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_floats_of_other_sizes_are_recorded(kind: torch.dtype, tmp_path: Path) -> None:
    """`x.double()` was told to name a builder."""
    found = recorded(x=X.to(kind)).save(tmp_path / "r", name="none", own=OWN.to(kind), lower=Half().to(kind))
    assert found.truth.x.dtype == torch.float32
    assert found.description.replay is not None
    assert found.description.replay.distance < 0.01


def test_a_segment_that_does_not_take_the_records_is_no_missing_builder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lower fails on what was recorded, float32 \[12, 1, 8, 8\] \(RuntimeError"):
        recorded().save(tmp_path / "r", name="none", lower=nn.Linear(3, 3))
    with pytest.raises(UsageError, match=r"upper fails on what was recorded, float32 \[6, 64\] \(RuntimeError"):
        recorded().save(tmp_path / "r", name="none", upper=nn.Linear(3, 3))
    recorder = Recorder()
    recorder(torch.rand(4, 3), x=cars(4, 0).long())
    with pytest.raises(UsageError, match=r"lower fails on what was recorded, int64 \[4, 4\]"):
        recorder.save(tmp_path / "r", name="none", lower=nn.Linear(4, 3), domain=CARS)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_release_that_diverged_is_named_by_its_round(bad: float, tmp_path: Path) -> None:
    """Infinity was called a fault of `replay.distance` in recording.json."""
    recorder, lower = Recorder(), nn.Flatten()
    recorder(torch.full((4, 64), bad), x=torch.rand(4, 1, 8, 8))
    with pytest.raises(DataError, match=r"round_0\.smashed holds NaN or infinity"):
        recorder.save(tmp_path / "r", name="mine", lower=lower)


def test_what_is_no_mechanism_or_no_number_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The first was an AttributeError, and NaN in a record was called a training that diverged."""
    with pytest.raises(UsageError, match=r"mechanism is a .*SplitMechanism, got a dict"):
        recorded().save(tmp_path / "r", name="mine", mechanism={"sigma": 1})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="x: the records hold NaN or infinity; fill what is missing"):
        Recorder()(torch.zeros(2, 3), x=torch.tensor([[0.1, torch.nan], [0.2, 0.3]]))
