"""Attacks that answer questions, mounted in an audit: labels, members, canaries, and a training that is taken over."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator

from privkit.attacks.base import Mounting, Observation, Scores, Session
from privkit.attacks.goals.membership import MembershipObservation
from privkit.audit.goals import label_adversary, label_answers, labels
from privkit.audit.goals.context import told_apart
from privkit.audit.goals.distinguish import noiseless, rows_of
from privkit.audit.run import run_audit
from privkit.defenses.charge import Noised
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.parts.registry import load, parse, part_table
from privkit.training import Clients, Round, SplitProtocol, split_round
from privkit.wire.channel import record_rounds
from privkit.wire.transcript import Transcript
from tests.small import fitted, random_images

SETTINGS: dict[str, Any] = {
    "dataset": "tiny_digits",
    "budget": "smoke:private=300,auxiliary=200,test=200,victims=200,epochs=2",
    "training": "batch_size=25",
    "threads": 1,
}


def test_a_records_scores_are_pooled_over_epochs_whatever_their_order_and_scale() -> None:
    draws = Generator().manual_seed(0)
    positive, rounds = torch.arange(400) % 2 == 0, torch.arange(400) // 50
    epochs, records = [], []
    for epoch in range(9):
        order = torch.randperm(400, generator=draws)
        values = 10.0**-epoch * (positive + 2 * torch.randn(400, generator=draws))[order]
        epochs.append((Scores(values=values, examples=torch.arange(400)), positive[order], rounds))
        records.append(order)
    one, nine = (told_apart(*label_answers._pooled(epochs[-count:], records[-count:]))["auc"] for count in (1, 9))
    assert one.value < 0.7
    assert nine.value > 0.8
    assert label_answers._pooled(epochs[-1:], records[-1:])[0].values is epochs[-1][0].values


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_epochs_that_leak_in_opposite_directions_do_not_cancel_and_noise_stays_noise(seed: int) -> None:
    draws = Generator().manual_seed(seed)
    positive, rounds = torch.arange(400) % 2 == 0, torch.arange(400) // 50
    for strength, least, most in ((2.0, 0.45, 0.5), (0.0, 0.0, 0.1)):
        epochs, records = [], []
        for epoch in range(6):
            order = torch.randperm(400, generator=draws)
            values = (-1) ** epoch * (strength * positive + torch.randn(400, generator=draws))[order]
            epochs.append((Scores(values=values, examples=torch.arange(400)), positive[order], rounds))
            records.append(order)
        area = told_apart(*label_answers._pooled(epochs, records))["auc"].value
        assert least <= abs(area - 0.5) <= most


def test_scores_of_all_labels_are_pooled_likewise() -> None:
    """Each epoch alone names few labels; together they name most, whatever the order of the records."""
    draws = Generator().manual_seed(0)
    truth, rounds = torch.arange(300) % 3, torch.arange(300) // 50
    epochs, records = [], []
    for epoch in range(9):
        order = torch.randperm(300, generator=draws)
        of_labels = 10.0**-epoch * (torch.eye(3)[truth] + 1.5 * torch.randn(300, 3, generator=draws))[order]
        scores = Scores(values=of_labels[:, 1], examples=torch.arange(300), of_labels=of_labels)
        epochs.append((scores, truth[order], rounds))
        records.append(order)
    pooled, of, _ = label_answers._pooled(epochs, records)
    alone, together = labels.named_accuracy(epochs[-1][0], truth[order]), labels.named_accuracy(pooled, of)
    assert alone["label_accuracy"].value < 0.6 < 0.75 < together["label_accuracy"].value


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_attacks_that_name_labels_know_some_and_one_needs_no_gradient(tmp_path: Path) -> None:
    """A frozen lower segment gets no gradient; its owner still has its smashed data and some labels."""
    settings = {**SETTINGS, "budget": "smoke:private=300,auxiliary=50,test=50,victims=50,epochs=1"}
    attacks = ["release_clustering", "exploit:epochs=6", "model_completion:epochs=2"]
    learned = run_audit(defense="none", attack=attacks, out=tmp_path / "learned", **settings).rows
    frozen = {**settings, "training": "batch_size=25,freeze_lower=true"}
    kept = run_audit(defense="none", attack=attacks, out=tmp_path / "frozen", **frozen).rows
    assert [row.status for row in learned] == ["done"] * 3
    assert [row.status for row in kept] == ["not_applicable", "not_applicable", "done"]
    for row in learned:
        assert row.answers["label_accuracy"].value > 0.3  # ten labels
        assert row.answers["label_accuracy"].value <= row.answers["cluster_accuracy"].value
        asked = 300 - 10 * (4 if row.attack.startswith("model") else 1)
        assert row.answers["label_accuracy"].n == asked
        assert "which needs no attack, is 0.1" in " ".join(row.notes)
    assert "label_shares" in learned[1].knowledge


@pytest.mark.slow
def test_gradients_tell_labels_and_canaries_are_found(tmp_path: Path) -> None:
    attacks = ["label_leak", "gradient_matching", "member_inference", "canaries", "canaries:on=gradient"]
    run = run_audit(defense="none", attack=attacks, out=tmp_path / "run", **SETTINGS)
    rows = {row.attack: row for row in run.rows}
    assert {row.status for row in run.rows} == {"done"}
    assert run.exit_code == 0
    assert rows["gradient_matching"].answers["auc"].value > 0.99  # with the server's own weights it is exact
    assert rows["label_leak"].answers["auc"].n == 300
    for name in ("canaries", "canaries:on=gradient"):
        found = rows[name].empirical_bound
        assert found is not None
        assert rows[name].answers["auc"].value == 1.0
        assert found.epsilon > 2.5
        assert (found.canaries, found.claimed) == (200, float("inf"))
        assert found.statement.startswith("nothing is claimed")
    page = run.report.read_text()
    assert '<table id="answers"' in page
    assert "nothing is claimed; this attack shows" in page


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_clients_own_map_does_not_hide_labels_from_it(tmp_path: Path) -> None:
    """A gradient that comes back has passed the defense, so the client matches it behind the defense."""
    attack, defense = "gradient_matching:epoch=-1", "orthogonal_map"
    run = run_audit(defense=defense, attack=attack, out=tmp_path / "run", **SETTINGS)
    (row,) = (row for row in run.rows if row.defense == defense)
    assert row.answers["label_accuracy"].value > 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_claim_that_canaries_refute_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Noised.certificate

    def bold(self: Noised, *given: Any) -> Any:
        return replace(honest(self, *given), epsilon=0.1, lower=None)

    monkeypatch.setattr(Noised, "certificate", bold)
    run = run_audit(defense="gaussian_noise:sigma=0.5", attack="canaries", out=tmp_path / "run", **SETTINGS)
    assert run.exit_code == 1
    (failure,) = run.failures
    assert failure.startswith("gaussian_noise:sigma=0.5 / canaries: ε >= ")
    assert "refutes the claimed ε = 0.1" in failure


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_an_honest_claim_stands_though_canaries_are_found(tmp_path: Path) -> None:
    settings = {**SETTINGS, "training": "batch_size=25,freeze_lower=true"}
    run = run_audit(
        defense="gaussian_noise:sigma=3,clip=1,clip_by=image", attack="canaries", out=tmp_path / "run", **settings
    )
    row = run.rows[1]
    assert run.exit_code == 0
    assert row.empirical_bound is not None
    assert 0 < row.empirical_bound.claimed < 10
    assert row.empirical_bound.epsilon <= row.empirical_bound.claimed
    assert row.answers["auc"].value > 0.55


@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_frozen_segment_gets_no_gradient_and_the_other_cells_go_on(tmp_path: Path) -> None:
    settings = {**SETTINGS, "training": "batch_size=25,freeze_lower=true"}
    run = run_audit(defense="none", attack=["label_leak", "nearest_record"], out=tmp_path / "run", **settings)
    leak, nearest = run.rows
    assert (leak.status, nearest.status) == ("not_applicable", "done")
    assert "does not learn" in leak.reason


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_labels_that_do_not_exist_and_epochs_that_were_not(tmp_path: Path) -> None:
    run = run_audit(
        defense="none", attack=["label_leak:positive=77", "label_leak:epoch=9"], out=tmp_path / "run", **SETTINGS
    )
    assert [row.status for row in run.rows] == ["not_applicable"] * 2
    assert "there are 10 classes" in run.rows[0].reason
    assert "none of the 2 epochs" in run.rows[1].reason


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_shadow_models_are_trained_and_scored(tmp_path: Path) -> None:
    run = run_audit(defense="none", attack="member_inference:score=lira,shadows=4", out=tmp_path / "run", **SETTINGS)
    assert run.rows[0].status == "done"
    assert 0.3 < run.rows[0].answers["auc"].value < 0.9


LEARN = {"model_completion"}
"""Attacks that train for long; the example of its module has its controls as well."""
SCORING = [name for name in sorted(part_table("attacks")) if parse("attacks", name).spec.goal != "reconstruct"]


@dataclass(frozen=True, kw_only=True)
class Deaf:
    """Scores at random, whatever it observes."""

    name: ClassVar[str] = "deaf"
    goal: str
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[Mounting[Observation, Scores]] = Mounting()
    positive: int = 1

    def run(self, observation: Observation, generator: Generator, session: Session | None = None) -> Scores:
        many = sum(len(view.smashed) for view in observation.views)
        if isinstance(observation, MembershipObservation):
            many = len(observation.candidates)
        return Scores(values=torch.rand(many, generator=generator), examples=torch.arange(many))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LEARN else name for name in SCORING]
)
def test_every_attack_that_scores_has_controls_that_pass_and_that_can_fail(name: str) -> None:
    spec = parse("attacks", name).spec
    mount = load(f"privkit.attacks.goals.{spec.goal}:controls")
    first = mount(spec, 0)
    assert [control.passed for control in first] == [True, True]
    assert [control.passed for control in mount(spec, 1)] == [True, True]
    torch.rand(1)
    assert mount(spec, 0) == first  # whatever was mounted before
    assert mount(Deaf(goal=spec.goal), 0)[0].passed is False


def test_members_are_asked_of_both_kinds() -> None:
    scores = Scores(values=torch.tensor([3.0, 2.0, 1.0, 0.0]), examples=torch.arange(4))
    found = told_apart(scores, torch.tensor([True, True, False, False]))
    assert found["auc"].value == 1.0
    assert "auc_per_batch" not in found


def test_first_positives_of_every_round() -> None:
    positive = torch.tensor([0, 1, 1, 0, 0, 0, 1, 1, 0]).bool()
    assert label_adversary._first_positives(positive, torch.arange(3).repeat_interleave(3)).tolist() == [1, 6]


def test_rows_of_canaries_are_found_behind_mixing() -> None:
    members = torch.tensor([[2, 0, 1, -1], [0, 1, 2, -1]])
    assert rows_of(members, 3, 2).tolist() == [[0, 1, 0], [2, 2, 3]]


def test_a_quiet_defense_keeps_its_clipping_and_loses_its_noise() -> None:
    edge, _ = fitted(GaussianNoise(sigma=2.0, clip=0.5), SplitProtocol())
    data = random_images(6, 10)
    loud, silent = (record_rounds(e, data, batch_size=6, seed=0).views[0].smashed for e in (edge, noiseless(edge)))
    assert edge.defense.sigma == 2.0  # type: ignore[attr-defined]
    assert silent.abs().max() <= 0.5 + 1e-6
    assert (loud - silent).std() > 1.5


def test_passes_send_the_same_images_with_draws_of_their_own() -> None:
    edge, _ = fitted(PatchShuffle(), SplitProtocol(clients=2))
    sent = record_rounds(edge, random_images(8, 10), batch_size=2, seed=0, passes=3)
    assert len(sent.views) == 6
    assert sent.members.view(3, 8).tolist() == [list(range(8))] * 3
    first, again = (torch.cat([view.smashed for view in sent.views[2 * p : 2 * p + 2]]) for p in (0, 1))
    assert not torch.equal(first, again)
    torch.testing.assert_close(first.sort(1).values, again.sort(1).values)
    once = record_rounds(edge, random_images(8, 10), batch_size=2, seed=0)
    assert torch.equal(once.views[0].smashed, sent.views[0].smashed)


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_replayed_training_is_the_same_training(tmp_path: Path) -> None:
    from privkit.audit.defended import defended_model, train_again
    from privkit.audit.seed_data import prepare
    from privkit.run.ledger import RunLedger
    from privkit.run.plan import plan
    from privkit.run.progress import Progress
    from privkit.run.provenance import manifest
    from privkit.settings.resolve import resolve

    config = resolve({"defense": "none", **SETTINGS})
    seed_data, cell = prepare(config, 0, torch.device("cpu")), plan(config)[0]
    with RunLedger(tmp_path / "run", manifest(config, threads=1)) as folder:
        model = defended_model(config, cell, seed_data, folder, Progress(), lambda text: None)
    watched = []

    def play(edge: Clients, upper: torch.nn.Module, *given: Any, **named: Any) -> Round:
        found = split_round(edge, upper, *given, **named)
        watched.append(found.losses)
        return found

    train_again(config, cell, seed_data, play, Progress())
    again = torch.stack(watched).view(2, -1).mean(1)
    torch.testing.assert_close(again, torch.tensor(model.known["curve"]))


CLIENTS_LEAKS = [
    "label_leak:at=lower",
    "label_leak:less_own=true,epoch=every",
    "label_leak:score=cosine,reference=labeled,at=lower,less_own=true",
]


@pytest.mark.slow
def test_a_client_asks_its_own_segment_and_for_the_others_label_in_every_epoch(tmp_path: Path) -> None:
    """DP-CutMixSL §5.A: the gradient of the lower segment, the members of a group, and the area by epoch."""
    run = run_audit(
        defense="mixup:concentration=inf",
        attack=CLIENTS_LEAKS,
        protocol="cutmixsl:clients=2,gradient=average",
        out=tmp_path / "run",
        model="vit_micro:cut=embedding",
        **{**SETTINGS, "dataset": "tiny_digits:classes=[0,1]", "budget": "smoke:private=200,victims=50,epochs=2"},
    )
    assert [(row.status, row.reason) for row in run.rows] == [("done", "")] * 6
    assert all(check.passed for row in run.rows for check in row.checks if check.decisive), run.rows
    for row in run.rows:
        every = "epoch=every" in row.attack
        assert len(row.auc_curve) == (2 if every else 0)
        assert not every or row.auc_curve[-1].value == row.answers["auc"].value
    told = {row.attack: row.answers["auc"].value for row in run.rows if row.defense != "none"}
    assert told[CLIENTS_LEAKS[2]] > 0.9  # the mean of two gradients less the own one
    assert {row.attack for row in run.rows if any("epochs cannot be pooled" in note for note in row.notes)} == {
        CLIENTS_LEAKS[2]
    }
    assert (tmp_path / "run" / "report" / "figures" / "auc.svg").exists()


@pytest.mark.slow(but=1)
@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize("augment", ["none", "crop"])
def test_a_client_knows_its_records_in_all_epochs(
    augment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other known labels in each epoch would tell it labels that it is asked for in the last one."""
    again, known, rows = labels._again, [], []

    def watched(first: torch.Tensor, records: torch.Tensor, *given: Any) -> torch.Tensor:
        rows.append(records)
        known.append(set(records[again(first, records, *given)].tolist()))
        return again(first, records, *given)

    monkeypatch.setattr(labels, "_again", watched)
    settings = {**SETTINGS, "budget": "smoke:private=100,victims=25,epochs=2", "protocol": "sl"}
    settings["training"] = f"batch_size=25,augment={augment}"
    run = run_audit(defense="none", attack="release_clustering:epoch=pooled", out=tmp_path / "run", **settings)
    assert run.rows[0].status == "done"
    assert len(known) == 2
    assert known[0] == known[1]
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0].sort().values, rows[1].sort().values)
    assert run.rows[0].answers["label_accuracy"].n == 100 - len(known[0])
    assert "each record's scores in 2 epochs are averaged" in run.rows[0].notes


@pytest.mark.slow
def test_the_order_of_an_epoch_is_the_one_that_was_trained_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of the rows that the context names are those that the rounds had, in the order of the clients."""
    asked, agree = labels.asked, []

    def watched(transcript: Transcript, context: Any, stage: Any, of_epoch: Any, cut: Any) -> label_answers.Asked:
        sent = torch.cat([kept.labels.unflatten(0, (2, -1)) for kept in transcript.rounds], 1)
        agree.append(torch.equal(context.seed_data.splits.private.y[of_epoch[0]], sent))
        return asked(transcript, context, stage, of_epoch, cut)

    monkeypatch.setattr(labels, "asked", watched)
    settings = {**SETTINGS, "budget": "smoke:private=100,victims=20,epochs=2", "training": "batch_size=10,augment=crop"}
    run_audit(defense="none", attack="label_leak", protocol="psl:clients=2", out=tmp_path / "run", **settings)
    assert agree == [True, True]


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_nobody_elses_label_is_in_a_gradient_of_ones_own(tmp_path: Path) -> None:
    run = run_audit(defense="none", attack="label_leak:less_own=true", out=tmp_path / "run", **SETTINGS)
    (row,) = run.rows
    assert row.status == "not_applicable"
    assert "asks for the label of the one other record" in row.reason
