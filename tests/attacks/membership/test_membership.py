"""Membership inference and canary audits: sound claims stand, planted faults are caught, strangers say nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.accountants.answer import no_protection
from privkit.accountants.auditing.families import GAUSSIAN
from privkit.accountants.bounds.gaussian import epsilon as gaussian_epsilon
from privkit.attacks.base import NotApplicable, Scores, View
from privkit.attacks.escalate import escalated
from privkit.attacks.goals.distinguish import CanaryObservation
from privkit.attacks.goals.membership import MembershipObservation, Predict
from privkit.attacks.labels.gradient_matching import label_gradients
from privkit.attacks.membership.canaries import Canaries, likelihood_ratio
from privkit.attacks.membership.member_inference import MemberInference, confidence, lira, loss_threshold, rmia
from privkit.attacks.scores.leak import pooled_auc, tpr_at
from privkit.audit.claims import audit_one_run
from privkit.defenses.base import ReleaseCount
from privkit.defenses.dp_cutmixsl import DpSl
from privkit.defenses.grad_perturb import GradPerturb
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from privkit.shared.empirical_bound import EmpiricalBound
from tests.attacks.sessions import Killed, Session

SHADOWS, POOL, WIDTH = 24, 120, 80


def fitted(seed: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Statistic [S + 1, N] of linear classifiers that fit half of a pool by heart, and which half, bool [S + 1, N]."""
    draws = Generator().manual_seed(seed)
    x = torch.randn(POOL, WIDTH, generator=draws)
    y = (torch.randn(POOL, generator=draws) * noise + x[:, 0] > 0).double() * 2 - 1
    members = torch.rand(SHADOWS + 1, POOL, generator=draws).argsort(1) < POOL // 2
    # Ridge regressions at once: weights of the members only.
    weighted = x.double().unsqueeze(0) * members.unsqueeze(2)
    gram = weighted.transpose(1, 2) @ x.double() + 0.1 * torch.eye(WIDTH, dtype=torch.float64)
    w = torch.linalg.solve(gram, (weighted * y.view(1, -1, 1)).sum(1))
    margin = 4 * (w @ x.double().T) * y
    return margin, members


def area(scores: Tensor, members: Tensor) -> float:
    return pooled_auc(scores.numpy(), members.numpy()).auc.value


def test_threshold_and_lira_win_on_what_was_learned_by_heart() -> None:
    margin, members = fitted(0)
    assert area(loss_threshold((margin[0] / 4 - 1).square()).values, members[0]) > 0.9  # the loss that was minimized
    logistic = loss_threshold(nn.functional.softplus(-margin[0])).values
    ratio = lira(margin[0], margin[1:], members[1:]).values
    assert pooled_auc(logistic.numpy(), members[0].numpy()).direction == "higher"
    assert area(ratio, members[0]) > 0.95
    assert area(ratio, members[0]) > area(logistic, members[0]) + 0.1  # examples differ in how hard they are
    assert tpr_at(ratio.numpy(), members[0].numpy(), 0.1).low > 0.5  # 60 others show no lower rate


def test_rmia_tells_more_than_the_loss_from_four_shadow_models() -> None:
    gains = []
    for seed in range(8):
        margin, members = fitted(seed)
        alone = area(loss_threshold(nn.functional.softplus(-margin[0])).values, members[0])
        gains.append(area(rmia(margin[0], margin[1:5]).values, members[0]) - alone)
    assert sum(gains) / len(gains) > 0.01


def test_shadow_models_that_were_trained_before_a_kill_are_not_trained_again() -> None:
    draws, trained = Generator().manual_seed(0), []
    images, labels = torch.rand(40, 1, 2, 2, generator=draws), torch.arange(40) % 2

    def fit(own: Tensor, truth: Tensor, draws: Generator) -> Predict:
        trained.append(len(own))
        weights = torch.randn(4, 2, generator=draws) + own.flatten(1).T @ nn.functional.one_hot(truth, 2).float()
        return lambda asked: asked.flatten(1) @ weights

    attack = MemberInference(score="lira", shadows=8)
    observation = MembershipObservation(
        image_shape=(1, 2, 2),
        batch_size=40,
        candidates=images,
        candidate_labels=labels,
        predict=fit(images[:20], labels[:20], draws),
        fit=fit,
    )
    killed = Session(dies_after=3)
    with pytest.raises(Killed):
        attack.run(observation, Generator().manual_seed(0), killed)
    trained.clear()
    resumed = attack.run(observation, Generator().manual_seed(0), Session(state=killed.state))
    assert len(trained) == 5
    assert torch.equal(resumed.values, attack.run(observation, Generator().manual_seed(0)).values)


def test_failing_shadow_models_are_joined_by_as_many_again_and_the_first_ones_stay() -> None:
    draws, trained = Generator().manual_seed(0), list[Tensor]()
    images, labels = torch.rand(40, 1, 2, 2, generator=draws), torch.arange(40) % 2

    def fit(own: Tensor, truth: Tensor, draws: Generator) -> Predict:
        trained.append(own)
        return lambda asked: torch.randn(len(asked), 2, generator=draws)

    observation = MembershipObservation(
        image_shape=(1, 2, 2),
        batch_size=40,
        candidates=images,
        candidate_labels=labels,
        predict=lambda asked: asked.flatten(1)[:, :2],
        fit=fit,
    )
    attack = MemberInference(score="lira", shadows=4)
    alone = attack.run(observation, Generator().manual_seed(0)).values
    first, judged = [*trained], list[Tensor]()
    trained.clear()

    def told(found: Scores) -> tuple[bool, float]:
        judged.append(found.values)
        return False, 0.5 / len(judged)

    _, went = escalated(
        lambda session: attack.run(observation, Generator().manual_seed(0), session), told, most=2, unit="shadow models"
    )
    assert len(trained) == 16
    assert all(torch.equal(one, other) for one, other in zip(first, trained, strict=False))
    assert torch.equal(judged[0], alone)
    assert len({tuple(values.tolist()) for values in judged}) == 3
    assert "4 times its work (16 shadow models, error 0.5000, 0.2500, 0.1667), the largest work" in went.sentence
    held = torch.stack([(own.flatten(1).unsqueeze(1) == images.flatten(1)).all(2).any(0) for own in trained])
    assert (held.sum(0) == 8).all()  # each candidate is in half of all


def test_exchangeable_examples_are_chance() -> None:
    margin, members = fitted(1)
    strangers = members[:, torch.randperm(POOL, generator=Generator().manual_seed(0))]
    tests = loss_threshold(-margin[0]), lira(margin[0], margin[1:], members[1:]), rmia(margin[0], margin[1:])
    for scores in (test.values for test in tests):
        assert pooled_auc(scores.numpy(), strangers[0].numpy()).direction == "none"


def test_lira_is_the_ratio_of_its_two_normal_laws() -> None:
    margin, members = fitted(2)
    shadow, chosen = margin[1:], members[1:]
    found = lira(margin[0], shadow, chosen).values
    laws = []
    for side in (chosen, ~chosen):
        means = torch.stack([column[pick].mean() for column, pick in zip(shadow.T, side.T, strict=True)])
        rest = (shadow - means)[side]
        laws.append(torch.distributions.Normal(means, (rest.square().sum() / (len(rest) - POOL)).sqrt()))
    expected = laws[0].log_prob(margin[0]) - laws[1].log_prob(margin[0])
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_confidence_is_the_logit_of_the_probability() -> None:
    logits = torch.randn(7, 4, generator=Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(7) % 4
    p = logits.softmax(1)[torch.arange(7), labels]
    assert torch.allclose(confidence(logits, labels), (p / (1 - p)).log())
    assert confidence(torch.tensor([[1_000.0, 0.0]]), torch.tensor([1])).item() == -1_000


def test_losses_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        loss_threshold(torch.tensor([0.0, float("nan")]))


M, CELLS = 4_000, 4
SHAPE = (1, 1, CELLS)
RUN = ReleaseCount(epochs=1, batch_size=M)


def dp_sl_audit(claimed: DpSl, real: DpSl, seed: int, rounds: int = 1, **how: Any) -> EmpiricalBound:
    """M canaries at one corner of the box or the opposite one, through the defense as it really runs."""
    draws = Generator().manual_seed(seed)
    coins = torch.rand(M, generator=draws) < 0.5
    present, absent = torch.full((M, CELLS), claimed.bound or 0.0), torch.zeros(M, CELLS)
    sent = torch.where(coins.unsqueeze(1), 9.0, -9.0).expand(-1, CELLS).unsqueeze(0)  # clamped to the corners
    labels = torch.eye(2)[torch.zeros(1, M, dtype=torch.int64)]
    views = []
    for number in range(rounds):
        release, _ = real.apply(sent, labels, draws)
        views.append(View(round=number, smashed=release.smashed.flatten(0, 1)))
    _, receipt = claimed.apply(sent, labels, draws)
    rows = torch.arange(rounds).unsqueeze(1) * M + torch.arange(M)
    known = CanaryObservation(image_shape=SHAPE, batch_size=M, rows=rows, present=present, absent=absent)
    scores = Canaries(sigma=real.sigma).run(replace(known, views=views), draws)
    assert torch.equal(scores.examples, torch.arange(M))
    certificate = receipt.certificate(replace(RUN, epochs=rounds))
    return audit_one_run(scores.values.numpy(), coins.numpy(), certificate, guesses=(M // 16, M // 16), **how)


def spec(mu: float) -> DpSl:
    """μ of one release: Δ√D/σ."""
    return DpSl(sigma=CELLS**0.5 * 1.0 / mu, sigma_labels=None, bound=1.0)


@pytest.mark.parametrize("rounds", [1, 4])
def test_dp_sl_stands_its_audit_and_the_bound_is_not_idle(rounds: int) -> None:
    found = dp_sl_audit(spec(0.5), spec(0.5), seed=0, rounds=rounds)
    assert found.claimed < 6
    assert not found.refuted
    assert found.epsilon > 0.3
    assert "does not refute" in found.statement


def test_the_bound_of_a_gaussian_curve_is_tighter_and_stands_too() -> None:
    one, curve = (dp_sl_audit(spec(0.5), spec(0.5), seed=0, family=family) for family in (None, GAUSSIAN))
    assert not curve.refuted
    assert curve.epsilon > one.epsilon + 0.2


@pytest.mark.parametrize("how", [{}, {"family": GAUSSIAN}, {"family": GAUSSIAN, "independent": True}])
def test_noise_a_third_of_what_is_claimed_is_caught(how: dict[str, Any]) -> None:
    claimed = spec(0.5)
    found = dp_sl_audit(claimed, replace(claimed, sigma=claimed.sigma / 3), seed=0, **how)
    assert found.refuted
    assert "refutes the claimed" in found.statement


def test_a_fifth_less_noise_than_an_epsilon_of_8_needs_is_caught_and_all_of_it_stands() -> None:
    """Rows of one release are independent trials, and their receipt knows it."""
    claimed = spec(GAUSSIAN.strength(8, 1e-5))
    assert claimed.apply(torch.zeros(1, 2, CELLS), torch.zeros(1, 2, 2), Generator())[1].shared == ""
    how: dict[str, Any] = {"family": GAUSSIAN, "independent": True}
    caught = [dp_sl_audit(claimed, replace(claimed, sigma=0.8 * claimed.sigma), seed, **how) for seed in range(3)]
    honest = [dp_sl_audit(claimed, claimed, seed, **how) for seed in range(3)]
    assert all(found.claimed == pytest.approx(8, abs=1e-3) and found.refuted for found in caught)
    assert not any(found.refuted for found in honest)
    assert min(found.epsilon for found in honest) > 7


def test_rounds_that_are_not_charged_are_caught() -> None:
    """Nine releases where one is charged have a third of the noise, after averaging."""
    claimed = spec(0.5)
    nine, one = dp_sl_audit(claimed, claimed, seed=0, rounds=9), dp_sl_audit(claimed, claimed, seed=0)
    assert not nine.refuted
    assert nine.epsilon > one.claimed


def test_canaries_without_effect_bound_nothing() -> None:
    draws = Generator().manual_seed(0)
    views = [View(round=0, smashed=torch.randn(M, CELLS, generator=draws))]
    known = CanaryObservation(
        image_shape=SHAPE,
        batch_size=M,
        rows=torch.arange(M).unsqueeze(0),
        present=torch.ones(M, CELLS),
        absent=torch.zeros(M, CELLS),
    )
    scores = Canaries().run(replace(known, views=views), draws).values
    coins = torch.rand(M, generator=draws) < 0.5
    assert pooled_auc(scores.numpy(), coins.numpy()).direction == "none"


@pytest.mark.parametrize(("factor", "refuted"), [(1.0, False), (1 / 3, True)])
def test_cut_layer_gradients_are_audited_by_label_canaries(factor: float, refuted: bool) -> None:
    """The coin chooses the label; the server clips and perturbs the gradient that it sends back."""
    draws = Generator().manual_seed(0)
    smashed = torch.randn(M, CELLS, generator=draws)
    server = nn.Linear(CELLS, 2)
    with torch.no_grad():
        server.weight.copy_(50 * torch.tensor([[1.0] * CELLS, [-1.0] * CELLS]))
        server.bias.zero_()
    sides = label_gradients(server, 0 * smashed)  # opposite gradients, far beyond the clip
    clip = 1.0
    present, absent = (clip * nn.functional.normalize(side, dim=1) for side in (sides[1], sides[0]))
    coins = torch.rand(M, generator=draws) < 0.5
    gradient = torch.where(coins.unsqueeze(1), sides[1], sides[0]).unsqueeze(0)
    claimed = GradPerturb(noise=4.0, clip=clip)
    real = replace(claimed, noise=claimed.noise * factor)
    back = real.on_gradient(gradient, draws)
    _, receipt = claimed.apply(smashed.unsqueeze(0), coins.long().unsqueeze(0), draws)
    views = [View(round=0, smashed=smashed, cut_gradient=back.flatten(0, 1))]
    known = CanaryObservation(
        image_shape=SHAPE, batch_size=M, rows=torch.arange(M).unsqueeze(0), present=present, absent=absent
    )
    scores = Canaries(on="gradient").run(replace(known, views=views), draws).values
    # The server's weights are fixed and rows do not meet, so that a label touches its own gradient alone.
    certificate = receipt.certificate(ReleaseCount(rounds=1, batch_size=1))
    found = audit_one_run(scores.numpy(), coins.numpy(), certificate, guesses=(M // 16, M // 16))
    assert found.claimed < 4
    assert found.refuted == refuted
    assert found.epsilon > 0.3


def test_the_ratio_is_that_of_the_two_likelihoods() -> None:
    draws = Generator().manual_seed(0)
    row, a, b = (torch.randn(5, 3, generator=draws, dtype=torch.float64) for _ in range(3))
    laws = [torch.distributions.Normal(mean, 0.7) for mean in (a, b)]
    expected = (laws[0].log_prob(row) - laws[1].log_prob(row)).sum(1)
    assert torch.allclose(likelihood_ratio(row, a, b, 0.7), expected)


def test_canaries_say_what_they_lack() -> None:
    views = [View(round=0, smashed=torch.zeros(2, CELLS))]
    known = CanaryObservation(
        image_shape=SHAPE,
        batch_size=2,
        rows=torch.tensor([[0, 5]]),
        present=torch.zeros(2, CELLS),
        absent=torch.zeros(2, CELLS),
    )
    with pytest.raises(NotApplicable, match="not among the 2 rows"):
        Canaries().run(replace(known, views=views), Generator())
    with pytest.raises(NotApplicable, match="no view holds one"):
        Canaries(on="gradient").run(replace(known, views=views), Generator())
    half = [View(round=0, smashed=torch.zeros(2, CELLS), cut_gradient=torch.zeros(2, CELLS)), *views]
    with pytest.raises(NotApplicable, match="for some rows"):
        Canaries(on="gradient").run(replace(known, rows=torch.tensor([[0, 3]]), views=half), Generator())
    with pytest.raises(ValueError, match="one shape"):
        likelihood_ratio(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="> 0"):
        Canaries(sigma=0.0)


def test_a_curve_is_tested_only_where_one_is_claimed() -> None:
    scores, coins = torch.arange(40.0).numpy(), (torch.arange(40) % 2).bool().numpy()
    z, y = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2)
    laplace = LaplaceNoise(scale=9.0).apply(z, y, Generator())[1].certificate()
    gaussian = GaussianNoise(sigma=9.0).apply(z, y, Generator())[1].certificate()
    for claim in (laplace, no_protection()):
        with pytest.raises(AssertionError):
            audit_one_run(scores, coins, claim, family=GAUSSIAN, guesses=(5, 5))
    assert not audit_one_run(scores, coins, gaussian, family=GAUSSIAN, guesses=(5, 5)).refuted


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_bound_with_a_planned_number_of_guesses_stays_below_the_truth(mu: float) -> None:
    """100 runs of the very Gaussian, of which five may exceed it."""
    draws, truth = np.random.default_rng(0), gaussian_epsilon(1e-5, mu)
    claim = replace(spec(mu).apply(*one_release())[1].certificate(RUN), epsilon=truth)
    above = 0
    both: list[float] = []
    one: list[float] = []
    for _ in range(100):
        coins = draws.random(200) < 0.5
        scores = np.round(draws.normal(size=200) + mu * coins, 2)  # some tie
        found = audit_one_run(scores, coins, claim, family=GAUSSIAN)
        above += found.refuted
        both.append(found.epsilon)
        if len(one) < 60:
            one.append(audit_one_run(scores, coins, claim).epsilon)
    assert above <= 5
    assert np.mean(both) > np.mean(one) + 0.2


def one_release() -> tuple[Tensor, Tensor, Generator]:
    return torch.zeros(1, 2, CELLS), torch.eye(2).unsqueeze(0), Generator()


def test_gradients_of_named_labels_are_those_of_all_labels() -> None:
    draws = Generator().manual_seed(0)
    upper, smashed = nn.Sequential(nn.Flatten(), nn.Linear(6, 5)), torch.randn(7, 3, 2, generator=draws)
    labels = torch.randint(5, (2, 7), generator=draws)
    every, named = label_gradients(upper, smashed), label_gradients(upper, smashed, labels)
    assert torch.equal(named, every[labels, torch.arange(7)])
