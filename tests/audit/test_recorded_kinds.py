"""Audits of recorded texts, table rows and U-shapes: what is mounted, where it wins, and where it must not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks import base
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.audit.export import export
from privkit.audit.goals import label_adversary, labels
from privkit.audit.run import run_audit
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.errors import UsageError
from privkit.recording.recorder import Recorder
from privkit.recording.write import write_recording
from privkit.reports.schema import Row
from privkit.settings.resolve import resolve
from privkit.shared.measures import TOKENS
from tests.audit.audits import registered
from tests.audit.test_truth_outside import reachable, tells
from tests.recording.kinds import CARS, OWN, ROUNDS, ROWS, WORDS, Fields, Shuffled, Words, cars, recorded, texts
from tests.small import IMAGES, SMALL, digits, generator

TINY: dict[str, Any] = {"budget": f"smoke:victims={ROWS * ROUNDS},auxiliary={OWN}", "threads": 1}
LOUD = 30.0
pytestmark = pytest.mark.usefixtures("no_report", "no_controls")


def rows(folder: Path, *attacks: str, **settings: Any) -> dict[str, Row]:
    run = run_audit(recorded=folder / "r", attack=list(attacks), out=folder / "run", **{**TINY, **settings})
    return {row.attack: row for row in run.rows}


def gain(row: Row, metric: str) -> float:
    """How much more an attack recovers than the best floor.

    Over eight seeds, undefended: texts 0.93 (sd 0.01), tables 0.71 (0.04); through loud noise at most 0.05.
    """
    assert (row.status, row.reason) == ("done", "")
    floors = [floor["unaligned"][metric].value for name, floor in row.floors.items() if name != "zero_steps"]
    return row.recovered["unaligned"][metric].value - max(floors)


TEXT_ATTACKS = ("vocabulary:epochs=1", "token_search:epochs=1", "nearest_record")
TABLE_ATTACKS = ("black_box:epochs=5", "field_order", "nearest_record")


def test_a_recorded_text_is_read_if_nothing_defends_it(tmp_path: Path) -> None:
    recorded(str(tmp_path / "r"), WORDS, Words())
    found = rows(tmp_path, *TEXT_ATTACKS)
    for row in found.values():
        assert row.records == "token sequences"
        assert set(row.floors) == {floor.name for floor in TOKENS.floors}
        assert gain(row, "token_accuracy") > 0.8


def test_a_recorded_text_is_not_read_through_loud_noise(tmp_path: Path) -> None:
    recorded(str(tmp_path / "r"), WORDS, Words(), LOUD)
    assert max(gain(row, "token_accuracy") for row in rows(tmp_path, *TEXT_ATTACKS).values()) < 0.2


def test_a_recorded_table_is_read_if_nothing_defends_it(tmp_path: Path) -> None:
    recorded(str(tmp_path / "r"), CARS, Fields())
    found = rows(tmp_path, *TABLE_ATTACKS)
    for row in found.values():
        assert row.records == "table rows"
        assert gain(row, "cells") > 0.4
        assert any(note.startswith("smallest errors by column: ") for note in row.notes)


def test_a_recorded_table_is_not_read_through_loud_noise(tmp_path: Path) -> None:
    recorded(str(tmp_path / "r"), CARS, Fields(), LOUD)
    assert max(gain(row, "cells") for row in rows(tmp_path, *TABLE_ATTACKS).values()) < 0.2


@pytest.mark.parametrize("domain", [WORDS, CARS], ids=["tokens", "tables"])
def test_guesses_of_unknown_records_are_kept(domain: Tokens | Tables, tmp_path: Path) -> None:
    lower = Words() if domain is WORDS else Fields()
    truth = (texts if domain is WORDS else cars)(ROWS * ROUNDS, 1)
    recorded(str(tmp_path / "r"), domain, lower, known=False)
    (row,) = rows(tmp_path, "nearest_record", trust=["tests"]).values()
    assert (row.status, row.reason, row.recovered) == ("done", "", {})
    guesses = torch.from_numpy(np.load(tmp_path / "run" / "cells" / row.cell / "guesses.npz")["guess"])
    assert (guesses.shape, guesses.dtype) == (truth.shape, truth.dtype)
    assert ((guesses - truth).abs() < 0.1).float().mean() > 0.5


def test_fields_are_put_back_behind_a_recorded_shuffle(tmp_path: Path) -> None:
    """The recording names the shuffle, so that the adversary knows what came before it."""
    recorder, client = Recorder(), Shuffled(Fields())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for x in cars(ROWS * ROUNDS, 1).split(ROWS):
            recorder(client(x).detach(), x=x)
    built: dict[str, Any] = {"lower": client.lower, "lower_builder": "tests.recording.kinds:Fields"}
    recorder.save(tmp_path / "r", name="shuffle", own=cars(OWN, 2), domain=CARS, defense="patch_shuffle", **built)
    found = rows(tmp_path, "field_order", "nearest_record", trust=["tests"])
    assert gain(found["field_order"], "cells") > 0.4
    assert gain(found["nearest_record"], "cells") < 0.35


def padded() -> Words:
    """A lower segment with more embeddings than words, as published models have."""
    return Words(60)


def test_a_search_guesses_no_word_beyond_the_vocabulary(tmp_path: Path) -> None:
    """It ended in an error behind noise: rows of the embedding stood for no word."""
    recorder, lower = Recorder(), padded()
    for x in texts(ROWS * ROUNDS, 1).split(ROWS):
        released = lower(x).detach()
        recorder(released + 2 * torch.randn(released.shape, generator=generator()), x=x)
    built = "tests.audit.test_recorded_kinds:padded"
    recorder.save(tmp_path / "r", name="noise", own=texts(OWN, 2), lower=lower, lower_builder=built, domain=WORDS)
    (row,) = rows(tmp_path, "token_search:epochs=1", trust=["tests"]).values()
    assert (row.status, row.reason) == ("done", "")


def test_auto_mounts_the_attacks_of_the_records(tmp_path: Path) -> None:
    general = {"tokens": ["vocabulary", "token_decoder", "token_search", "nearest_record"]}
    general["tables"] = ["black_box", "ridge", "nearest_record", "field_order", "ridge"]
    for domain, lower in ((WORDS, Words()), (CARS, Fields())):
        home = tmp_path / domain.name
        recorded(str(home), domain, lower)
        config = resolve({"recorded": str(home), "attack": "auto"})
        assert [attack.name for attack in config.every_attack] == general[domain.name]
    recorder = Recorder()
    recorder(torch.rand(ROWS, 4), x=texts(ROWS, 1))
    recorder.save(tmp_path / "alone", name="none", own=texts(OWN, 2), domain=WORDS)
    with pytest.raises(UsageError, match="auto finds no attack for this recording, which lacks own records or a lower"):
        resolve({"recorded": str(tmp_path / "alone"), "attack": "auto"})


def test_what_reads_other_records_says_so(tmp_path: Path) -> None:
    recorded(str(tmp_path / "r"), WORDS, Words())
    (row,) = rows(tmp_path, "white_box").values()
    assert row.reason.startswith("white_box reconstructs images, and these records are token sequences")
    recorder = Recorder()
    recorder(torch.rand(ROWS, 4), x=texts(ROWS, 1), y=torch.arange(ROWS) % 2)
    own_labels = torch.arange(OWN) % 2
    recorder.save(tmp_path / "labels", name="none", own=texts(OWN, 2), own_labels=own_labels, domain=WORDS)
    with pytest.raises(UsageError, match="features=classifier looks at images, and recorded holds token sequences"):
        resolve({"recorded": str(tmp_path / "labels"), "attack": "nearest_record", "features": "classifier"})


@pytest.mark.parametrize(("domain", "lower"), [(WORDS, Words(20)), (CARS, Fields(colors=2))], ids=["texts", "tables"])
def test_a_lower_segment_with_fewer_words_or_categories_is_refused(
    domain: Any, lower: nn.Module, tmp_path: Path
) -> None:
    """The records themselves hold ids that it knows."""
    x = texts(ROWS, 1) % 20 if domain is WORDS else cars(ROWS, 1) * torch.tensor([1.0, 1.0, 1.0, 0.0])
    recorder = Recorder()
    recorder(lower(x).detach(), x=x)
    recorder.save(tmp_path / "r", name="none", own=x.repeat(2, 1), lower=lower, domain=domain)
    with pytest.raises(UsageError, match="of the largest ids, so it embeds fewer words or categories than the recor"):
        rows(tmp_path, "nearest_record")


@dataclass(frozen=True, kw_only=True)
class Spy:
    """An attack that keeps all that it was given."""

    name: ClassVar[str] = "spy"
    goal: ClassVar[str] = "reconstruct"
    mounting: ClassVar[ImageMounting] = ImageMounting(domains=("any",), ignores_views=True)
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary", "auxiliary_labels", "query", "lower", "upper", "imitate"})
    seen: ClassVar[list[ImageObservation]] = []

    def run(
        self, observation: ImageObservation, generator: Generator, session: base.Session | None = None
    ) -> Reconstruction:
        self.seen.append(observation)
        return Reconstruction(images=torch.zeros(ROWS * ROUNDS, WORDS.length, dtype=torch.int64))


def test_no_true_text_can_be_reached_by_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, Spy)
    Spy.seen.clear()
    recorded(str(tmp_path / "r"), WORDS, Words())
    rows(tmp_path, "spy")
    (observation,), true = Spy.seen, texts(ROWS * ROUNDS, 1)

    def leaks(*given: Any) -> bool:
        whole = [one for one in reachable(*given) if one.dtype == torch.int64 and one.numel() % WORDS.length == 0]
        return any(bool((one.view(-1, 1, WORDS.length) == true).all(2).any()) for one in whole)

    assert not leaks(observation)
    assert leaks([observation, {"deep": true[3:4]}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "attacks"),
    [
        ("definitions:length=6,vocabulary=50", ["vocabulary:epochs=1", "token_search:epochs=1", "nearest_record"]),
        ("auto_mpg", ["black_box:epochs=1", "nearest_record"]),
    ],
    ids=["texts", "tables"],
)
def test_a_trained_model_of_texts_or_tables_is_recorded(dataset: str, attacks: list[str], tmp_path: Path) -> None:
    """The audit of its recording has the run's numbers, bit for bit."""
    budget: dict[str, Any] = {"budget": "smoke:private=60,auxiliary=280,test=40,victims=20,epochs=1", "threads": 1}
    given: dict[str, Any] = {"defense": "gaussian_noise:sigma=.1,clip=5", "training": "batch_size=10"}
    run = run_audit(dataset=dataset, attack=attacks, out=tmp_path / "trained", **given, **budget)
    export(tmp_path / "trained", tmp_path / "r")
    again = rows(tmp_path, *attacks, **budget)
    own = [row for row in run.rows if row.defense != "none"]
    assert len(own) == len(attacks)
    for row in own:
        found = again[row.attack]
        for field in ("status", "reason", "records", "recovered", "floors", "attack_curve", "accuracy"):
            assert getattr(found, field) == getattr(row, field), (row.attack, field)
        assert found.certificate is not None
        assert row.certificate is not None
        assert found.certificate.epsilon == row.certificate.epsilon


def u_shape(folder: Path, rounds: int = 2, size: int = 60) -> None:
    """Rounds of a U-shape in a user's loop, of which the last ones are recorded."""
    recorder, data = Recorder(rounds=rounds), digits(6 * size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lower = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        middle, tail = nn.Sequential(nn.Linear(32, 16), nn.ReLU()), nn.Linear(16, 10)
    optimizer = torch.optim.Adam([*lower.parameters(), *middle.parameters(), *tail.parameters()], lr=0.01)
    for x, y in zip(data.x.split(size), data.y.split(size), strict=True):
        features = recorder.features(middle(recorder(lower(x), x=x, y=y)))
        optimizer.zero_grad()
        nn.functional.cross_entropy(tail(features), y).backward()
        optimizer.step()
    recorder.save(folder / "r", name="none", own=data.x[:size], own_labels=data.y[:size], lower=lower, upper=middle)


def test_labels_of_a_recorded_u_shape_are_asked_for_at_both_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    u_shape(tmp_path)
    given: list[tuple[Any, Tensor, str]] = []
    inner = label_adversary.observed

    def observed(*of: Any) -> Any:
        seen = inner(*of)
        given.append((seen, of[3], of[5]))
        return seen

    monkeypatch.setattr(labels, "observed", observed)
    budget = "smoke:victims=120"
    found = rows(tmp_path, "label_leak", "release_clustering", "sdar", "gradient_matching", budget=budget)
    assert found["release_clustering"].answers["label_accuracy"].value > 0.9
    for name in ("label_leak", "release_clustering"):
        assert any("the server of a U-shape was asked for the clients' labels: AUC" in n for n in found[name].notes)
    assert [cut for *_, cut in given] == ["second", "first"] * 3  # that of gradient_matching is refused after it
    for seen, true, _ in given:
        assert not tells(true, seen)
        assert tells(true, {"deep": [seen, true]})
    for name in ("sdar", "gradient_matching"):
        assert (found[name].status, "needs upper" in found[name].reason) == ("not_applicable", True)


@pytest.mark.slow
def test_a_recorded_u_shape_gives_the_numbers_of_its_training(tmp_path: Path) -> None:
    attacks = ["label_leak:epoch=0", "release_clustering:epoch=0"]
    settings = {**SMALL, "budget": "smoke:private=200,auxiliary=200,epochs=2"}
    run = run_audit(defense="none", attack=attacks, protocol="u_shape", out=tmp_path / "trained", **settings)
    (kept,) = labels._KEPT.values()
    write_recording(
        tmp_path / "r",
        [one.view for one in kept.rounds],
        domain=IMAGES,
        second=[one.returned[0] for one in kept.rounds],
        files={},
        truth=(None, torch.cat([one.labels for one in kept.rounds])),
        name="none",
        batch_size=len(kept.rounds[0].labels),
    )
    found = rows(tmp_path, *attacks, budget="smoke:victims=200")
    for row in run.rows:
        assert row.answers == found[row.attack].answers
