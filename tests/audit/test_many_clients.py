"""Audits of many clients: what is mixed, guessed, scored and charged belongs together."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from privkit.audit.run import run_audit
from privkit.audit.seed_data import prepare
from privkit.defenses.cutmix import Mixup, RandomCutMix
from privkit.errors import UsageError
from privkit.settings.resolve import resolve
from privkit.training import Clients, SplitProtocol, TrainingSpec
from privkit.wire.channel import black_box_query, record_rounds
from tests.small import IMAGES, random_images

pytestmark = pytest.mark.usefixtures("no_report")
SETTINGS: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke", "threads": 1}


class Cells(torch.nn.Module):
    """Patches of 2×2 pixels as tokens: the smashed data are the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.unfold(x, 2, stride=2).transpose(1, 2)


@pytest.mark.parametrize("clients", [4, 5])
def test_a_recorded_row_is_made_of_its_members(clients: int) -> None:
    """Each cell of a released row is the cell of the member whose weight there is 1, and every victim has one seat."""
    protocol = SplitProtocol(clients=clients)
    edge = Clients.build(Cells(), RandomCutMix(), IMAGES, classes=10, seed=0, protocol=protocol)
    data = random_images(3 * clients * 6, 10)
    found = record_rounds(edge, data, batch_size=6, seed=0)
    assert sorted(found.members[found.members >= 0].tolist()) == list(range(len(data)))
    cells = Cells()(data.x)
    released = torch.cat([view.smashed for view in found.views])
    share = torch.cat([view.weights for view in found.views if view.weights is not None])
    members = found.members.view(-1, 2)
    assert len(members) == len(released) == len(share)
    for row, weight, member in zip(released, share, members, strict=True):
        for seat, victim in enumerate(member.tolist()):
            kept = weight[seat] > 0
            assert victim >= 0 or not kept.any()
            if victim >= 0:
                assert torch.equal(row[kept], cells[victim][kept])


def test_the_adversary_learns_the_members_of_its_own_images_only() -> None:
    edge = Clients.build(Cells(), Mixup(), IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=4))
    data = random_images(24, 10)
    answer = black_box_query(edge)(data.x, Generator().manual_seed(0))
    share = answer.view.weights
    assert share is not None
    mixed = (share.view(-1, 2, 1, 1) * Cells()(data.x)[answer.members]).sum(1)
    torch.testing.assert_close(answer.view.smashed, mixed)
    view = record_rounds(edge, data, batch_size=6, seed=0).views[0]
    fields = {"round", "smashed", "mixed", "weights", "cut_gradient", "messages", "labels", "parts", "clients", "whole"}
    assert set(vars(view)) == fields


def test_hidden_coins_stay_hidden() -> None:
    edge = Clients.build(
        Cells(),
        RandomCutMix(published=False),
        IMAGES,
        classes=10,
        seed=0,
        protocol=SplitProtocol(clients=4),
    )
    assert record_rounds(edge, random_images(24, 10), batch_size=6, seed=0).views[0].weights is None


@pytest.mark.slow
def test_an_audit_of_mixing_defenses(tmp_path: Path) -> None:
    run = run_audit(
        defense=["random_cutmix", "dp_cutmixsl:sigma=2.0,sigma_labels=2.0"],
        attack="mean_image",
        out=tmp_path / "run",
        training="freeze_lower=true",
        **{**SETTINGS, "budget": "smoke:private=300,auxiliary=400,test=100,victims=100"},
    )
    assert [row.status for row in run.rows] == ["done"] * 3
    assert {row.protocol for row in run.rows} == {"cutmixsl"}
    none, cutmix, private = run.rows
    assert none.costs is not None
    assert cutmix.costs is not None
    assert cutmix.costs.bytes_up == none.costs.bytes_up / 2 + 10 * 4  # half the tokens, and a mixed label
    assert cutmix.costs.bytes_seed == 8
    assert cutmix.certificate is not None
    assert cutmix.certificate.kind == "nothing"
    assert private.certificate is not None
    assert private.certificate.kind == "differential_privacy"
    assert private.certificate.unit == "record"  # the lower segments are frozen
    assert 0 < private.certificate.epsilon < float("inf")
    assert private.certificate.delta == 1e-5


@pytest.mark.slow
def test_trained_lower_segments_are_charged_by_client_and_averaged_ones_not_at_all(tmp_path: Path) -> None:
    settings = {**SETTINGS, "attack": "mid_grey", "budget": "smoke:private=300,auxiliary=400,test=100,victims=100"}
    proofs = []
    for protocol in ("psl", "splitfed"):
        run = run_audit(defense="dp_sl", protocol=protocol, out=tmp_path / protocol, **settings)
        proofs.append(run.rows[1].certificate)
    kept, averaged = proofs
    assert kept is not None
    assert kept.unit == "client"
    assert averaged is not None
    assert averaged.kind == "nothing"


def test_standalone_clients_are_a_baseline_for_accuracy(tmp_path: Path) -> None:
    run = run_audit(
        defense="none",
        protocol="standalone:clients=4",
        out=tmp_path / "run",
        **{**SETTINGS, "budget": "smoke:private=100,auxiliary=200,test=50,victims=50"},
    )
    assert [(row.status, row.accuracy is not None) for row in run.rows] == [("not_applicable", True)]
    assert "standalone clients send nothing" in run.rows[0].reason
    assert run.exit_code == 0


def test_attacked_images_are_their_clients_own() -> None:
    config = resolve({"defense": "random_cutmix", **SETTINGS, "budget": "smoke:private=300,victims=100"})
    setting = prepare(config, 0, torch.device("cpu"))
    for client, ids in enumerate(setting.victims.ids.view(-1, 10, 5).transpose(0, 1).flatten(1)):
        own = setting.splits.private.ids[setting.shares.of(client)]
        assert set(ids.tolist()) <= set(own.tolist())


def test_a_fraction_of_the_training_set_keeps_the_class_shares() -> None:
    config = resolve({"training": "fraction=0.5", **SETTINGS})
    setting = prepare(config, 0, torch.device("cpu"))
    whole = prepare(resolve(SETTINGS), 0, torch.device("cpu"))
    assert len(setting.splits.private) == len(whole.splits.private) // 2
    counts = torch.bincount(setting.splits.private.y, minlength=10) - torch.bincount(whole.splits.private.y) / 2
    assert counts.abs().max() <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"defense": "random_cutmix:group=11"}, "mixes groups of 11 clients, but only 10 of 10 send"),
        ({"defense": "mixup", "protocol": "sl"}, "use a protocol of more, such as psl:clients=10"),
        ({"defense": "mixup", "protocol": "standalone"}, "standalone clients send nothing"),
        ({"protocol": "splitfd"}, "did you mean 'splitfed'?"),
        ({"protocol": "psl:clients=0"}, "clients must be a whole number >= 1, got 0"),
        ({"partition": "dirichlet:alpha=0"}, "alpha must be a finite number >= 1e-06"),
        ({"delta": 1.0}, r"delta must be a number in \(0, 1\)"),
        ({"training": "fraction=0.0"}, "fraction must be a finite number > 0 and <= 1"),
        ({"training": "augment=flip"}, "augment"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve({**SETTINGS, **settings})


def test_too_few_images_for_so_many_clients_name_a_batch_that_works() -> None:
    config = resolve({"protocol": "psl", "training": "batch_size=30", **SETTINGS})
    with pytest.raises(UsageError, match=r"batch_size=30 of each of 10 clients is more than .* use --training"):
        prepare(config, 0, torch.device("cpu"))


def test_masks_on_a_model_without_tokens_are_refused() -> None:
    lower = torch.nn.Conv2d(1, 4, 2, 2)
    with pytest.raises(UsageError, match="patch="):
        Clients.build(lower, RandomCutMix(), IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=2))
    Clients.build(lower, RandomCutMix(patch=2), IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=2))


def test_default_batches_share_fifty_images() -> None:
    assert resolve({"protocol": "psl"}).training == TrainingSpec(batch_size=5)
    assert resolve({}).training == TrainingSpec(batch_size=50)
