"""Certificates of noisy defenses against accountants, recomputed tables and likelihood ratios of real calls."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import betaincinv
from torch import Generator, Tensor

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp, OneHot
from privkit.certificate import Certificate
from privkit.defenses import noise
from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.charge import Noised
from privkit.defenses.dp_cutmixsl import DpCutMixSl
from privkit.defenses.dp_mixsl import DpMixSl
from privkit.defenses.dp_sl import DpSl
from privkit.defenses.gaussian_noise import GaussianNoise
from privkit.defenses.laplace_noise import LaplaceNoise

INF = float("inf")


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def receipt(defense: Defense, tokens: int, dim: int, classes: int = 10, present: Tensor | None = None) -> Any:
    """Of one call on zeros; mixing defenses get two groups."""
    outer = (2, defense.group, 1) if defense.group > 1 else (2, 1)
    labels = torch.eye(classes)[torch.zeros(outer, dtype=torch.int64)]
    return defense.apply(torch.zeros(*outer, tokens, dim), labels, generator(), present)[1]


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "dim", "sigma", "unmixed", "half_cutmix", "half_mixup"),
    [
        (10, 1, 16 / 255, 383.0, 130.1, 120.5),
        (64, 12, 16 / 255, 2746.1, 1365.3, 760.4),
        (64, 48, 16 / 255, 9604.6, 4854.2, 2543.7),
        (64, 195, 16 / 255, 37058.2, 18700.4, 9549.6),
        (10, 1, 8 / 255, 1332.1, 416.6, 383.0),
        (10, 1, 32 / 255, 120.5, 45.3, 42.3),
    ],
)
def test_table_1_of_dp_cutmixsl(
    tokens: int, dim: int, sigma: float, unmixed: float, half_cutmix: float, half_mixup: float
) -> None:
    """Recomputed from the exact Gaussian profile, one release at δ = 1e-5."""
    settings: dict[str, Any] = {"sigma": sigma, "sigma_labels": sigma}
    fixed: dict[str, Any] = {"concentration": INF, "site": "mixer", **settings}
    found = [
        receipt(defense, tokens, dim).certificate().epsilon
        for defense in (DpSl(**settings), DpCutMixSl(**fixed), DpMixSl(**fixed))
    ]
    assert np.round(found, 1).tolist() == [unmixed, half_cutmix, half_mixup]


@pytest.mark.parametrize(("group", "epsilon"), [(2, 336.0), (10, 88.7)])
def test_random_ratios_cost_more_than_equal_ones(group: int, epsilon: float) -> None:
    assert round(receipt(DpMixSl(group=group), 10, 1).certificate().epsilon, 1) == epsilon


def test_six_hundred_releases() -> None:
    run = ReleaseCount(epochs=600, rounds=600)
    assert f"{receipt(DpSl(), 10, 1).certificate(run).epsilon:.3e}" == "1.720e+05"
    assert f"{receipt(DpSl(), 64, 48).certificate(run).epsilon:.3e}" == "5.433e+06"


BOX, CLASSES = Clamp(low=0, high=0.5, dimensions=8), OneHot()
GAUSS, SOFT = Noise(smashed=2.0, labels=3.0), Noise(smashed=2.0, labels=3.0, site="client")
NOISY: dict[str, Any] = {"sigma": 2.0, "sigma_labels": 3.0, "bound": 0.5}
FROZEN: dict[str, Any] = {"lower_model": "frozen", "smashed": BOX, "labels": CLASSES}
CASES: list[tuple[Defense, dict[str, Any]]] = [
    (GaussianNoise(sigma=2, clip=0.5), {"smashed": Clamp(low=-0.5, high=0.5, dimensions=8), "noise": Noise(smashed=2)}),
    (GaussianNoise(sigma=2, clip=0.5, clip_by="image"), {"smashed": Ball(radius=0.5), "noise": Noise(smashed=2)}),
    (
        LaplaceNoise(scale=20, clip=0.5),
        {"smashed": Clamp(low=-0.5, high=0.5, dimensions=8), "noise": Noise(law="laplace", smashed=20)},
    ),
    (DpSl(**NOISY), {"smashed": BOX, "labels": CLASSES, "noise": GAUSS}),
    (DpSl(sigma=2, sigma_labels=None, bound=0.5), {"smashed": BOX, "noise": Noise(smashed=2)}),
    (
        DpMixSl(group=3, **NOISY),
        {**FROZEN, "noise": GAUSS, "mixing": Mixup(ratio=DirichletRatio(concentration=2, clients=3))},
    ),
    (
        DpMixSl(group=3, site="client", concentration=INF, **NOISY),
        {**FROZEN, "noise": SOFT, "mixing": Mixup(ratio=FixedRatio.equal(3))},
    ),
    (
        DpCutMixSl(group=3, concentration=1.5, published=False, **NOISY),
        {
            **FROZEN,
            "noise": SOFT,
            "mixing": CutMix(ratio=DirichletCounts(concentration=1.5, clients=3, published=False), patches=4),
        },
    ),
    (
        DpCutMixSl(group=3, concentration=INF, site="mixer", **NOISY),
        {**FROZEN, "noise": GAUSS, "mixing": CutMix(ratio=FixedCounts(counts=(2, 1, 1)), patches=4)},
    ),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case[0].name}-{getattr(case[0], 'site', '')}{case[0].group}"
)
@pytest.mark.parametrize(
    ("release_count", "charged"),
    [
        (ReleaseCount(), {"lower_model": "frozen"}),
        (
            ReleaseCount(epochs=3, rounds=30, batch_size=5, clients=10, delta=1e-4),
            {"lower_model": "frozen", "rounds": 3},
        ),
        (
            ReleaseCount(lower_model="trained", epochs=3, rounds=6, batch_size=5, clients=10, delta=1e-4),
            {"lower_model": "trained", "unit": "client", "rounds": 6, "releases": 5},
        ),
    ],
    ids=["once", "frozen", "trained"],
)
def test_certificates_are_the_accountants(
    case: tuple[Defense, dict[str, Any]], release_count: ReleaseCount, charged: dict[str, Any]
) -> None:
    defense, spec = case
    found = receipt(defense, 4, 2).certificate(release_count)
    wanted = answer.epsilon(SplitMechanism(**{**spec, **charged}), release_count.delta)
    assert (found.epsilon, found.delta, found.lower) == (wanted.epsilon, wanted.delta, wanted.lower)
    assert (found.unit, found.relation) == (charged.get("unit", "record"), "replace_one")
    assert set(wanted.assumptions) - set(found.assumptions) <= {
        "labels stay with the client; nothing that reveals them is released"
    }


# What is not claimed -------------------------------------------------------------------------------------------------


def reason(found: Certificate) -> str:
    assert (found.kind, found.epsilon, found.delta) == ("nothing", INF, None)
    return found.statement


@pytest.mark.parametrize("defense", [GaussianNoise(clip=None), LaplaceNoise(clip=None)], ids=lambda d: d.name)
def test_noise_on_unbounded_data_proves_nothing(defense: Defense) -> None:
    assert "no bound" in reason(receipt(defense, 4, 2).certificate())


@pytest.mark.parametrize(
    "defense",
    [
        GaussianNoise(place="server"),
        LaplaceNoise(place="server"),
        DpSl(place="server"),
        DpMixSl(place="server"),
        DpCutMixSl(place="server", site="mixer"),
    ],
    ids=lambda d: d.name,
)
def test_noise_that_the_server_adds_proves_nothing(defense: Defense) -> None:
    assert "the server adds the noise to smashed data that it already holds" in reason(
        receipt(defense, 4, 2).certificate()
    )


def test_a_server_that_mixes_gets_no_credit_for_mixing_but_the_clients_noise_counts() -> None:
    alone = receipt(DpSl(**NOISY), 4, 2).certificate()
    for kind in (DpMixSl, DpCutMixSl):
        found = receipt(kind(site="client", place="server", **NOISY), 4, 2).certificate()
        assert found.epsilon == alone.epsilon
        assert any("nothing is credited to mixing" in line for line in found.assumptions)


@pytest.mark.parametrize("defense", [GaussianNoise(), DpSl(), DpMixSl(), DpCutMixSl()], ids=lambda d: d.name)
def test_averaged_lower_models_prove_nothing_and_the_accountant_says_why(defense: Defense) -> None:
    found = receipt(defense, 4, 2).certificate(ReleaseCount(lower_model="averaged"))
    assert "averaging lower models sends out what a client's raw data did to them" in reason(found)


@pytest.mark.parametrize("kind", [DpMixSl, DpCutMixSl])
def test_copies_of_a_record_under_the_same_random_ratios_are_not_charged_as_apart(kind: Any) -> None:
    """Ten copies in one message share their ratio, so that δ at the ε of ten releases is a hundred times too large."""
    apart = ReleaseCount(epochs=10, batch_size=50, clients=2)
    together = replace(apart, copies=10)
    found = receipt(kind(sigma=0.5, sigma_labels=None), 5, 2)
    claimed = found.certificate(apart)
    if kind is DpMixSl:
        shares = (np.arange(4000) + 0.5) / 4000
        true = (
            6 * shares * (1 - shares) @ gaussian.delta(claimed.epsilon, 0.3 * np.sqrt(10) * shares * np.sqrt(10)) / 4000
        )
        assert true > 100 * claimed.delta
    assert "under the same random ratios" in reason(found.certificate(together))
    for one in (kind(sigma=0.5, concentration=float("inf")), kind(sigma=0.5, drawn="once"), DpSl(sigma=0.5)):
        made = receipt(one, 5, 2)
        assert made.certificate(together).epsilon == made.certificate(apart).epsilon
    trained = replace(apart, lower_model="trained", rounds=10)
    assert found.certificate(trained).epsilon == found.certificate(replace(trained, copies=10)).epsilon


def test_labels_in_the_clear_are_said() -> None:
    for defense in (GaussianNoise(), LaplaceNoise(), DpSl(sigma_labels=None), DpMixSl(sigma_labels=None)):
        found = receipt(defense, 4, 2).certificate()
        assert "given the labels" in found.statement
        assert any(line.startswith("labels reach the server without noise") for line in found.assumptions)
        assert not any(line.startswith("labels stay") for line in found.assumptions)
    found = receipt(DpSl(), 4, 2).certificate()
    assert "given the labels" not in found.statement
    assert any("released with noise of their own" in line for line in found.assumptions)


def test_who_is_trusted_and_what_comes_after_training_are_said() -> None:
    def says(defense: Defense, words: str) -> bool:
        return any(words in line for line in receipt(defense, 4, 2).certificate().assumptions)

    assert says(DpSl(place="mixer"), "a mixer adds the noise in the client's place")
    assert not says(DpSl(), "a mixer adds the noise")
    assert says(DpMixSl(), "whoever mixes is trusted")
    assert says(DpMixSl(site="client"), "keep their own noise from the server")
    assert says(DpSl(at_inference=False), "images that are sent after training pass without noise")
    assert says(DpMixSl(), "images that are sent after training pass without noise")
    assert not says(DpSl(), "after training")
    assert says(DpSl(), "the low bits of floats")


def test_a_delta_past_one_over_n_is_warned_about() -> None:
    def warned(**run: Any) -> bool:
        found = receipt(GaussianNoise(sigma=50), 4, 2).certificate(ReleaseCount(**run))
        return any("above 1/n" in line for line in found.assumptions)

    assert warned(clients=100, lower_model="trained", delta=0.02)
    assert not warned(clients=100, lower_model="trained", delta=0.01)
    assert warned(clients=10, batch_size=10, rounds=6, epochs=3, delta=0.0051)
    assert not warned(clients=10, batch_size=10, rounds=6, epochs=3, delta=0.005)


@pytest.mark.parametrize("delta", [0.0, 1.0, float("nan")])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    for defense in (GaussianNoise(), GaussianNoise(clip=None)):
        with pytest.raises(ValueError, match="delta must be"):
            receipt(defense, 4, 2).certificate(ReleaseCount(delta=delta))


@pytest.mark.parametrize("kind", [DpMixSl, DpCutMixSl])
@pytest.mark.parametrize("site", ["client", "mixer"])
@pytest.mark.parametrize("alpha", [2.0, INF])
def test_unmatched_clients_are_charged_as_the_smaller_group(kind: Any, site: str, alpha: float) -> None:
    def charged(group: int, unmatched: int = 0) -> Certificate:
        defense = kind(group=group, site=site, concentration=alpha, **NOISY)
        found: Certificate = receipt(defense, 8, 1).certificate(ReleaseCount(unmatched=unmatched))
        return found

    assert charged(4, unmatched=1).epsilon == receipt(DpSl(**NOISY), 8, 1).certificate().epsilon
    assert any("as if its group had 2" in line for line in charged(4, unmatched=2).assumptions)
    if site == "mixer":
        assert charged(4, unmatched=2).epsilon == charged(2).epsilon
    else:  # charged as colluding
        assert charged(4, unmatched=2).epsilon >= charged(2).epsilon
    assert charged(4).epsilon < charged(4, unmatched=3).epsilon


def test_a_smaller_group_that_the_call_itself_saw_is_charged_too() -> None:
    seats = torch.tensor([[True, True, True], [True, False, False]])
    assert receipt(DpMixSl(group=3, **NOISY), 4, 2, present=seats).certificate().epsilon == (
        receipt(DpSl(**NOISY), 4, 2).certificate().epsilon
    )


# Likelihood ratios of real calls -------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", GAMES)
def test_no_likelihood_ratio_beats_the_certificate(name: str) -> None:
    for delta, epsilon, low, high in audit(name):
        assert low <= delta
        if GAMES[name].exact and epsilon > 0:  # numerical composition is 2 % above its own lower bound at most
            assert high >= 0.98 * delta


@pytest.mark.parametrize("name", [name for name in GAMES if GAMES[name].exact])
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
