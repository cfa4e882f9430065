"""An audit of a U-shape: its server reads labels at both cuts, and nothing is mounted that needs what it lacks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.labels import controls, observe
from privkit.attacks.labels.release_clustering import ReleaseClustering
from privkit.attacks.labels.tail_inversion import TailInversion
from privkit.audit.export import export
from privkit.audit.run import run_audit
from privkit.errors import UsageError
from privkit.reports.schema import Row
from tests.small import SMALL, generator

CLUSTERS = ("release_clustering", "release_clustering:named_by=likeness")
KNOWN = "tail_inversion"
LACKING = {
    "gradient_matching": "needs upper",
    "model_completion": "needs auxiliary and lower",
    "label_leak:at=lower": "needs auxiliary and lower",
    "member_inference": "labels=kept leaves labels and predictions to clients",
    "canaries:on=gradient": "labels=kept leaves labels and predictions to clients",
    "sdar": "needs upper",
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Row], Path]:
    folder = tmp_path_factory.mktemp("u") / "run"
    budget = "smoke:private=400,auxiliary=400,epochs=2"
    run = run_audit(
        defense="none",
        attack=[*CLUSTERS, KNOWN, *LACKING],
        protocol="u_shape",
        out=folder,
        **SMALL | {"budget": budget},
    )
    return {row.attack: row for row in run.rows}, folder


def test_clusters_name_the_labels_of_the_clients(audited: tuple[dict[str, Row], Path]) -> None:
    """With one known label of each class, and with none but images of one's own (24 of 24 seeds: 1.000)."""
    for attack in CLUSTERS:
        row = audited[0][attack]
        assert row.answers["label_accuracy"].value > 0.8, attack
        assert any("the server of a U-shape was asked for the clients' labels: AUC" in note for note in row.notes)
    assert any("the adversary knows 1 labeled record" in note for note in audited[0][CLUSTERS[0]].notes)
    assert not any("knows the labels" in note for note in audited[0][CLUSTERS[1]].notes)


def test_a_known_last_layer_names_them_without_a_known_label(audited: tuple[dict[str, Row], Path]) -> None:
    assert audited[0][KNOWN].answers["label_accuracy"].value > 0.95


def test_where_labels_are_sent_no_client_has_the_servers_last_layer(tmp_path: Path) -> None:
    run = run_audit(defense="none", attack=KNOWN, out=tmp_path / "run", **SMALL)
    assert (
        "tail_inversion needs the last layer, linear in 1536 features of a row, and was given none"
        in run.rows[0].reason
    )


@pytest.mark.parametrize(("attack", "reason"), LACKING.items())
def test_an_attack_that_needs_more_than_the_server_has_says_so(
    audited: tuple[dict[str, Row], Path], attack: str, reason: str
) -> None:
    row = audited[0][attack]
    assert row.status == "not_applicable"
    assert reason in row.reason


def test_parts_of_a_release_are_not_the_servers(tmp_path: Path) -> None:
    settings = {**SMALL, "protocol": "u_shape", "parts": "part_1", "attack": "release_clustering"}
    run = run_audit(defense="split_parts", out=tmp_path / "run", **settings)
    assert "computes on all parts of a release" in run.rows[-1].reason


def test_a_u_shape_is_not_exported(audited: tuple[dict[str, Row], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this run differs"):
        export(audited[1], tmp_path / "out")


@pytest.mark.parametrize(
    "attack",
    [ReleaseClustering(named_by="likeness"), ReleaseClustering(on="line"), TailInversion(), TailInversion(positive=3)],
    ids=str,
)
def test_clusters_win_where_they_must_and_fail_on_noise(attack: ReleaseClustering) -> None:
    for seed in range(20):
        won, failed = controls(attack, seed)
        assert won.passed
        assert failed.passed


def test_likeness_needs_images_with_labels_and_no_lines() -> None:
    with pytest.raises(ValueError, match="on=line needs"):
        ReleaseClustering(named_by="likeness", on="line")
    seen: Any = observe(nn.Flatten(), nn.Linear(4, 3), torch.rand(6, 1, 2, 2), torch.arange(6) % 3, batch_size=3)
    with pytest.raises(NotApplicable, match="needs images of its own with one label each"):
        ReleaseClustering(named_by="likeness").run(seen, Generator())
    own = {"other_images": torch.rand(9, 1, 2, 2), "other_labels": torch.arange(9)}
    with pytest.raises(NotApplicable, match="9 labels need at least as many different rows"):
        ReleaseClustering(named_by="likeness").run(type(seen)(**vars(seen) | own), Generator())


def test_likeness_reads_what_distances_tell() -> None:
    """Six clusters far apart in a secret rotation: the layout of the labels' own means names them all."""
    draws = generator()
    means, turned = torch.randn(6, 16, generator=draws) * 3, torch.linalg.qr(torch.randn(16, 16, generator=draws))[0]
    labels = torch.arange(240) % 6
    rows = means[labels] + torch.randn(240, 16, generator=draws) / 2
    others = means[labels] + torch.randn(240, 16, generator=draws) / 2
    upper = nn.Linear(16, 6)
    seen = observe(nn.Sequential(nn.Flatten(), _Turned(turned)), upper, rows.view(-1, 1, 4, 4), labels, batch_size=40)
    own = {"other_images": others.view(-1, 1, 4, 4), "other_labels": labels}
    found = ReleaseClustering(named_by="likeness").run(type(seen)(**vars(seen) | own), generator())
    assert found.of_labels is not None
    assert found.of_labels.argmax(1).equal(labels)


class _Turned(nn.Module):
    def __init__(self, turned: torch.Tensor) -> None:
        super().__init__()
        self.turned = turned

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.turned
