"""Recordings of texts and table rows: they come back as they were, and each mistake is one sentence."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from privkit.domains.as_json import domain_to_json
from privkit.domains.tokens.domain import Tokens
from privkit.errors import DataError, UsageError
from privkit.files.storage import packed
from privkit.recording import records
from privkit.recording.read import read_recording
from privkit.recording.recorder import Recorder
from tests.recording.edited import redescribed
from tests.recording.kinds import CARS, OWN, ROUNDS, ROWS, WORDS, Fields, Words, cars, recorded, texts
from tests.recording.made import written
from tests.recording.strangers import end, spoiled, within

KINDS: dict[str, tuple[Any, Any, Any]] = {"tokens": (WORDS, Words, texts), "tables": (CARS, Fields, cars)}


def edited(folder: Path, domain: Any = None, **tensors: Tensor | None) -> Path:
    """The folder of a recording with another domain, or other tensors; None leaves one out."""
    path = folder / "tensors.safetensors"
    known = {**load_file(path), **{name.replace("_", ".", 1): value for name, value in tensors.items()}}
    path.write_bytes(packed({name: value for name, value in known.items() if value is not None}))
    if domain is not None:
        (folder / "records.json").write_text(json.dumps(domain))
    return redescribed(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_records_come_back_as_they_were(kind: str, tmp_path: Path) -> None:
    domain, lower, drawn = KINDS[kind]
    recorded(str(tmp_path / "r"), domain, lower())
    found = read_recording(tmp_path / "r")
    assert found.domain == domain
    assert torch.equal(found.truth.x, drawn(ROWS * ROUNDS, 1))
    assert torch.equal(found.own.x, drawn(OWN, 2))
    assert found.description.replay is not None
    assert found.description.replay.distance == 0
    assert set(found.files) == {"lower.pt", "recording.json", "records.json", "tensors.safetensors"}
    again = found.lower()
    assert again is not None
    assert torch.equal(again(found.truth.x[:ROWS]), found.views[0].smashed)


def test_a_changed_vocabulary_is_found(tmp_path: Path) -> None:
    recorded(str(tmp_path / "r"), WORDS, Words())
    path = tmp_path / "r" / "records.json"
    path.write_text(path.read_text().replace("w7", "w8"))
    with pytest.raises(DataError, match=r"records\.json is not what was recorded: its checksum differs"):
        read_recording(tmp_path / "r")


FEWER = domain_to_json(WORDS) | {"vocabulary": WORDS.vocabulary[:20]}
BAD_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"truth_tokens": texts(40, 1) + 40}, "truth.tokens: token ids must lie in 0..31, got "),
    ({"own_tokens": -texts(40, 1)}, "own.tokens: token ids must lie in 0..31, got -"),
    ({"domain": FEWER}, "truth.tokens: token ids must lie in 0..19, got "),
    ({"truth_tokens": texts(40, 1).float()}, "truth.tokens: token sequences must be int64 [N, 6], got torch.float32"),
    ({"truth_tokens": texts(40, 1)[:, :5]}, "truth.tokens: token sequences must be int64 [N, 6], got torch.int64 [40"),
    ({"truth_tokens": texts(39, 1)}, "truth.labels has 40 labels for 39 truth.tokens; give one each"),
    ({"truth_tokens": texts(39, 1), "truth_labels": None}, "39 true token sequences do not match 40 released rows of"),
    ({"truth_images": torch.rand(40, 1, 8, 8)}, "unknown tensor 'truth.images'; 2 rounds of token sequences have"),
    ({"domain": domain_to_json(CARS)}, "unknown tensor 'own.tokens'; 2 rounds of table rows have"),
    ({"domain": domain_to_json(WORDS) | {"length": 10**9}}, "length times the words of the vocabulary is more than"),
    ({"domain": {"name": "images", "shape": [3, 10**9, 10**9]}}, "the images of a round have more than"),
    ({"domain": []}, "records.json: name must be one of images, tokens, tables"),
]


def beyond(column: int, value: float) -> Tensor:
    x = cars(40, 1)
    x[3, column] = value
    return x


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"truth_tables": beyond(3, 3.0)}, "truth.tables: categorical columns must hold whole numbers from 0 to the"),
    ({"truth_tables": beyond(2, 0.5)}, "truth.tables: categorical columns must hold whole numbers from 0 to the"),
    ({"truth_tables": beyond(0, 1.5)}, "truth.tables: dense columns must lie in [0, 1]; scale each by its range"),
    ({"own_tables": cars(40, 1)[:, :3]}, "own.tables: table rows must be float32 [N, 4], got torch.float32 [40, 3]"),
    ({"own_tables": cars(40, 1).long()}, "own.tables: table rows must be float32 [N, 4], got torch.int64 [40, 4]"),
    (
        {"domain": domain_to_json(CARS) | {"values": [["3", "4"], ["red"]]}},
        "categorical columns must hold whole numbers",
    ),
    ({"domain": domain_to_json(WORDS)}, "unknown tensor 'own.tables'; 2 rounds of token sequences have"),
]


@pytest.mark.parametrize(
    ("domain", "changed", "sentence"),
    [(WORDS, *bad) for bad in BAD_TEXTS] + [(CARS, *bad) for bad in BAD_ROWS],
    ids=[f"texts-{number}" for number in range(len(BAD_TEXTS))] + [f"rows-{number}" for number in range(len(BAD_ROWS))],
)
def test_records_that_do_not_fit_are_refused(
    domain: Any, changed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    recorded(str(tmp_path / "r"), domain, Words() if domain is WORDS else Fields())
    with pytest.raises(DataError) as told:
        read_recording(edited(tmp_path / "r", **changed))
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_the_file_of_the_domain_is_limited_and_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(str(tmp_path / "r"), WORDS, Words())
    for given, sentence in (('{"name": "\\ud800"}', "is not JSON"), ("[" * 100_000, "is not JSON")):
        (tmp_path / "r" / "records.json").write_text(given)
        with pytest.raises(DataError, match=sentence):
            read_recording(redescribed(tmp_path / "r"))
    monkeypatch.setattr(records, "_MOST_BYTES", 100)
    with pytest.raises(DataError, match="it is larger than"):
        read_recording(tmp_path / "r")
    for both in ({"records": "records.json"}, {"image_shape": None}):
        folder = redescribed(written(tmp_path / "images"), **both)
        with pytest.raises(DataError, match="give either image_shape, for images, or records, the file that says"):
            read_recording(folder)


def test_the_recorder_asks_for_the_domain(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder(torch.rand(ROWS, 4), x=texts(ROWS, 1))
    with pytest.raises(UsageError, match=r"these records have shape \[6\] each; of texts or table rows give"):
        recorder.save(tmp_path / "r", name="none")
    with pytest.raises(DataError, match=r"truth\.tables: table rows must be float32 \[N, 4\]"):
        recorder.save(tmp_path / "tables", name="none", domain=CARS)
    with pytest.raises(DataError, match=r"truth\.tokens: token sequences must be int64 \[N, 5\]"):
        recorder.save(tmp_path / "words", name="none", domain=Tokens(length=5, vocabulary=WORDS.vocabulary))


@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_domains_end_in_a_sentence(kind: str, count: int, tmp_path: Path) -> None:
    """Each is refused, or harmless: none takes long, or ends in a traceback."""
    domain, lower, _ = KINDS[kind]
    draws, ends = random.Random(1), []
    recorded(str(tmp_path / "honest"), domain, lower())
    plain = json.loads(json.dumps(domain_to_json(domain)))
    for number in range(count):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "honest", folder)
        with within(20):
            ends.append(end(edited(folder, spoiled(plain, draws))))
        shutil.rmtree(folder)
    assert sum(1 for said in ends if said) > count / 2
    assert not any("\n" in said for said in ends)
