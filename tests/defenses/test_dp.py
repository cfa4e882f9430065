"""Certificates of noisy defenses against accountants and recomputed tables, and what they do not claim."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp, OneHot
from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl, DpSl
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from privkit.shared.certificate import Certificate
from tests.defenses.receipts import INF, receipt
from tests.small import generator


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


def test_a_loader_that_shuffles_earns_no_credit_and_says_so() -> None:
    """A record costs what its epochs cost, whatever the number of batches; Poisson sampling would claim a hundredth."""
    one, many = (receipt(DpSl(), 10, 1).certificate(ReleaseCount(epochs=6, rounds=rounds)) for rounds in (6, 600))
    assert many.epsilon == one.epsilon
    said = "the server is assumed to know which batch, so the shuffle earns no credit"
    assert sum(said in line for line in many.assumptions) == 1
    assert not any(said in line for line in one.assumptions)


def test_a_certificate_of_noise_speaks_other_definitions_too() -> None:
    found = receipt(DpSl(sigma=0.5, sigma_labels=0.5), 10, 1).certificate(ReleaseCount(epochs=3, rounds=3))
    rho, mu = found.quantities["zcdp_rho"], found.quantities["gdp_mu"]
    assert rho == pytest.approx(mu**2 / 2)
    assert gaussian.epsilon(found.delta or 0.0, mu) == pytest.approx(found.epsilon)


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
    dealt = getattr(getattr(spec.get("mixing"), "ratio", None), "counts", None) == (2, 1, 1)  # to others every time
    lower = None if dealt else wanted.lower
    assert (found.epsilon, found.delta, found.lower) == (wanted.epsilon, wanted.delta, lower)
    assert (found.unit, found.relation) == (charged.get("unit", "record"), "replace_one")
    assert set(wanted.assumptions) - set(found.assumptions) <= {
        "labels stay with the client; nothing that reveals them is released"
    }


# The clamp around zero ----------------------------------------------------------------------------------------------

SIGNED = {"bound": 0.5, "signed": True, "sigma": 1e-9, "sigma_labels": None}
"""So little noise that the release is the sum of the clamped data."""


@pytest.mark.parametrize("kind", [DpSl, DpMixSl, DpCutMixSl])
def test_a_clamp_around_zero_keeps_both_signs_and_has_the_same_width(kind: Any) -> None:
    """Every corner of the cube against every other: the farthest two lie as far apart as the accountant says."""
    corners = torch.cartesian_prod(*[torch.tensor([-9.0, 9.0])] * 4).view(16, 2, 2)  # two tokens of two coordinates
    defense = kind(**SIGNED, **({} if kind is DpSl else {"concentration": INF}))
    outer = (1, 2, 1) if defense.group > 1 else (1, 1)
    sent, labels = torch.zeros(*outer, 2, 2), torch.eye(3)[torch.zeros(outer, dtype=torch.int64)]
    released = []
    for corner in corners:
        sent[0, 0] = corner
        release, receipt_ = defense.apply(sent, labels, generator())
        released.append(release.smashed.flatten())
    weights = torch.ones(1, 2) if release.weights is None else release.weights[0, 0].expand(2)  # of both tokens
    apart = 0.5 * (2 * weights.square().sum()).sqrt()
    assert torch.cdist(torch.stack(released), torch.stack(released)).max().item() == pytest.approx(apart.item(), 1e-5)
    assert torch.stack(released).min() < 0 < torch.stack(released).max()
    assert receipt_.clip.sensitivity("replace_one", "l2") == pytest.approx(0.5 * 2)  # four coordinates
    assert defense.public_transform(corners).unique().tolist() == [-0.25, 0.25]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kind", [DpSl, DpCutMixSl, DpMixSl])
def test_where_the_clamp_lies_costs_nothing(kind: Any) -> None:
    for run in (ReleaseCount(epochs=3), ReleaseCount(lower_model="trained", epochs=2, rounds=4, batch_size=5)):
        signed, plain = (receipt(kind(signed=one, **NOISY), 4, 2).certificate(run) for one in (True, False))
        assert signed.epsilon == plain.epsilon < INF


def test_a_clamp_that_is_nowhere_or_off_the_images_is_refused() -> None:
    with pytest.raises(ValueError, match="bound=none clamps nothing"):
        DpSl(bound=None, signed=True)
    with pytest.raises(ValueError, match="bright half of images"):
        DpCutMixSl(signed=True, level="input")


def test_unbounded_smashed_data_are_released_with_noise_alone() -> None:
    sent, labels = 9 * torch.randn(1, 1, 4, 2, generator=generator()), torch.eye(3)[:1].view(1, 1, 3)
    release, _ = DpSl(bound=None, sigma=1e-9).apply(sent, labels, generator())
    assert torch.allclose(release.smashed, sent)


# What is not claimed -------------------------------------------------------------------------------------------------


def reason(found: Certificate) -> str:
    assert (found.kind, found.epsilon, found.delta) == ("nothing", INF, None)
    return found.statement


UNBOUNDED = [
    GaussianNoise(clip=None),
    LaplaceNoise(clip=None),
    DpSl(bound=None),
    DpMixSl(bound=None),
    DpCutMixSl(bound=None),
]


@pytest.mark.parametrize("defense", UNBOUNDED, ids=lambda d: d.name)
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
    assert "averaging sends out lower models that were trained on raw data" in reason(found)


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
        assert any(line.startswith("the server learns the labels without noise") for line in found.assumptions)
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
    assert says(DpSl(), "smashed data are finite")


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


@pytest.mark.parametrize("kind", [DpMixSl, DpCutMixSl])
def test_a_lower_bound_needs_rounds_that_are_all_as_charged_and_told(kind: Any) -> None:
    def lower(tokens: int = 8, unmatched: int = 0, **changes: Any) -> float | None:
        defense = kind(**{"group": 4, "site": "mixer", "concentration": INF, **NOISY, **changes})
        found: Certificate = receipt(defense, tokens, 1).certificate(ReleaseCount(unmatched=unmatched, epochs=3))
        return found.lower

    assert lower() is not None
    assert lower(published=False) is None  # nobody tells which message and which patches are whose
    assert lower(unmatched=2) is None  # most groups have four
    assert lower(unmatched=1) is None
    assert lower(published=False, place="server", site="client") is not None  # which mixes, and so knows
    assert (lower(tokens=9) is None) == (kind is DpCutMixSl)  # nine patches: a ninth for another client each time


def test_a_smaller_group_that_the_call_itself_saw_is_charged_too() -> None:
    seats = torch.tensor([[True, True, True], [True, False, False]])
    assert receipt(DpMixSl(group=3, **NOISY), 4, 2, present=seats).certificate().epsilon == (
        receipt(DpSl(**NOISY), 4, 2).certificate().epsilon
    )
