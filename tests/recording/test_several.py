"""Recordings whose records have several labels each: they come back as they were, and each mistake is one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import BoxLabels, OneHot
from privkit.audit.declared import declared_by
from privkit.errors import DataError, UsageError
from privkit.recording.read import read_recording
from privkit.recording.recorder import Recorder
from tests.recording.declarations import ROWS as FEW
from tests.recording.declarations import SIGMA, changed, declared, drawn, noise
from tests.recording.made import ROUNDS, ROWS, written
from tests.small import generator

ALL, OWN, L = ROUNDS * ROWS, 40, 3
FACTS = torch.randint(2, (ALL, L), generator=generator(3))
OF_OWN = torch.randint(2, (OWN, L), generator=generator(4))
SENT: dict[str, Tensor | None] = {f"round_{number}.labels": part for number, part in enumerate(FACTS.split(ROWS))}


def test_a_recorder_keeps_several_labels_a_record(tmp_path: Path) -> None:
    recorder, images = Recorder(), torch.rand(ALL, 1, 8, 8, generator=generator())
    for x, y in zip(images.split(ROWS), FACTS.split(ROWS), strict=True):
        recorder(x.flatten(1), x=x, y=y)
    own = torch.rand(OWN, 1, 8, 8, generator=generator(1))
    found = recorder.save(tmp_path / "r", name="none", own=own, own_labels=OF_OWN)
    assert found.labels is not None
    assert torch.equal(found.labels, FACTS)
    assert torch.equal(found.truth.y, FACTS)
    assert torch.equal(found.own.y, OF_OWN)
    assert (found.classes, found.several) == (L, True)
    within = found.within(victims=ROWS, own=5)
    assert torch.equal(within.truth.y, FACTS[-ROWS:])
    assert torch.equal(within.own.y, OF_OWN[:5])


def test_rounds_with_labels_of_two_shapes_are_refused(tmp_path: Path) -> None:
    recorder = Recorder()
    for y in (FACTS[:ROWS], FACTS[:ROWS, 0]):
        recorder(torch.rand(ROWS, 4), x=torch.rand(ROWS, 1, 8, 8), y=y)
    with pytest.raises(UsageError, match=r"a row of y has shape \[3\] and \[\] in recorded rounds; give one shape"):
        recorder.save(tmp_path / "r", name="none")


def test_labels_that_travel_come_back(tmp_path: Path) -> None:
    given = {**SENT, "truth.labels": FACTS.to(torch.uint8), "truth.images": None}
    found = read_recording(written(tmp_path / "r", given, classes=L))
    labels = [view.labels for view in found.views if view.labels is not None]
    assert torch.equal(torch.cat(labels), FACTS)
    assert {one.dtype for one in labels} == {torch.int64}
    # Without true records, the labels still say of which kind they are.
    assert (found.several, len(found.truth), found.classes) == (True, 0, L)


ONE = torch.arange(ALL) % 3
BAD: list[tuple[dict[str, Tensor | None], int | None, str]] = [
    (
        {"truth.labels": 2 * FACTS},
        None,
        "truth.labels has several labels per record, which must be 0 or 1 each, got 0..2",
    ),
    ({"own.labels": -OF_OWN}, None, "own.labels has several labels per record, which must be 0 or 1 each, got -1..0"),
    ({**SENT, "round_1.labels": FACTS[:ROWS] + 1}, None, "round_1.labels has several labels per record, which must be"),
    ({"truth.labels": FACTS}, 5, "truth.labels has 3 labels per record, and the number must be 5, as classes says"),
    (SENT, 2, "round_0.labels has 3 labels per record, and the number must be 2, as classes says"),
    (
        {"truth.labels": FACTS[:, :1].contiguous()},
        None,
        "truth.labels has 1 labels per record, and the number must be 2..100000",
    ),
    ({"truth.labels": FACTS.float()}, None, "truth.labels must be whole numbers, [N] from 0 or [N, L] of 0 and 1, got"),
    ({"truth.labels": FACTS[:, None]}, None, "[N, L] of 0 and 1, got torch.int64 [12, 1, 3]"),
    (
        {"own.labels": OF_OWN, "truth.labels": ONE},
        None,
        "own.labels is [40, 3], and truth.labels [12]; give either one",
    ),
    (
        {"own.labels": OF_OWN[:, :2].contiguous(), "truth.labels": FACTS},
        None,
        "own.labels is [40, 2], and truth.labels [12, 3]; give",
    ),
    ({**SENT, "truth.labels": ONE}, None, "round_0.labels is [6, 3], and truth.labels [12]; give either one label"),
    ({**SENT, "round_1.labels": ONE[:ROWS]}, None, "round_0.labels is [6, 3], and round_1.labels [6]; give either"),
    (
        {"truth.labels": FACTS, "round_0.labels": torch.rand(ROWS, 5)},
        None,
        "and round_0.labels [6, 5]; give either one",
    ),
    ({"truth.labels": FACTS[:5]}, None, "truth.labels has 5 labels for 12 truth.images; give one each"),
]


@pytest.mark.parametrize(("changed", "classes", "sentence"), BAD, ids=[case[2] for case in BAD])
def test_several_labels_that_do_not_fit(
    changed: dict[str, Tensor | None], classes: int | None, sentence: str, tmp_path: Path
) -> None:
    described: dict[str, Any] = {} if classes is None else {"classes": classes}
    with pytest.raises(DataError, match=re.escape(sentence)):
        read_recording(written(tmp_path / "r", changed, **described))


@pytest.mark.parametrize(
    ("added", "labels", "refuted"),
    [
        (0.5, BoxLabels(classes=L), ""),
        (0.05, BoxLabels(classes=L), "noise of 0.5 on labels"),
        (0.5, OneHot(), "the recording declares one-hot labels, but a record has 3"),
    ],
)
def test_declared_labels_of_several_a_record_are_compared(
    added: float, labels: OneHot | BoxLabels, refuted: str, tmp_path: Path
) -> None:
    x = drawn()
    facts = torch.randint(2, (len(x), L), generator=generator(5))
    sent = facts + added * noise(len(x), L, seed=2)
    also: dict[str, Any] = {f"round_{number}.labels": part for number, part in enumerate(sent.split(FEW))}
    given: dict[str, Any] = {"labels": labels, "unit": "client", "lower_model": "trained"}
    mechanism = changed(noise=Noise(smashed=SIGMA, labels=0.5), rounds=5, releases=8, **given)
    released = x / 2 + SIGMA * noise(*x.shape)
    compared = declared_by(
        declared(tmp_path / "r", released, x, mechanism, also={**also, "truth.labels": facts})
    ).compared
    assert len(compared.refuted) == bool(refuted)
    assert refuted in "".join(compared.refuted)
    assert ("the range of labels" in compared.checked) == isinstance(labels, BoxLabels)
