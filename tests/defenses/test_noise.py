"""Noise and clipping against their declared laws: variance, place, freshness, sensitivity, gradient, bad inputs."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any, Literal

import pytest
import torch
from scipy import stats
from torch import Tensor

from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio
from privkit.accountants.spec.parts import CutMix, Mixup
from privkit.accountants.spec.sensitivity import OneHot
from privkit.defenses import noise
from privkit.defenses.base import Defense, Release
from privkit.defenses.charge import Noised
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl, DpSl
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from tests.small import generator

INF = float("inf")
UNMIXED: list[Defense] = [
    GaussianNoise(sigma=0.3, clip=0.4),
    GaussianNoise(sigma=0.3, clip=0.4, clip_by="image"),
    LaplaceNoise(scale=0.3, clip=0.4),
    DpSl(sigma=0.3, sigma_labels=0.2, bound=0.4),
    DpSl(sigma=0.3, sigma_labels=None, bound=0.4),
]
PLACES: tuple[tuple[int, Literal["client", "mixer"], float], ...] = (
    (1, "mixer", 2.0),
    (2, "mixer", 2.0),
    (3, "client", 0.5),
    (3, "mixer", INF),
)
MIXED: list[Defense] = [
    kind(group=group, site=site, sigma=0.3, sigma_labels=0.2, bound=0.4, concentration=alpha)
    for kind in (DpMixSl, DpCutMixSl)
    for group, site, alpha in PLACES
]
EVERY = UNMIXED + MIXED


def label(defense: Any) -> str:
    return f"{defense.name}-{getattr(defense, 'site', '')}{defense.group}-{getattr(defense, 'clip_by', '')}"


def inputs(defense: Defense, messages: int, images: int, tokens: int = 4, dim: int = 3) -> tuple[Tensor, Tensor]:
    """Random smashed data around the clip sets and one-hot labels of five classes, as the defense takes them."""
    outer = (messages, defense.group, images) if defense.group > 1 else (messages, images)
    draws = generator(99)
    smashed = torch.randn(*outer, tokens, dim, generator=draws, dtype=torch.float64)
    classes = torch.randint(5, outer, generator=draws)
    return smashed, torch.nn.functional.one_hot(classes, 5).double()


def call(defense: Defense, messages: int = 5, images: int = 3, seed: int = 0) -> tuple[Release, Any, Tensor, Tensor]:
    smashed, labels = inputs(defense, messages, images)
    release, receipt = defense.apply(smashed, labels, generator(seed))
    return release, receipt, smashed, labels


def standardized(defense: Any, messages: int, images: int) -> dict[str, Tensor]:
    """Noise of a real call over its declared standard deviation, from a mean that is computed here, the slow way."""
    release, receipt, smashed, labels = call(defense, messages, images)
    if isinstance(defense, GaussianNoise) and defense.clip_by == "image":
        norm = smashed.flatten(2).norm(dim=2)[:, :, None, None]
        mean = torch.where(norm > 0.4, smashed * 0.4 / norm, smashed)
    elif isinstance(defense, GaussianNoise | LaplaceNoise):
        mean = smashed.clamp(-0.4, 0.4)
    else:
        mean = smashed.clamp(0, 0.4)
    if release.weights is None:
        found = {"smashed": (release.smashed - mean) / receipt.noise.smashed}
        if receipt.noise.labels is not None:
            found["labels"] = (release.labels - labels) / receipt.noise.labels
        return found
    ratios = receipt.ratios
    if defense.group == 1:
        mean, labels = mean.unsqueeze(1), labels.unsqueeze(1)
    share = release.weights.double() if isinstance(defense, DpCutMixSl) else ratios.unsqueeze(2)
    mixed = torch.einsum("gkt,gkbtd->gbtd", share.expand(-1, -1, mean.shape[3]), mean)
    shrunk = ratios.norm(dim=1).view(-1, 1, 1) if defense.site == "client" else torch.ones(1, 1, 1)
    smashed_shrunk = shrunk.unsqueeze(3) if isinstance(defense, DpMixSl) else 1.0
    return {
        "smashed": (release.smashed - mixed) / (receipt.noise.smashed * smashed_shrunk),
        "labels": (release.labels - torch.einsum("gk,gkbl->gbl", ratios, labels)) / (receipt.noise.labels * shrunk),
    }


def odds(values: Tensor, law: str) -> tuple[float, float]:
    """Two-sided p-values that the scale is 1, and that the shape is the law's."""
    flat = values.flatten().numpy()
    if law == "gaussian":
        scale = stats.chi2(flat.size).cdf((flat**2).sum())
    else:
        scale = stats.gamma(flat.size).cdf(abs(flat).sum())
    return 2 * min(scale, 1 - scale), stats.kstest(flat, "norm" if law == "gaussian" else "laplace").pvalue


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_noise_has_the_declared_law_where_the_receipt_says(defense: Defense) -> None:
    law = "laplace" if isinstance(defense, LaplaceNoise) else "gaussian"
    for values in standardized(defense, 300, 10).values():
        assert min(odds(values, law)) > 1e-4


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_noise_that_is_four_percent_too_small_would_be_found(defense: Defense, monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian, laplace = noise.gaussian, noise.laplace
    monkeypatch.setattr(noise, "gaussian", lambda z, sigma, g: gaussian(z, 0.96 * sigma, g))
    monkeypatch.setattr(noise, "laplace", lambda z, scale, g: laplace(z, 0.96 * scale, g))
    law = "laplace" if isinstance(defense, LaplaceNoise) else "gaussian"
    for values in standardized(defense, 300, 10).values():
        assert odds(values, law)[0] < 1e-4


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_noise_is_fresh_along_every_axis(defense: Defense) -> None:
    for values in standardized(defense, 60, 10).values():
        for axis in range(values.ndim):
            product = values * values.roll(1, axis)  # uncorrelated neighbors: mean 0, variance that of the product
            z = product.mean() / product.std() * product.numel() ** 0.5
            assert abs(z) < 4.5


@pytest.mark.parametrize("defense", [DpSl(sigma_labels=None), DpMixSl(sigma_labels=None, concentration=INF)], ids=label)
def test_labels_without_noise_are_released_as_they_are(defense: Defense) -> None:
    release, receipt, _, labels = call(defense)
    assert torch.equal(release.labels, labels if defense.group == 1 else labels.mean(1))
    assert receipt.labels is None


def test_receipts_hold_the_ratios_and_counts_that_were_drawn() -> None:
    release, receipt, *_ = call(DpCutMixSl(group=3), messages=50)
    assert release.weights is not None
    assert torch.equal(release.weights.sum(2).long(), receipt.counts)
    assert torch.equal(receipt.ratios, receipt.counts / 4)
    assert torch.equal(release.weights.sum(1), torch.ones(50, 4))
    release, receipt, *_ = call(DpMixSl(group=3), messages=50)
    assert release.weights is not None
    assert torch.allclose(release.weights[..., 0].double(), receipt.ratios, atol=1e-7)
    assert receipt.counts is None
    assert receipt.mixing == Mixup(ratio=DirichletRatio(concentration=2, clients=3))
    assert call(DpCutMixSl(group=3, published=False))[1].mixing == CutMix(
        ratio=DirichletCounts(concentration=2, clients=3, published=False), patches=4
    )


def test_an_empty_seat_gets_no_weight_whatever_it_holds() -> None:
    for defense in (DpMixSl(group=3, site="client"), DpCutMixSl(group=3), DpMixSl(group=3), DpCutMixSl(group=3)):
        smashed, labels = inputs(defense, 8, 2)
        smashed[:, 2], labels[:, 2] = float("nan"), float("nan")
        seats = torch.tensor([True, True, False]).expand(8, 3)
        release, receipt = defense.apply(smashed, labels, generator(), seats)
        assert isinstance(receipt, Noised)
        assert receipt.ratios is not None
        assert release.smashed.isfinite().all()
        assert release.labels.isfinite().all()
        assert torch.equal(receipt.ratios[:, 2], torch.zeros(8, dtype=torch.float64))


# Sensitivity ---------------------------------------------------------------------------------------------------------


def farthest(distance: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Largest distances that gradient ascent finds from each start, pairs stacked in axis 0."""
    pair = start.clone().requires_grad_()
    ascent = torch.optim.Adam([pair], lr=0.05, maximize=True)
    decay = torch.optim.lr_scheduler.ExponentialLR(ascent, 0.96)
    best = torch.zeros(start.shape[1], dtype=torch.float64)
    for _ in range(150):
        found = distance(pair)
        best = torch.maximum(best, found.detach())
        ascent.zero_grad()
        found.sum().backward()
        ascent.step()
        decay.step()
    return best


def reach_of_smashed_data(defense: Any, restarts: int = 24) -> tuple[Tensor, Tensor]:
    """What the search finds and what the clip set allows, [R] each.

    Neighbors differ in what member 0 sends; one seed gives both the same noise and coins, so that they cancel.
    """
    smashed, labels = inputs(defense, restarts, 1)
    receipt = defense.apply(smashed, labels, generator())[1]

    def released(own: Tensor) -> Tensor:
        rest = smashed[:, 1:] if defense.group > 1 else None
        given = own if rest is None else torch.cat([own.unsqueeze(1), rest], 1)
        return defense.apply(given, labels, generator())[0].smashed.flatten(1)

    start = torch.rand(2, restarts, 1, 4, 3, generator=generator(1), dtype=torch.float64) * 0.6 - 0.2
    norm = "l1" if isinstance(defense, LaplaceNoise) else "l2"
    found = farthest(
        lambda pair: (released(pair[0]) - released(pair[1])).norm(p=1 if norm == "l1" else 2, dim=1), start
    )
    allowed = receipt.clip.sensitivity("replace_one", norm) * torch.ones(restarts, dtype=torch.float64)
    if defense.group > 1:
        allowed *= receipt.ratios[:, 0].sqrt() if receipt.counts is not None else receipt.ratios[:, 0]
    return found, allowed


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_search_attains_the_sensitivity_of_smashed_data_and_never_exceeds_it(defense: Any) -> None:
    found, allowed = reach_of_smashed_data(defense)
    assert (found <= allowed * (1 + 1e-9) + 1e-12).all()
    assert (found[allowed > 0] / allowed[allowed > 0]).max() > 1 - 1e-5


@pytest.mark.parametrize("defense", [UNMIXED[0], UNMIXED[1], UNMIXED[3], MIXED[1], MIXED[5]], ids=label)
def test_search_would_find_a_clip_that_is_a_thousandth_too_wide(
    defense: Defense, monkeypatch: pytest.MonkeyPatch
) -> None:
    clamp, shrink = noise.clamp, noise.shrink
    monkeypatch.setattr(noise, "clamp", lambda z, low, high: clamp(z, low, high * 1.001))
    monkeypatch.setattr(noise, "shrink", lambda z, radius: shrink(z, radius * 1.001))
    found, allowed = reach_of_smashed_data(defense)
    assert (found > allowed * (1 + 1e-9) + 1e-12).any()


@pytest.mark.parametrize("defense", [d for d in EVERY if d.soft_labels], ids=label)
def test_search_attains_the_sensitivity_of_labels_and_never_exceeds_it(defense: Any) -> None:
    restarts = 24
    smashed, labels = inputs(defense, restarts, 1)
    receipt = defense.apply(smashed, labels, generator())[1]

    def released(own: Tensor) -> Tensor:
        given = own if defense.group == 1 else torch.cat([own.unsqueeze(1), labels[:, 1:]], 1)
        return defense.apply(smashed, given, generator())[0].labels.flatten(1)

    start = torch.rand(2, restarts, 1, 5, generator=generator(1), dtype=torch.float64)
    found = farthest(lambda pair: (released(pair[0]) - released(pair[1])).norm(dim=1), start)
    own = receipt.ratios[:, 0] if defense.group > 1 else torch.ones(restarts, dtype=torch.float64)
    allowed = OneHot().sensitivity("replace_one", "l2") * own
    assert (found <= allowed * (1 + 1e-9) + 1e-12).all()
    assert (found[allowed > 0] / allowed[allowed > 0]).max() > 1 - 1e-5


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e18, 1e30])
def test_huge_and_tiny_inputs_stay_inside_the_clip_sets(size: float) -> None:
    z = size * torch.randn(50, 4, 6, generator=generator())
    assert noise.shrink(z, 0.4).flatten(2).norm(dim=2).max() <= 0.4 * (1 + 1e-6)
    assert noise.clamp(z, -0.4, 0.4).abs().max() <= 0.4 * (1 + 1e-6)
    labels = noise.simplex(z)
    assert labels.min() >= 0
    assert labels.sum(-1).max() <= 1 + 1e-6


@pytest.mark.parametrize("radius", [1e-30, 1e-25, 1.0])
def test_clipped_norms_end_at_or_below_the_radius(radius: float) -> None:
    """Squares of tiny numbers vanish in float32, and sums of a million equal squares round down."""
    for z in (torch.full((1, 1, 1_000_000), 3.3 * radius), 9 * radius * torch.randn(1, 50, 99, generator=generator())):
        norms = noise.shrink(z, radius).double().flatten(2).norm(dim=2)
        assert (norms <= radius).all()
        assert (norms > radius * (1 - 1e-5)).all()


def test_a_bound_is_kept_in_bfloat16_where_its_own_rounding_would_break_it() -> None:
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert ones.clamp(0, 0.15).double().max() > 0.1503  # what `clamp` must not do
    assert noise.clamp(ones, 0, 0.15).double().max() < 0.15 + 1e-7
    for defense in (GaussianNoise(), LaplaceNoise(), DpSl()):
        smashed, labels = inputs(defense, 2, 2)
        assert defense.apply(smashed.bfloat16(), labels, generator())[0].smashed.dtype == torch.bfloat16


def test_a_nan_is_not_hidden() -> None:
    for defense in UNMIXED:
        smashed, labels = inputs(defense, 1, 2)
        smashed[0, 0, 0, 0] = float("nan")
        assert defense.apply(smashed, labels, generator())[0].smashed.isnan().any()


# Gradient ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_gradient_through_the_defense_is_the_derivative(defense: Defense) -> None:
    smashed, labels = inputs(defense, 2, 2, tokens=3, dim=2)
    smashed.requires_grad_()
    labels = (0.1 * labels + 0.05).requires_grad_() if defense.soft_labels else labels

    def released(z: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        release, _ = defense.apply(z.tanh(), y, generator())
        return (release.smashed.tanh(), release.labels) if defense.soft_labels else (release.smashed.tanh(),)

    assert torch.autograd.gradcheck(released, (smashed, labels))


@pytest.mark.parametrize("defense", [GaussianNoise(sigma=0.7), LaplaceNoise(scale=0.7)], ids=label)
def test_noise_in_place_is_wrong_behind_a_tanh_and_the_default_is_right(defense: Any) -> None:
    faulty = replace(defense, noise_in_place=True)
    z = torch.randn(1, 2, 3, 2, generator=generator(), dtype=torch.float64, requires_grad=True)

    def released(used: Any) -> Callable[[Tensor], Tensor]:
        return lambda t: used.apply(t.tanh(), torch.zeros(1, 2), generator())[0].smashed

    assert torch.autograd.gradcheck(released(defense), (z,))
    assert not torch.autograd.gradcheck(released(faulty), (z,), raise_exception=False)
    (right,) = torch.autograd.grad(released(defense)(z).sum(), z)
    (wrong,) = torch.autograd.grad(released(faulty)(z).sum(), z)
    noisy = released(defense)(z).detach()
    assert torch.allclose(right, 1 - z.detach().tanh() ** 2)
    assert torch.allclose(wrong, 1 - noisy**2)
    assert (wrong < 0).any()


@pytest.mark.parametrize("defense", [GaussianNoise(sigma=0.7, clip=0.5), LaplaceNoise(scale=0.7)], ids=label)
def test_noise_in_place_releases_and_proves_the_same(defense: Any) -> None:
    smashed, labels = inputs(defense, 2, 2)
    before = smashed.clone()
    release, receipt = defense.apply(smashed, labels, generator())
    assert torch.equal(smashed, before)
    twin, other = replace(defense, noise_in_place=True).apply(smashed, labels, generator())
    assert torch.equal(twin.smashed, release.smashed)
    assert twin.smashed is smashed
    assert other.certificate() == receipt.certificate()


# Randomness ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_same_seed_same_bits_other_seed_other_bits_and_the_global_generator_left_alone(defense: Defense) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (call(defense, seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.smashed, again.smashed)
    assert torch.equal(first.labels, again.labels)
    assert (first.smashed != other.smashed).any()
    if getattr(defense, "sigma_labels", None) is not None:
        assert (first.labels != other.labels).any()


def test_feature_maps_vectors_and_images_pass() -> None:
    draws = generator()
    maps, labels = torch.rand(2, 2, 3, 4, 8, 8, generator=draws), torch.eye(5)[:3].expand(2, 2, 3, 5)
    assert DpCutMixSl(patch=4).apply(maps, labels, draws)[1].counts.sum(1).tolist() == [4, 4]  # type: ignore[union-attr]
    assert DpCutMixSl(level="input", bound=1.0).apply(maps, labels, draws)[0].weights.shape == (2, 2, 16)  # type: ignore[union-attr]
    assert DpMixSl().apply(maps, labels, draws)[0].smashed.shape == (2, 3, 4, 8, 8)
    assert DpMixSl().apply(maps[..., 0, 0], labels, draws)[0].smashed.shape == (2, 3, 4)
    assert DpSl().apply(maps[:, 0, :, 0, 0], labels[:, 0], draws)[0].smashed.shape == (2, 3, 8)


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (GaussianNoise, {"sigma": 0.0}, r"sigma must be a finite number >= 1e-30 and <= 1e\+30, got 0.0"),
        (GaussianNoise, {"sigma": float("nan")}, "sigma must be"),
        (GaussianNoise, {"sigma": 1e39}, "sigma must be"),  # beyond float32: noise was infinite, and ε 0
        (LaplaceNoise, {"clip": 1e300}, "clip must be"),
        (GaussianNoise, {"clip": -1.0}, r"clip must be a finite number >= 1e-30 and <= 1e\+30, or left out, got -1.0"),
        (GaussianNoise, {"clip_by": "batch"}, "clip_by must be one of coordinate, image, got 'batch'"),
        (GaussianNoise, {"place": "nobody"}, "place must be one of client, mixer, server"),
        (LaplaceNoise, {"scale": -0.1}, "scale must be"),
        (LaplaceNoise, {"clip": INF}, "clip must be"),
        (DpSl, {"sigma_labels": 0.0}, "sigma_labels must be"),
        (DpSl, {"bound": 0.0}, "bound must be"),
        (DpSl, {"place": "me"}, "place must be"),
        (DpMixSl, {"group": 0}, "group must be a whole number >= 1"),
        (DpMixSl, {"concentration": 0.0}, "concentration must be"),
        (DpMixSl, {"place": "client"}, "place must be one of mixer, server"),
        (DpCutMixSl, {"site": "server"}, "site must be one of client, mixer"),
        (DpCutMixSl, {"patch": 0}, "patch must be a whole number >= 1"),
        (DpCutMixSl, {"level": "output"}, "level must be one of smashed, input"),
    ],
)
def test_impossible_settings_are_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**given)


@pytest.mark.parametrize("defense", EVERY, ids=label)
def test_impossible_data_are_refused(defense: Defense) -> None:
    smashed, labels = inputs(defense, 2, 3)
    with pytest.raises(ValueError, match=f"{defense.name} .*needs? .*smashed"):
        defense.apply(torch.zeros(3, 4), torch.zeros(3, 5), generator())
    if defense.soft_labels:
        with pytest.raises(ValueError, match="one-hot"):
            defense.apply(smashed, labels.long(), generator())
    if defense.group > 1:
        with pytest.raises(ValueError, match=f"mixes groups of {defense.group}"):
            defense.apply(smashed[:, :1], labels[:, :1], generator())


def test_feature_maps_without_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="dp_cutmixsl needs tokens"):
        DpCutMixSl().apply(torch.zeros(1, 2, 1, 3, 8, 8), torch.zeros(1, 2, 1, 5), generator())


def test_specifications_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        GaussianNoise().sigma = 1.0  # type: ignore[misc]
