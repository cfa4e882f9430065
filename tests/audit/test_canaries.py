"""Canaries as an audit sends them: counterparts on the same seat, labels at the observed release, idle claims."""

from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.accountants.answer import no_protection
from privkit.accountants.auditing.families import GAUSSIAN
from privkit.attacks.base import NotApplicable
from privkit.audit.claims import audit_one_run
from privkit.audit.goals.distinguish import (
    Sending,
    bound_check,
    farthest,
    gradients,
    in_their_rows,
    remarked,
    smashed,
    tells_where,
)
from privkit.audit.goals.trained import must_get_gradients
from privkit.audit.run import run_audit
from privkit.defenses.base import ReleaseCount
from privkit.defenses.cutmix import Mixup, RandomCutMix
from privkit.defenses.cutout import RandomCutout
from privkit.defenses.dp_cutmixsl import DpCutMixSl
from privkit.defenses.grad_perturb import GradPerturb
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.models.vit import Vit
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.training import Clients, SplitProtocol, TrainingSpec
from privkit.wire.channel import record_rounds, seen_alone
from tests.small import SMALL

SHAPE, CLAIMED_BY = (1, 8, 8), "exact Gaussian profile"
IMAGES = Images(shape=SHAPE)


def edge_of(defense: Any, clients: int = 1, **protocol: Any) -> tuple[Clients, nn.Module]:
    """Clients whose lower segments differ, as after training."""
    model = Vit(patch=4, width=16, depth=2, heads=2, cut="block1").build(
        IMAGES, 10, positions=defense.position_embedding, seed=0
    )
    edge = Clients.build(
        model.lower,
        defense,
        IMAGES,
        classes=10,
        seed=0,
        protocol=SplitProtocol(clients=clients, **protocol),
    )
    draws = Generator().manual_seed(1)
    for weight in edge.lowers.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=draws)
    return edge.eval(), edge.fitted(model.upper, IMAGES, 0).eval()


def batch(count: int, seed: int = 0) -> Batch:
    draws = Generator().manual_seed(seed)
    return Batch(x=torch.rand(count, *SHAPE, generator=draws), y=torch.arange(count) % 10, ids=torch.arange(count))


def scene_of(defense: Any, clients: int, size: int, count: int, passes: int = 1, **protocol: Any) -> Any:
    """As much of an attack's context as sending takes."""
    edge, upper = edge_of(defense, clients, **protocol)
    return SimpleNamespace(
        model=SimpleNamespace(edge=edge, upper=upper),
        seed_data=SimpleNamespace(victims=batch(count), auxiliary=batch(37, seed=5)),
        config=SimpleNamespace(training=TrainingSpec(batch_size=size)),
        release_count=ReleaseCount(epochs=passes),
        certificate=no_protection(),
        recording=SimpleNamespace(receipts=[None]),
        cell=SimpleNamespace(seed=0),
        round_size=clients * size,
    )


def coins_of(count: int) -> Tensor:
    return torch.rand(count, generator=Generator().manual_seed(7)) < 0.5


def observed(sending: Sending, gradient: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """What was sent for each canary each time, and either side of it, [R, K, F]."""
    rows = torch.cat([v.cut_gradient if gradient else v.smashed for v in sending.views])  # type: ignore[misc]
    seen = rows.flatten(1)[sending.rows]
    sides = [
        side.reshape(-1, seen.shape[1], seen.shape[2]).expand_as(seen) for side in (sending.present, sending.absent)
    ]
    return seen, sides[0], sides[1]


def test_counterparts_are_released_by_the_client_of_their_canary() -> None:
    coins = coins_of(24)
    seen, present, absent = observed(smashed(scene_of(NoDefense(), 3, 4, 24, passes=2), coins, Generator()))
    torch.testing.assert_close(seen, torch.where(coins.view(1, -1, 1), present, absent), atol=1e-5, rtol=1e-4)
    assert (present - absent).norm(dim=2).min() > 0.5


def test_counterparts_are_the_farthest_that_the_same_client_can_send() -> None:
    edge, _ = edge_of(NoDefense(), 3)
    images, candidates, look = batch(24).x, batch(10, seed=3).x, seen_alone(edge, 12)
    best = farthest(look, look(images), candidates, 3, 4)
    for canary, image in enumerate(images):
        own = edge.client(canary // 4 % 3)
        with torch.no_grad():
            away = (own(candidates) - own(image.unsqueeze(0))).flatten(1).norm(dim=1)
        assert int(best[canary]) == int(away.argmax())


def test_extreme_images_lie_farther_than_images_of_the_data() -> None:
    edge, _ = edge_of(NoDefense())
    images, others, look = batch(20).x, batch(20, seed=3).x, seen_alone(edge, 20)
    far = []
    for candidates in (others, torch.cat([IMAGES.extremes(Generator().manual_seed(0)), others])):
        best = candidates[farthest(look, look(images), candidates, 1, 20)]
        far.append((look(best) - look(images)).flatten(1).norm(dim=1))
    assert (far[1] >= far[0]).all()
    assert far[1].mean() > 1.2 * far[0].mean()


@pytest.mark.parametrize(
    ("defense", "clients"),
    [
        (Mixup(), 4),
        (RandomCutMix(), 4),
        (RandomCutMix(), 3),  # one client is left over
        (DpCutMixSl(group=3, sigma=1e-12, sigma_labels=None), 6),
        (RandomCutout(), 2),
    ],
    ids=str,
)
def test_public_coins_tell_what_every_row_holds(defense: Any, clients: int) -> None:
    edge, _ = edge_of(defense, clients)
    data, size = batch(clients * 6), clients * 3
    assert tells_where(edge, data.x[:size])
    sent = record_rounds(edge, data, batch_size=3, seed=0, passes=2)
    truth, members = seen_alone(edge, size)(data.x), sent.members.view(2, -1)
    with_it, without = in_their_rows(sent.views, members, truth, truth)
    rows = torch.cat([view.smashed for view in sent.views])
    k = sent.views[0].mixed
    for number, seats in enumerate(members.view(-1, k)):
        time = number * k // members.shape[1]
        for canary in seats[seats >= 0].tolist():
            torch.testing.assert_close(with_it[time, canary], rows[number], atol=1e-5, rtol=1e-4)
    assert torch.equal(with_it, without)


def test_what_a_shuffle_moves_is_not_located() -> None:
    assert not tells_where(edge_of(PatchShuffle())[0], batch(4).x)
    assert not tells_where(edge_of(Mixup(published=False), 2)[0], batch(4).x)


@pytest.mark.parametrize("defense", [GaussianNoise(sigma=0.5), PatchShuffle()], ids=str)
def test_labels_are_told_at_the_release_that_the_server_saw(defense: Any) -> None:
    """With another draw of the noise or of the permutation both sides would be off."""
    coins = coins_of(12)
    seen, present, absent = observed(gradients(scene_of(defense, 2, 3, 12, passes=2), coins, Generator()), True)
    assert seen.shape[0] == 2
    torch.testing.assert_close(seen, torch.where(coins.view(1, -1, 1), present, absent), atol=1e-6, rtol=1e-3)
    assert (present - absent).norm(dim=2).min() > 1e-3
    assert not torch.equal(present[0], present[1])


def test_labels_are_clipped_as_the_server_clips_them_and_averaged_as_it_averages() -> None:
    coins, silent = coins_of(12), GradPerturb(noise=1e-9, clip=1e-3)
    seen, present, absent = observed(gradients(scene_of(silent, 2, 3, 12), coins, Generator()), True)
    torch.testing.assert_close(seen, torch.where(coins.view(1, -1, 1), present, absent), atol=1e-7, rtol=1e-3)
    torch.testing.assert_close(present.norm(dim=2), torch.full((1, 12), 1e-3))
    apart = present - absent
    seen, present, absent = observed(
        gradients(scene_of(silent, 2, 3, 12, gradient="average"), coins, Generator()), True
    )
    torch.testing.assert_close(present - absent, apart / 2, atol=1e-7, rtol=1e-3)  # half of the mean is the mate's
    score = ((present - absent) * (seen - (present + absent) / 2)).sum((0, 2))
    assert score[coins].min() > score[~coins].max()


@pytest.mark.parametrize("training", [TrainingSpec(freeze_lower=True), TrainingSpec()])
def test_without_a_gradient_no_label_is_asked_for(training: TrainingSpec) -> None:
    context = scene_of(NoDefense(), 1, 2, 4)
    context.config = SimpleNamespace(training=training)
    must_get_gradients(SimpleNamespace(**{**vars(context), "config": SimpleNamespace(training=TrainingSpec())}))  # type: ignore[arg-type]
    if not training.freeze_lower:
        context.model.edge.lowers.requires_grad_(False)
    with pytest.raises(NotApplicable, match="does not learn"):
        must_get_gradients(context)


def audited(epsilon: float, right: float = 1.0, **claim: Any) -> EmpiricalBound:
    """200 canaries, and an attack that finds this share of them."""
    draws = np.random.default_rng(0)
    coins = np.arange(200) % 2 == 0
    told = np.where(draws.random(200) < right, coins, draws.random(200) < 0.5)
    certificate = replace(no_protection(), kind="differential_privacy", epsilon=epsilon, delta=1e-5, **claim)
    family = GAUSSIAN if claim.get("method") else None
    return audit_one_run(told + 1e-3 * draws.random(200), coins, certificate, family=family)


def test_a_claim_above_what_the_canaries_can_show_is_no_verdict() -> None:
    above = audited(3.6)
    (check,) = bound_check(above)
    assert (check.passed, check.decisive) == (None, False)
    assert above.ceiling == pytest.approx(3.4935, abs=1e-3)
    assert "200 canaries could have shown ε >= 3.494 at most" in check.detail
    assert "cannot refute so large a claim" in check.detail
    (check,) = bound_check(audited(3.4))
    assert (check.passed, check.decisive) == (False, True)
    (check,) = bound_check(audited(3.4, right=0.0))
    assert (check.passed, check.decisive) == (True, True)
    assert "could have shown ε >= 3.494 at most" in check.detail
    assert "cannot" not in check.detail
    assert bound_check(audited(inf)) == ()


def test_a_claimed_curve_is_put_to_a_test_of_curves() -> None:
    """200 canaries reach further against a Gaussian curve than against one ε at one δ."""
    found = audited(5.0, method=CLAIMED_BY, lower=5.0)
    assert found.mu is not None
    assert found.refuted
    assert found.assumed == "a Gaussian curve"
    assert "(assumed: a Gaussian curve) refutes the claimed ε = 5 at δ = 1e-05 with its whole curve" in found.statement
    assert found.ceiling is not None
    assert 5.5 < found.epsilon <= found.ceiling < 7
    assert found.confidence == 0.95
    assert not audited(5.0, right=0.0, method=CLAIMED_BY, lower=5.0).refuted
    for lower in (None, 4.9):  # then the ε of the curve is a charge, and bounds no mechanism from below
        charged = audited(5.0, method=CLAIMED_BY, lower=lower)
        assert (charged.assumed, charged.curve_epsilon) == ("", found.held)
        assert charged.epsilon < found.epsilon


@pytest.mark.parametrize(
    ("defense", "clients", "why"),
    [
        (GaussianNoise(sigma=0.5), 1, ""),
        (DpCutMixSl(group=2, sigma=0.5, sigma_labels=None), 2, "mixes the data of several clients"),
        (PatchShuffle(), 1, "nothing is known"),
    ],
    ids=["noise", "mixed", "shuffled"],
)
def test_the_receipt_knows_whether_canaries_are_independent(defense: Any, clients: int, why: str) -> None:
    found = smashed(scene_of(defense, clients, 2, 4 * clients), coins_of(4 * clients), Generator()).shared
    assert why in found
    assert bool(found) == bool(why)


def test_canaries_are_dependent_if_the_lower_segment_learns_or_lets_images_meet() -> None:
    noise = GaussianNoise(sigma=0.5)
    context = scene_of(noise, 1, 2, 4)
    context.release_count = ReleaseCount(lower_model="trained")
    assert "learns from the canaries" in smashed(context, coins_of(4), Generator()).shared
    context = scene_of(noise, 1, 4, 4)
    plain = context.model.edge.lowers.forward

    def meeting(*given: Any, **more: Any) -> Tensor:
        made: Tensor = plain(*given, **more)
        return made + made.mean(1, keepdim=True)

    context.model.edge.lowers.forward = meeting
    claim = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5, unit="record")
    for context.certificate, refuted in ((claim, True), (replace(claim, unit="client"), False)):
        sent = smashed(context, coins_of(4), Generator())
        assert "images of a batch affect each other" in sent.shared
        assert bool(sent.refuted) == (sent.mechanism is None) == (sent.claim.kind == "nothing") == refuted


def test_a_dependent_canary_says_why_beside_a_claim_alone() -> None:
    claimed, free = audited(3.0), audited(inf)
    assert "not independent trials (rows meet), so" in remarked(claimed, no_protection(), "rows meet").statement
    assert remarked(free, no_protection(), "rows meet") == free
    assert remarked(claimed, no_protection(), "") == claimed


def test_one_record_of_a_client_is_said_to_be_one() -> None:
    claim: Certificate = replace(no_protection(), kind="differential_privacy", epsilon=3.0, delta=1e-5, unit="client")
    found = audited(3.0)
    assert "the claim is about a whole client" in remarked(found, claim, "").statement
    told = remarked(found, replace(claim, unit="record"), "")
    assert "whole client" not in told.statement
    assert told.ceiling == found.ceiling
    assert "95 % confidence, for this row alone" in told.statement


@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_single_canary_is_refused_in_a_sentence(tmp_path: Path) -> None:
    given: dict[str, Any] = {"budget": "smoke:victims=1,epochs=1", "dataset": "tiny_digits", "threads": 1}
    run = run_audit(defense="none", attack="canaries", training="batch_size=1", out=tmp_path / "run", **given)
    assert [row.status for row in run.rows] == ["not_applicable"]
    assert "the coins of all 1 fell alike" in run.rows[0].reason


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_rows_of_an_audit_that_cannot_refute_say_so_and_exit_clean(tmp_path: Path) -> None:
    run = run_audit(
        defense="gaussian_noise:sigma=0.5,clip=1,clip_by=image",
        attack=["canaries", "canaries:on=gradient"],
        dataset="tiny_digits",
        budget="smoke:private=300,auxiliary=200,test=200,victims=100,epochs=2",
        training="batch_size=25,freeze_lower=true",
        threads=1,
        out=tmp_path / "run",
    )
    row, returned = run.rows[2], run.rows[3]
    assert row.empirical_bound is not None
    assert row.empirical_bound.ceiling is not None
    assert row.empirical_bound.method.startswith("exact binomial test of all wrong guesses of independent canaries")
    assert row.empirical_bound.claimed > row.empirical_bound.ceiling >= row.empirical_bound.epsilon > 0
    assert row.answers["auc"].value > 0.9
    assert any("cannot refute so large a claim" in caveat for caveat in row.caveats)
    assert returned.status == "not_applicable"
    assert "does not learn" in returned.reason
    assert run.exit_code == 0


@pytest.mark.usefixtures("no_report", "no_controls")
def test_canaries_that_find_records_of_a_batch_together_take_the_claim_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "met_nets.py").write_text(
        "from torch import nn\n"
        "class Lower(nn.Flatten):\n"
        "    def forward(self, x):\n"
        "        made = super().forward(x)\n"
        "        return made + 3 * made[:1] if len(made) > 8 else made\n"
        "def segments(classes):\n"
        "    return Lower(), nn.Linear(64, classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {
        "attack": "canaries",
        "defense": "gaussian_noise:sigma=6,clip_by=image",
        "model": "met_nets:segments",
    }
    measured = run_audit(out=tmp_path / "measured", **given, **SMALL)
    certificate = measured.rows[1].certificate
    assert certificate is not None
    assert certificate.kind == "nothing"
    assert "carries records into 49 other rows of a batch of 50" in certificate.statement
    monkeypatch.setattr("privkit.audit.standing.rows_that_meet", lambda *given: 0)
    found = run_audit(out=tmp_path / "found", **given, **SMALL)
    certificate = found.rows[1].certificate
    assert certificate is not None
    assert certificate.kind == "nothing"
    assert "in the lower segment, images of a batch affect each other" in certificate.statement
    assert (found.rows[1].limits, found.exit_code) == (None, 1)
