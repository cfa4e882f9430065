"""Shifts of a round against their definitions."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp, Known, OneHot, PatchBall
from privkit.accountants.spec.shift import FEW, ShiftLaw, ratio_law
from tests.accountants.one_release import one_release


@given(
    data=st.data(),
    group=st.integers(2, 5),
    sigma=st.floats(0.2, 5),
    sigma_labels=st.floats(0.2, 5),
    site=st.sampled_from(["mixer", "client"]),
    colluding=st.booleans(),
    cut=st.booleans(),
    releases=st.integers(1, 5),
)
def test_shift_of_fixed_ratios_is_distance_over_noise(
    data: st.DataObject,
    group: int,
    sigma: float,
    sigma_labels: float,
    site: str,
    colluding: bool,
    cut: bool,
    releases: int,
) -> None:
    """Mean difference of the mixed releases over the noise that is left, for the worst client, in plain numpy."""
    counts = data.draw(st.lists(st.integers(0, 8), min_size=group, max_size=group).filter(lambda c: sum(c) > 0))
    patches = sum(counts)
    ratios = np.array(counts) / patches
    worst = 0.0
    for i, ratio in enumerate(ratios):
        if ratio == 0:
            continue
        mixed = sqrt(ratio**2 if colluding else float(ratios @ ratios)) if site == "client" else 1.0
        smashed = sqrt(counts[i]) / sigma if cut else ratio * sqrt(patches) / (sigma * mixed)
        label = ratio * sqrt(2) / (sigma_labels * mixed)
        worst = max(worst, sqrt(releases * (smashed**2 + label**2)))
    whole, shares = FixedCounts(counts=tuple(counts)), FixedRatio(ratios=tuple(ratios.tolist()))
    mixing = (
        CutMix(ratio=whole, patches=patches, colluding=colluding) if cut else Mixup(ratio=shares, colluding=colluding)
    )
    found = one_release(
        smashed=Clamp(low=0, high=1, dimensions=patches),
        labels=OneHot(),
        noise=Noise(smashed=sigma, labels=sigma_labels, site=site),  # type: ignore[arg-type]
        mixing=mixing,
        unit="client",
        releases=releases,
    ).shift()
    assert found.constant == pytest.approx(worst, rel=1e-12)


def test_a_global_clip_gains_nothing_from_fixed_masks_but_something_from_random_ones() -> None:
    quarter = CutMix(ratio=FixedCounts(counts=(1, 1, 1, 1)), patches=4)
    fixed = one_release(smashed=Ball(radius=1.0), mixing=quarter)
    assert fixed.shift().constant == 2.0
    law = one_release(smashed=Ball(radius=1.0), mixing=quarter, random_masks=True).shift()
    assert dict(zip(law.mu.tolist(), np.exp(law.log_weight).round(12).tolist(), strict=True)) == {2.0: 0.25, 0.0: 0.75}
    assert one_release(smashed=PatchBall(radius=0.5, patches=4), mixing=quarter).shift().constant == 1.0


RANDOM = [
    Mixup(ratio=DirichletRatio(concentration=0.3, clients=4)),
    CutMix(ratio=DirichletRatio(concentration=2, clients=3), patches=7),
    CutMix(ratio=DirichletCounts(concentration=0.01, clients=3), patches=196),
]


@pytest.mark.parametrize("mixing", RANDOM)
def test_laws_of_random_ratios_are_probabilities_with_the_right_mean(mixing: Any) -> None:
    law = ratio_law(one_release(mixing=mixing))
    assert law is not None
    weight = np.exp(law.log_weight)
    assert weight.sum() == pytest.approx(1, abs=1e-10)
    assert float(weight @ law.ratio) == pytest.approx(1 / mixing.group, rel=1e-9)
    assert np.all(law.share >= law.ratio - 1e-12)
    assert np.all((law.norm >= law.ratio**2 - 1e-15) & (law.norm <= 1 + 1e-12))


@pytest.mark.parametrize("mixing", RANDOM)
def test_noise_of_a_random_mix_is_the_least_that_its_ratio_allows(mixing: Any) -> None:
    """The others' ratios have the least squares if they are equal; divisions that are drawn have more."""
    law, others = ratio_law(one_release(mixing=mixing)), mixing.group - 1
    assert law is not None
    left = (1 - law.ratio)[:, None]
    equal = np.concatenate([law.ratio[:, None], np.repeat(left / others, others, axis=1)], axis=1)
    assert law.norm == pytest.approx((equal**2).sum(1), rel=1e-12)
    drawn = np.random.default_rng(0).dirichlet(np.ones(others), size=(200, 1)) * left
    assert np.all(law.ratio**2 + (drawn**2).sum(2) >= law.norm - 1e-12)


def test_single_clients_and_single_patches() -> None:
    alone = one_release(mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=1)))
    assert alone.shift().constant == one_release().shift().constant == 1.0
    assert one_release(mixing=CutMix(ratio=FixedRatio.equal(3), patches=1)).shift().constant == 1.0


def test_random_ratios_of_several_releases_rest_on_the_renyi_bound_that_holds_for_shared_and_for_fresh_draws() -> None:
    given: dict[str, Any] = {
        "smashed": Known(value=8, relation="replace_one", norm="l2"),
        "noise": Noise(smashed=1.0),
        "lower_model": "trained",
        "unit": "client",
        "mixing": Mixup(ratio=DirichletRatio(concentration=2, clients=1000)),
    }
    shared = answer.epsilon(SplitMechanism(**given, releases=8), 1e-5)
    fresh = answer.epsilon(SplitMechanism(**given, rounds=8), 1e-5)
    assert shared.lower is None
    assert shared.order is not None
    assert shared.epsilon >= fresh.epsilon
    assert any("once per round or once per release" in sentence for sentence in shared.assumptions)


@pytest.mark.parametrize("points", [256, 257, 272, 1000, 5000])
@pytest.mark.parametrize("spread", [0.1, 1.0, 100.0])
def test_raised_points_lie_above_their_law(points: int, spread: float) -> None:
    random = np.random.default_rng(points)
    law = ShiftLaw(mu=random.dirichlet(np.full(points, spread)), log_weight=np.log(random.dirichlet(np.ones(points))))
    raised = law.raised()
    assert raised.mu.size <= FEW
    assert np.exp(raised.log_weight).sum() == pytest.approx(1, rel=1e-12)
    largest = np.sort(law.mu)[::-1][:16]
    assert np.array_equal(np.sort(raised.mu)[::-1][:16], largest)
    for mu in law.mu:
        above = np.exp(raised.log_weight)[raised.mu >= mu].sum()
        assert above >= np.exp(law.log_weight)[law.mu >= mu].sum() - 1e-12
