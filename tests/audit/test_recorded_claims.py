"""What an audit of a recording claims: what was declared, as far as its data do not refute it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.accountants.spec.parts import Noise
from privkit.audit.declared import declared_by
from privkit.audit.export import export
from privkit.audit.run import run_audit
from privkit.defenses.charge import GIVEN_LABELS
from privkit.errors import UsageError
from privkit.reports.columns import DECLARATION
from privkit.reports.gate import EXEMPT
from tests.audit.test_recorded import TINY, TRUST, rows
from tests.recording.declarations import SIGMA, changed, declared, drawn, noise
from tests.recording.made import written
from tests.small import SMALL

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")


def test_a_recording_whose_data_refute_it_proves_nothing_and_is_not_clean(tmp_path: Path) -> None:
    """Raw releases and σ = 100: ε = 0.267 before."""
    four = changed(noise=Noise(smashed=100.0), rounds=4)
    declared(tmp_path / "lie", drawn() / 2, drawn(), four)
    run = run_audit(
        recorded=tmp_path / "lie", attack="mid_grey", out=tmp_path / "a", gate=["declared_epsilon<=1"], **TINY, **TRUST
    )
    (row,) = run.rows
    assert row.certificate is not None
    assert (row.certificate.kind, row.certificate.standing) == ("nothing", "declared")
    assert "declares Gaussian noise of σ = 100, but what was added has" in row.certificate.statement
    assert (run.exit_code, run.verdict.outcome, len(run.failures)) == (1, "failed", 2)
    (judged,) = [check for check in run.verdict.checks if check.name == DECLARATION]
    assert (judged.kind, judged.met) == ("claim", False)
    true = drawn() / 2 + 100 * noise(40, 1, 8, 8)
    declared(tmp_path / "truth", true, drawn(), four)
    run = run_audit(
        recorded=tmp_path / "truth",
        attack="mid_grey",
        out=tmp_path / "b",
        gate=["declared_epsilon<=1"],
        **TINY,
        **TRUST,
    )
    certificate = run.rows[0].certificate
    assert certificate is not None
    assert (certificate.kind, certificate.standing) == ("differential_privacy", "declared")
    assert certificate.assumptions[-1].startswith("ε holds for the mechanism that the recording declares")
    assert (run.exit_code, run.verdict.outcome) == (0, "clean")


def test_an_attack_that_finds_too_few_passes_is_charged_for_none_of_its_own(tmp_path: Path) -> None:
    """An attack of eight passes, refused on a recording of one, made ε 30.3 of 23.3, and a gate failed."""
    true = drawn() / 2 + 100 * noise(40, 1, 8, 8)
    declared(tmp_path / "r", true, drawn(), changed(noise=Noise(smashed=100.0), rounds=4))
    gate = ["declared_epsilon<=1", "auc<=0.6"]
    run = run_audit(
        recorded=tmp_path / "r",
        attack=["mid_grey", "union", "adaptive"],
        gate=gate,
        out=tmp_path / "a",
        **TINY,
        **TRUST,
    )
    assert {row.status for row in run.rows} == {"done", "not_applicable"}
    assert len({row.certificate.epsilon for row in run.rows if row.certificate}) == 1
    assert run.failures == ("half, seed 0: no attack gave auc, the gate requires <= 0.6",)


def test_a_gate_on_a_recording_named_none_says_that_its_name_is_why(tmp_path: Path) -> None:
    written(tmp_path / "r", name="none")
    run = run_audit(recorded=tmp_path / "r", attack="mid_grey", out=tmp_path / "a", gate=["ssim<=1"], **TINY, **TRUST)
    assert run.failures == (f"ssim<=1.0: no defended cell has a number ({EXEMPT})",)


def test_an_old_recording_that_leaves_something_out_claims_nothing(tmp_path: Path) -> None:
    declared(tmp_path / "old", drawn() / 2 + SIGMA * noise(40, 1, 8, 8), drawn())
    path = tmp_path / "old" / "recording.json"
    described = json.loads(path.read_text())
    described["schema_version"] = 1
    del described["sha256"]
    path.write_text(json.dumps(described))
    (row,) = rows(tmp_path / "old", tmp_path / "a", attack="mid_grey").values()
    assert row.certificate is not None
    assert row.certificate.kind == "differential_privacy"
    assert "an old recording, of schema version 1" in row.notes
    del described["mechanism"]["rounds"]
    path.write_text(json.dumps(described))
    (row,) = rows(tmp_path / "old", tmp_path / "b", attack="mid_grey").values()
    assert row.certificate is not None
    assert row.certificate.kind == "nothing"
    assert (
        "leaves out rounds of its mechanism, which old versions set to the most favorable value"
        in row.certificate.statement
    )


@pytest.mark.parametrize("known", ["labels", "cut_gradient", "features"])
def test_labels_that_travel_without_noise_are_not_covered(known: str, tmp_path: Path) -> None:
    """Nor do gradients that follow from them, which a server sends back or clients of a U-shape send up."""
    kinds: dict[str, Any] = {
        "labels": {"labels": torch.arange(8) % 4},
        "cut_gradient": {"cut_gradient": torch.ones(8, 1, 8, 8)},
        "features": {"features": torch.ones(8, 3), "features_gradient": torch.ones(8, 3)},
    }
    also = {f"round_{number}.{kind}": value.clone() for number in range(5) for kind, value in kinds[known].items()}
    declared(tmp_path / "r", drawn() / 2 + SIGMA * noise(40, 1, 8, 8), drawn(), also=also)
    (row,) = rows(tmp_path / "r", tmp_path / "run", attack="mid_grey").values()
    assert row.certificate is not None
    assert row.certificate.statement.endswith("of the smashed data alone, given the labels")
    assert GIVEN_LABELS in row.certificate.assumptions
    assert not any(line.startswith("labels stay with the client") for line in row.certificate.assumptions)


@pytest.mark.slow
def test_a_claim_about_the_server_s_labels_is_no_claim_about_a_release(tmp_path: Path) -> None:
    """Its noise lies on the gradients that come back, and none of it on what is recorded."""
    run = run_audit(defense="grad_perturb:clip=1,noise=5", attack="mid_grey", out=tmp_path / "run", **SMALL)
    certificate = run.rows[-1].certificate
    assert certificate is not None
    assert (certificate.kind, certificate.covers) == ("differential_privacy", "labels")
    assert export(tmp_path / "run", tmp_path / "recording").mechanism is None


MIXERS = {"protocol": "splitfed:clients=2"}


SAME = "that there is as much noise"


HIDDEN = "dimensions and noise (the recording does not show what"


@pytest.mark.parametrize(
    ("defense", "given", "told"),
    [
        pytest.param("dp_mixsl:site=client", MIXERS, SAME, marks=pytest.mark.slow),
        pytest.param("dp_cutmixsl", MIXERS, SAME, marks=pytest.mark.slow),
        pytest.param("laplace_noise:scale=.5,clip=1", {}, SAME, marks=pytest.mark.slow),
        pytest.param("clip:bound=1+gaussian_noise:sigma=.5", {}, SAME, marks=pytest.mark.slow),
        pytest.param("gaussian_noise:sigma=.5,clip=1,clip_by=image", {}, SAME, marks=pytest.mark.slow),
        pytest.param("gaussian_noise:sigma=.5,clip=1+scaling", {}, SAME, marks=pytest.mark.slow),
        pytest.param("gaussian_noise:sigma=.5,clip=1+patch_shuffle", {}, HIDDEN, marks=pytest.mark.slow),
        pytest.param("dp_mixsl:level=input", MIXERS, HIDDEN, marks=pytest.mark.slow),
    ],
)
def test_what_privkit_recorded_is_not_refuted(defense: str, given: dict[str, str], told: str, tmp_path: Path) -> None:
    frozen: dict[str, Any] = {"training": "freeze_lower=true", "attack": "mid_grey", **given}
    run_audit(defense=defense, out=tmp_path / "run", **SMALL, **frozen)
    recording = export(tmp_path / "run", tmp_path / "recording")
    assert recording.mechanism is not None
    found = declared_by(recording)
    assert not found.compared.refuted
    assert told in found.compared.sentence
    assert (found.distance == 0) == (told == SAME)


def test_a_run_whose_adversary_holds_attacked_records_is_not_recorded(tmp_path: Path) -> None:
    """An audit of the recording would leave these records out, and state better numbers than the run."""
    given: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke:epochs=1", "auxiliary": "candidates"}
    run = run_audit(defense="none", attack="nearest_record", threads=1, out=tmp_path / "run", **given)
    with pytest.raises(UsageError, match="the adversary of this run holds attacked records"):
        export(run.folder, tmp_path / "recording")
