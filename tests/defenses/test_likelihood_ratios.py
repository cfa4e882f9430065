"""Likelihood ratios of real calls: none beats a certificate."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import betaincinv
from torch import Generator, Tensor

from privkit.accountants.spec.mixing import FixedRatio
from privkit.accountants.spec.parts import Mixup, Noise
from privkit.defenses import noise
from privkit.defenses.base import ReleaseCount
from privkit.defenses.charge import Noised
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl, DpSl
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from tests.defenses.receipts import INF
from tests.small import generator

TRIALS = 60_000
DELTAS = (0.3, 0.1, 0.03, 0.01, 0.002)
ODDS = 1e-5
"""Probability that a limit fails, each."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """A defense, its worst neighbors, and a run that is played many times.

    Attributes:
        defense: under test.
        pair: smashed data of the neighbors, one number for all coordinates (member 0 of a group; the others send 0).
        beyond: how many times as far out the smashed data lie before they are clipped to `pair`.
        coordinates: tokens of one coordinate each.
        run: the release count.
        seats: which seats are taken; None for all.
        exact: whether the certificate is exact for this pair, so that the trials must come close to it.
    """

    defense: Any
    pair: tuple[float, float]
    coordinates: int = 4
    beyond: float = 1.0
    run: ReleaseCount = field(default_factory=ReleaseCount)
    seats: tuple[bool, ...] | None = None
    exact: bool = True

    @property
    def rounds(self) -> int:
        return self.run.epochs if self.run.lower_model == "frozen" else self.run.rounds

    @property
    def images(self) -> int:
        return 1 if self.run.lower_model == "frozen" else self.run.batch_size


def losses(game: Game, member: int, draws: Generator) -> tuple[Tensor, Noised]:
    """Log-likelihood ratio of neighbor 0 against neighbor 1 in every trial, when neighbor `member` is played.

    Computed from the release, the published ratios and masks and the declared noise; no accountant is asked.
    """
    defense, k, b, t = game.defense, game.defense.group, game.images, game.coordinates
    total, made = torch.zeros(TRIALS, dtype=torch.float64), None
    outer = (TRIALS, k, b) if k > 1 else (TRIALS, b)
    first = (slice(None), 0) if k > 1 else (slice(None),)
    mine, label = torch.zeros(2, *outer, t, 1), torch.zeros(2, *outer, 2)
    for i in (0, 1):
        mine[i][first] = game.beyond * game.pair[i]
        label[i, ..., 0] = 1
        if getattr(defense, "sigma_labels", None) is not None:
            label[i][first] = torch.eye(2)[i]
    present = None if game.seats is None else torch.tensor(game.seats).expand(TRIALS, k)
    for _ in range(game.rounds):
        release, made = defense.apply(mine[member], label[member], draws, present)
        own = made.ratios[:, 0] if k > 1 else torch.ones(TRIALS)
        others = 1 - own
        shrunk = made.ratios.norm(dim=1) if k > 1 and made.noise.site == "client" else torch.ones(TRIALS)
        if made.counts is not None and k > 1:
            weight, scale = release.weights[:, 0].view(-1, 1, t), torch.full((TRIALS,), made.noise.smashed)
        else:
            weight, scale = own.view(-1, 1, 1), made.noise.smashed * shrunk
        spoken = release.smashed.squeeze(-1).double()
        total += ratio(spoken, [weight * value for value in game.pair], scale, made.noise.law)
        if made.noise.labels is not None:
            sent = [own.view(-1, 1, 1) * torch.eye(2)[i] + others.view(-1, 1, 1) * torch.eye(2)[0] for i in (0, 1)]
            total += ratio(release.labels.double(), sent, made.noise.labels * shrunk, made.noise.law)
    assert made is not None
    return total, made


def ratio(seen: Tensor, means: list[Tensor], scale: Tensor, law: str) -> Tensor:
    """ln p_0/p_1 of [n, b, c] under noise of scale [n]."""
    away = [(seen - mean).abs() / scale.view(-1, 1, 1) for mean in means]
    cost = [a if law == "laplace" else a**2 / 2 for a in away]
    return (cost[1] - cost[0]).sum((1, 2))


def limits(hits: int) -> tuple[float, float]:
    """Clopper-Pearson limits of a probability."""
    low = betaincinv(hits, TRIALS - hits + 1, ODDS) if hits else 0.0
    high = betaincinv(hits + 1, TRIALS - hits, 1 - ODDS) if hits < TRIALS else 1.0
    return float(low), float(high)


CERTIFIED: dict[tuple[str, float], float] = {}
"""Game and δ -> ε: certificates depend on no coin, and numerical composition takes a second."""


def certified(name: str, made: Noised, delta: float) -> float:
    if (name, delta) not in CERTIFIED:
        CERTIFIED[name, delta] = made.certificate(replace(GAMES[name].run, delta=delta)).epsilon
    return CERTIFIED[name, delta]


def audit(name: str) -> list[tuple[float, float, float, float]]:
    """For each δ: δ, the certified ε, and limits on P(S) − e^ε·Q(S) for the event S that the ratio is above ε.

    The lower limit bounds the true δ from below for any S; with the declared noise, S is the best of all.
    """
    draws = generator(7)
    (p, made), (q, _) = losses(GAMES[name], 0, draws), losses(GAMES[name], 1, draws)
    found = []
    for delta in DELTAS:
        epsilon = certified(name, made, delta)
        hit, alarm = limits(int((p > epsilon).sum())), limits(int((q > epsilon).sum()))
        found.append((delta, epsilon, hit[0] - np.exp(epsilon) * alarm[1], hit[1] - np.exp(epsilon) * alarm[0]))
    return found


TWICE = ReleaseCount(epochs=2, rounds=2)
CLIENT = ReleaseCount(lower_model="trained", batch_size=2, rounds=2, epochs=1)
UNIT: dict[str, Any] = {"bound": 1.0, "sigma": 2.0, "sigma_labels": 2.0}
GAMES = {
    "gaussian": Game(defense=GaussianNoise(sigma=2.0, clip=0.5), pair=(0.5, -0.5)),
    "gaussian by image": Game(
        defense=GaussianNoise(sigma=2.0, clip=1.0, clip_by="image"), pair=(0.5, -0.5), beyond=9.0
    ),
    "gaussian in place": Game(defense=GaussianNoise(sigma=2.0, clip=0.5, noise_in_place=True), pair=(0.5, -0.5)),
    "gaussian, client": Game(defense=GaussianNoise(sigma=3.0, clip=0.5), pair=(0.5, -0.5), run=CLIENT),
    "laplace, one coordinate": Game(defense=LaplaceNoise(scale=2.0), pair=(1.0, -1.0), coordinates=1),
    "laplace": Game(defense=LaplaceNoise(scale=4.0), pair=(1.0, -1.0), exact=False),
    "dp_sl": Game(defense=DpSl(**UNIT), pair=(1.0, 0.0)),
    "dp_sl, labels clear": Game(defense=DpSl(bound=1.0, sigma=2.0, sigma_labels=None), pair=(1.0, 0.0)),
    "dp_sl, twice": Game(defense=DpSl(**UNIT), pair=(1.0, 0.0), run=TWICE),
    "dp_sl, client": Game(defense=DpSl(**UNIT), pair=(1.0, 0.0), run=CLIENT),
    "dp_mixsl": Game(defense=DpMixSl(**UNIT), pair=(1.0, 0.0)),
    "dp_mixsl, equal": Game(defense=DpMixSl(concentration=INF, group=3, **UNIT), pair=(1.0, 0.0)),
    "dp_mixsl by clients": Game(defense=DpMixSl(site="client", **UNIT), pair=(1.0, 0.0)),
    "dp_mixsl by three clients": Game(defense=DpMixSl(site="client", group=3, **UNIT), pair=(1.0, 0.0), exact=False),
    "dp_mixsl, twice": Game(defense=DpMixSl(**UNIT), pair=(1.0, 0.0), run=TWICE),
    "dp_mixsl, client": Game(defense=DpMixSl(**UNIT), pair=(1.0, 0.0), run=CLIENT, exact=False),
    "dp_mixsl, pair of three": Game(
        defense=DpMixSl(group=3, **UNIT), pair=(1.0, 0.0), run=ReleaseCount(unmatched=2), seats=(True, True, False)
    ),
    "dp_mixsl, pair of three by clients": Game(
        defense=DpMixSl(group=3, site="client", **UNIT),
        pair=(1.0, 0.0),
        run=ReleaseCount(unmatched=2),
        seats=(True, True, False),
        exact=False,
    ),
    "dp_cutmixsl": Game(defense=DpCutMixSl(**UNIT), pair=(1.0, 0.0)),
    "dp_cutmixsl at the mixer": Game(defense=DpCutMixSl(site="mixer", group=3, **UNIT), pair=(1.0, 0.0)),
    "dp_cutmixsl, equal": Game(defense=DpCutMixSl(concentration=INF, **UNIT), pair=(1.0, 0.0)),
    "dp_cutmixsl, remainder": Game(
        defense=DpCutMixSl(concentration=INF, **UNIT), pair=(1.0, 0.0), coordinates=5, exact=False
    ),
    "dp_cutmixsl, twice": Game(defense=DpCutMixSl(**UNIT), pair=(1.0, 0.0), run=TWICE),
    "dp_cutmixsl, alone": Game(
        defense=DpCutMixSl(**UNIT), pair=(1.0, 0.0), run=ReleaseCount(unmatched=1), seats=(True, False)
    ),
}


def but(games: Iterable[str], slow: str = "dp_mixsl, twice") -> list[Any]:
    """The names of games, and the slow one as such."""
    return [pytest.param(name, marks=pytest.mark.slow) if name == slow else name for name in games]


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("name", but(GAMES))
def test_no_likelihood_ratio_beats_the_certificate(name: str) -> None:
    for delta, epsilon, low, high in audit(name):
        assert low <= delta
        if GAMES[name].exact and epsilon > 0:  # numerical composition is 2 % above its own lower bound at most
            assert high >= 0.98 * delta


@pytest.mark.slow(but=6)
@pytest.mark.parametrize("name", but(name for name in GAMES if GAMES[name].exact))
def test_noise_that_is_a_fifth_too_small_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian, laplace = noise.gaussian, noise.laplace
    monkeypatch.setattr(noise, "gaussian", lambda z, sigma, g: gaussian(z, 0.8 * sigma, g))
    monkeypatch.setattr(noise, "laplace", lambda z, scale, g: laplace(z, 0.8 * scale, g))
    assert any(low > delta for delta, _, low, _ in audit(name))


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("dp_mixsl", {"mixing": Mixup(ratio=FixedRatio.equal(2))}),
        ("dp_mixsl by clients", {"noise": Noise(smashed=2.0, labels=2.0, site="mixer")}),
        ("dp_mixsl, pair of three", {"present": None}),
    ],
    ids=["equal ratios", "noise at the mixer", "full groups"],
)
def test_a_receipt_that_claims_more_is_caught(name: str, claim: dict[str, Any]) -> None:
    """DP-CutMixSL's Theorem 1 claims the first two: λ = 1/k for random λ, and σ for noise that λ has shrunk."""
    draws, delta = generator(7), 0.03
    (p, made), (q, _) = losses(GAMES[name], 0, draws), losses(GAMES[name], 1, draws)

    def least(receipt: Noised) -> float:
        run = replace(GAMES[name].run, delta=delta)
        epsilon = receipt.certificate(run if receipt is made else replace(run, unmatched=0)).epsilon
        hit, alarm = limits(int((p > epsilon).sum())), limits(int((q > epsilon).sum()))
        return float(hit[0] - np.exp(epsilon) * alarm[1])

    assert least(made) <= delta
    assert least(replace(made, **claim)) > delta
