"""Attacks are tuned on the adversary's own images, and on nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch

from privkit.attacks.base import Mounting
from privkit.attacks.goals.reconstruct import ImageMounting
from privkit.attacks.search_space import Choice, Range, Search, Untuned, search_space, why_untuned
from privkit.audit import cell
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.run import AuditRun, run_audit
from privkit.audit.tuning import Trial, suggested, tuned
from privkit.constraints import Checked, Count, NonNegative, Positive, Probability
from privkit.errors import UsageError
from privkit.parts.registry import parse
from privkit.run.progress import Progress
from privkit.run.records import TRIALS
from privkit.settings.resolve import resolve
from tests.small import SMALL

TUNED: dict[str, Any] = SMALL | {
    "budget": "smoke:attack_epochs=1",
    "defense": "none",
    "attack": "black_box:decoder=autoencoder",
    "tune": "trials=8",
}


@dataclass(frozen=True, kw_only=True)
class Fields(Checked):
    """An attack with a field of each kind."""

    goal: ClassVar[str] = "reconstruct"
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting()

    word: Literal["a", "b"] = "a"
    reach: Literal["own", "more"] = "own"
    maybe: Literal["a", "b"] | None = None
    switch: bool = False
    held: Annotated[bool, Untuned()] = False
    rate: Positive = 1e-3
    open_rate: Positive | None = None
    searched: Annotated[Positive, Search(1e-4, 1e-2)] | None = None
    weight: NonNegative = 0.0
    share: Probability = 0.5
    epochs: Count = 3
    width: Annotated[Count, Search(8, 64)] = 16

    @property
    def needs(self) -> frozenset[str]:
        """More knowledge, if it reaches for it."""
        return frozenset({"query", "lower"} if self.reach == "more" else {"query"})


def test_the_search_space_is_read_from_annotations() -> None:
    assert search_space(Fields()) == {  # type: ignore[arg-type]
        "word": Choice(("a", "b")),
        "maybe": Choice(("a", "b", None)),
        "switch": Choice((False, True)),
        "rate": Range(1e-4, 1e-2, log=True),
        "searched": Range(1e-4, 1e-2, log=True),
        "share": Range(0.0, 1.0, log=False),
        "width": Range(8, 64, log=True),
    }


def test_what_the_user_chose_is_held() -> None:
    chosen = Fields(word="b", rate=2e-3, switch=True)
    assert {"word", "rate", "switch"} & search_space(chosen).keys() == set()  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ["black_box:fraction=.5", "white_box", "adaptive", "sdar"])
def test_what_an_adversary_has_or_assumes_is_never_tuned(attack: str) -> None:
    stated = {"fraction", "order", "passes", "simulator", "epochs", "doublings"}
    assert not stated & search_space(parse("attacks", attack).spec).keys()


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("unsplit", "no field"),
        ("mid_grey", "no field"),
        ("fsha", "the training of the clients"),
        ("sdar", "neither queries"),
        ("member_inference", "only attacks that reconstruct"),
    ],
)
def test_attacks_that_cannot_be_tuned_say_why(attack: str, reason: str) -> None:
    assert reason in why_untuned(parse("attacks", attack).spec)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tune": "trials=0"}, "trials must be a whole number >= 1.*got 0; to mount attacks as they are given"),
        ({"tune": "trials=2,share=1"}, "share must be a finite number > 0 and < 1"),
        ({"tune": "trails=2"}, "did you mean 'trials'"),
        ({"tune": "trials=2", "attack": ["mid_grey", "unsplit"]}, "nothing to tune .mid_grey: it has no field"),
    ],
)
def test_bad_tuning_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        resolve(settings)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.settings.resolve.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'privkit-sl\[tune\]'"):
        resolve({"tune": "trials=2"})


def test_the_next_trial_follows_from_the_seed_and_the_trials_before_it() -> None:
    rates = Range(1e-4, 1e-2, log=True)
    space: dict[str, Range | Choice] = {"rate": rates, "word": Choice(("a", None))}
    past: list[Trial] = [Trial(values={"word": None}, objective=1.0)]
    for _ in range(12):
        values = suggested(space, past, seed=3)
        assert values == suggested(space, past, seed=3)
        assert values["rate"] in rates
        assert values["word"] in ("a", None)
        worse = abs(values["rate"] - 2e-3) + (values["word"] is None)
        past.append(Trial(values=values, objective=worse))
    assert suggested(space, past, seed=3) != suggested(space, past, seed=4)
    assert len({trial.values["rate"] for trial in past[1:]}) > 6


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AuditRun, TrainedContext]]:
    """A finished run with a tuned attack, and its cell before the tuning."""
    seen: list[TrainedContext] = []

    def watched(context: TrainedContext) -> tuple[TrainedContext, str]:
        seen.append(context)
        return tuned(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
        patch.setattr("privkit.audit.goals.context.AttackContext.controls", lambda context, mount, **of: ())
        patch.setattr(cell, "tuned", watched)
        yield run_audit(out=tmp_path_factory.mktemp("tuned") / "run", **TUNED), seen[0]


def test_a_row_says_what_was_tuned(study: tuple[AuditRun, TrainedContext]) -> None:
    (row,) = study[0].rows
    found = row.tuned
    assert found is not None
    assert (found.trials, found.played, found.own, found.metric) == (8, 50, 150, "MSE")
    assert found.fields == ("augment", "learning_rate")
    assert found.best <= found.given
    assert row.attack == TUNED["attack"]
    assert row.notes[0] == found.sentence
    assert "optuna" in row.provenance.packages
    assert found.queries > 8


@pytest.mark.slow
def test_the_chosen_attack_named_by_hand_gives_the_same_numbers(
    study: tuple[AuditRun, TrainedContext], tmp_path: Path, no_report: None, no_controls: None
) -> None:
    (row,) = study[0].rows
    assert row.tuned is not None
    assert row.tuned.chosen != row.attack
    by_hand = run_audit(out=tmp_path / "run", **TUNED | {"attack": row.tuned.chosen, "tune": None}).rows[0]
    assert by_hand.recovered == row.recovered
    assert by_hand.attack_curve == row.attack_curve
    assert by_hand.queries == row.queries


def test_other_victims_leave_the_choice_as_it_is(study: tuple[AuditRun, TrainedContext]) -> None:
    """The private images and their release are replaced: the same trials, the same objectives, bit for bit."""
    run, context = study
    path = context.folder.cell(context.cell.id) / TRIALS
    kept = path.read_bytes()
    path.unlink()
    for batch in (context.seed_data.victims, context.seed_data.splits.private):
        batch.x.copy_(torch.rand_like(batch.x))
    views = [replace(view, smashed=torch.rand_like(view.smashed)) for view in context.recording.views]
    again, _ = tuned(replace(context, recording=replace(context.recording, views=views)))
    assert again.row.tuned == run.rows[0].tuned
    assert path.read_bytes() == kept


@pytest.mark.parametrize("torn", [b"", b'{"cell": "half'])
def test_a_killed_study_goes_on(study: tuple[AuditRun, TrainedContext], torn: bytes) -> None:
    """Its file is cut after two trials: only the others are computed, and the choice is the same."""
    run, context = study
    path = context.folder.cell(context.cell.id) / TRIALS
    kept = path.read_bytes()
    path.write_bytes(b"".join(kept.splitlines(keepends=True)[:2]) + torn)
    steps: list[int] = []

    class Told(Progress):
        def step(self, done: int, total: int, value: float | None = None) -> None:
            steps.append(done)

    again, _ = tuned(replace(context, progress=Told()))
    assert again.row.tuned == run.rows[0].tuned
    assert steps == [3, 4, 5, 6, 7, 8]
    assert path.read_bytes() == kept


def test_queries_of_tuning_count(study: tuple[AuditRun, TrainedContext]) -> None:
    context = study[1]
    (row,) = study[0].rows
    assert row.tuned is not None
    limited = replace(context, config=replace(context.config, queries=replace(context.config.queries, rounds=1000)))
    left = tuned(limited)[0].config.queries.rounds
    assert left == 1000 - row.tuned.queries


def test_an_attack_without_fields_stands_beside_a_tuned_one(tmp_path: Path, no_report: None, no_controls: None) -> None:
    settings = TUNED | {"attack": [TUNED["attack"], "mean_image"], "tune": "trials=1", "queries": "rounds=3"}
    limited, untuned = run_audit(out=tmp_path / "run", **settings).rows
    assert (limited.status, untuned.status, untuned.tuned) == ("not_applicable", "done", None)
    assert "after 1 round of queries" in limited.reason
    assert "mean_image was not tuned: it has no field to tune" in untuned.notes
