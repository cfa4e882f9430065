"""DP-CutMixSL's Theorem 1 and Corollary 1 against definitions that share no code, and objections that bite."""

import json
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import ceil, exp, inf, isfinite, log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta, norm

from privkit.accountants.bounds import subsampling
from privkit.papers.dp_cutmixsl import claims as dp_cutmixsl
from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism, table_1
from tests.accountants.one_release import exact
from tests.papers import dp_cutmixsl_reference as reference
from tests.papers.releases import DELTA, JUNK, MECHANISMS, ORDER, one_number, settings_of_releases


def worst_shift(mechanism: str, ratios: list[float], width: float, masks: list[list[int]]) -> float:
    """Largest squared distance of two mixed means over all corners of [0, width]^D, by trying every pair of corners."""
    found = 0.0
    for client, ratio in enumerate(ratios):
        weights = np.array(masks[client], float) if mechanism == "dp_cutmixsl" else np.full(len(masks[0]), ratio)
        for one, other in product(product((0.0, width), repeat=len(weights)), repeat=2):
            found = max(found, float(np.sum((weights * (np.array(one) - np.array(other))) ** 2)))
    return found


@pytest.mark.parametrize("kept", [(2, 2), (3, 1), (1, 1, 2), (4,)])
@pytest.mark.parametrize("mechanism", ["dp_mixsl", "dp_cutmixsl"])
def test_theorem_1_is_the_divergence_of_the_worst_neighbors(mechanism: Mechanism, kept: tuple[int, ...]) -> None:
    total, width, sigma, order = 4, 0.7, 0.9, 3.5
    starts = np.cumsum((0, *kept))
    masks = [[int(starts[i] <= j < starts[i + 1]) for j in range(total)] for i in range(len(kept))]
    shift = worst_shift(mechanism, [m / total for m in kept], width, masks) / sigma**2
    mu = sqrt(shift)
    moment, _ = quad(
        lambda x: exp(order * norm.logpdf(x, mu) + (1 - order) * norm.logpdf(x)), order * mu - 12, order * mu + 12
    )
    setting = one_number(
        mechanism=mechanism,
        sigma=sigma,
        dimensions=total,
        clip=width,
        group=len(kept),
        mixing_ratio=max(kept) / total,
        patches=total,
    )
    assert dp_cutmixsl.rdp(setting, order) == pytest.approx(log(moment) / (order - 1), rel=1e-8)
    assert dp_cutmixsl.theorem_1(setting, order=order, delta=1e-5).sound


@given(setting=settings_of_releases, order=ORDER)
def test_order_of_the_three_mechanisms(setting: GroupRelease, order: float) -> None:
    base = replace(setting, mixing_ratio=None, mechanism="dp_sl")
    one, two, three = (dp_cutmixsl.rdp(replace(base, mechanism=m), order) for m in MECHANISMS)
    assert two <= three * (1 + 1e-12)
    assert three <= one * (1 + 1e-12)


@given(setting=settings_of_releases, order=ORDER, factor=st.floats(1.01, 10.0), delta=DELTA)
def test_more_noise_gives_a_smaller_epsilon(setting: GroupRelease, order: float, factor: float, delta: float) -> None:
    assert setting.sigma is not None
    noisier = replace(
        setting, sigma=setting.sigma * factor, sigma_labels=(setting.sigma_labels or setting.sigma) * factor
    )
    assert dp_cutmixsl.rdp(noisier, order) == pytest.approx(
        dp_cutmixsl.rdp(setting, order) / factor**2, rel=1e-9, abs=0
    )
    after, before = (dp_cutmixsl.corollary_1_epsilon(s, order, delta) for s in (noisier, setting))
    assert after <= before * (1 + 1e-12)


@given(setting=settings_of_releases, order=ORDER)
def test_larger_groups_mix_more_but_sample_more(setting: GroupRelease, order: float) -> None:
    assume(setting.group < setting.clients)
    even = replace(setting, mixing_ratio=None)
    larger = replace(even, group=even.group + 1)
    if even.mechanism == "dp_sl":
        assert dp_cutmixsl.rdp(larger, order) == dp_cutmixsl.rdp(even, order)
        small, large = (dp_cutmixsl.corollary_1_epsilon(s, order, 0.1) for s in (even, larger))
        assert small < large
    else:
        assert dp_cutmixsl.rdp(larger, order) < dp_cutmixsl.rdp(even, order)


@given(setting=settings_of_releases, order=ORDER, delta=DELTA)
def test_a_fixed_ratio_is_sound_exactly_where_the_release_is_no_more_telling(
    setting: GroupRelease, order: float, delta: float
) -> None:
    """Rebuilds the release: ratios that λ_max leaves, mixed noise, whole patches and what they hold, real labels."""
    setting = replace(setting, concentration=None)
    k, top = setting.group, setting.ratio
    ratios = [1.0] if setting.mechanism == "dp_sl" else [top] + [(1 - top) / (k - 1)] * (k - 1) if k > 1 else [1.0]
    averaged = sum(r * r for r in ratios) if setting.noise_site == "client" else 1.0
    length = setting.classes or setting.label_dimensions
    label = {"none": 0.0, "one_hot": 2.0 * (length > 1), "unit_box": float(length)}[setting.labels] * top**2 / averaged
    smashed = setting.clip**2 * setting.dimensions
    if setting.mechanism == "dp_cutmixsl":
        n, d = setting.patches, setting.dimensions
        if n is None:
            smashed *= top
        else:  # whole patches, each of which can hold ⌈D/N⌉ of the coordinates
            kept = ceil(n * (Fraction(1, k) if top == 1 / k else Fraction(round(top * 1000), 1000)))
            smashed *= min(d, kept * ceil(d / n)) / d
    else:
        smashed *= top**2 / averaged
    assert setting.sigma is not None
    true = order / 2 * (smashed / setting.sigma**2 + label / (setting.sigma_labels or setting.sigma) ** 2)
    claim = dp_cutmixsl.rdp(setting, order)
    assume(abs(true - claim) > 1e-9 * claim or true == claim)
    certificate = dp_cutmixsl.theorem_1(setting, order=order, delta=delta)
    assert certificate.sound == (true <= claim)
    assert certificate.epsilon == pytest.approx(claim - log(delta) / (order - 1), rel=1e-12)


def test_random_ratios_exceed_the_plug_in() -> None:
    setting = replace(table_1("dp_mixsl", group=2, sigma=16 / 255), concentration=2.0)
    full = dp_cutmixsl.rdp(replace(setting, mechanism="dp_sl"), 2)
    peak = full
    value, _ = quad(lambda x: beta.pdf(x, 2, 2) * exp(full * x * x - peak), 0, 1, epsabs=0, limit=500, points=[0.99])
    assert log(value) + peak == pytest.approx(552.891, abs=1e-3)
    assert log(value) + peak > 3 * dp_cutmixsl.rdp(setting, 2)
    certificate = dp_cutmixsl.theorem_1(setting, order=2, delta=1e-5)
    assert not certificate.sound
    assert "Dir(2)" in certificate.objection


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism": "dp_mixsl", "group": 2, "noise_site": "client"}, "averaged"),
        ({"mechanism": "dp_mixsl", "group": 2, "noise_site": "client", "mixing_ratio": 0.7}, "reverses"),
        ({"mechanism": "dp_cutmixsl", "group": 2, "noise_site": "client", "labels": "unit_box"}, "averaged"),
        ({"mechanism": "dp_cutmixsl", "group": 9, "patches": 64}, "whole patches"),
        ({"mechanism": "dp_cutmixsl", "group": 2, "patches": 2, "mixing_ratio": 0.50000001}, "whole patches"),
        ({"labels": "unit_box", "label_dimensions": 2, "classes": 10}, "D_y = 2"),
        ({"mechanism": "dp_mixsl", "group": 2, "concentration": 0.5}, "Dir(0.5)"),
    ],
)
def test_objections_name_what_fails(changes: dict[str, Any], words: str) -> None:
    certificate = dp_cutmixsl.theorem_1(one_number(**changes), order=2, delta=1e-5)
    assert not certificate.sound
    assert words in certificate.objection


def test_what_holds_is_not_objected_to() -> None:
    for changes in (
        {"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 0.7},
        {"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 1.0, "concentration": 2.0},
        {"mechanism": "dp_cutmixsl", "group": 2, "noise_site": "client"},  # no labels: each coordinate has one noise
        {"mechanism": "dp_cutmixsl", "group": 4, "patches": 64, "dimensions": 64},
        {"mechanism": "dp_cutmixsl", "group": 4, "patches": 64, "dimensions": 640},
        {
            "mechanism": "dp_cutmixsl",
            "group": 2,
            "patches": 100,
            "dimensions": 100,
            "mixing_ratio": 0.55,
        },  # 0.55·100 > 55 in floats
        {
            "mechanism": "dp_cutmixsl",
            "group": 11,
            "clients": 11,
            "patches": 66,
            "dimensions": 66,
            "mixing_ratio": 1 / 11,
        },
        {"labels": "one_hot", "label_dimensions": 2, "classes": 10},
    ):
        assert dp_cutmixsl.theorem_1(one_number(**changes), order=2, delta=1e-5).sound, changes
    loose = dp_cutmixsl.theorem_1(one_number(labels="one_hot", label_dimensions=10), order=2, delta=1e-5)
    assert loose.sound
    assert any("5 times too large" in sentence for sentence in loose.assumptions)


# Corollary 1


@example(epsilon=1e-12, rate=0.3)
@example(epsilon=1.5, rate=1e-9)
@example(epsilon=699.9, rate=1e-9)
@example(epsilon=700.1, rate=1e-9)
@given(epsilon=st.floats(1e-20, 50_000.0), rate=st.floats(1e-9, 1.0))
def test_amplification_equals_sixty_digits(epsilon: float, rate: float) -> None:
    with localcontext() as context:
        context.prec = 60
        context.Emax, context.Emin = 10**6, -(10**6)
        expected = float((1 + Decimal(rate) * (Decimal(epsilon).exp() - 1)).ln())
    found = subsampling.amplify(epsilon, rate)
    assert isfinite(found)
    assert found == pytest.approx(expected, rel=1e-13, abs=0)


@given(mu=st.floats(0.05, 20.0), k=st.integers(1, 10), order=st.floats(1.1, 64.0), delta=st.floats(1e-9, 0.4))
def test_corollary_1_bounds_the_exact_profile_of_a_sampled_release(
    mu: float, k: int, order: float, delta: float
) -> None:
    setting = one_number(clip=mu, group=k)
    certificate = dp_cutmixsl.corollary_1(setting, order=order, delta=delta)
    rate = k / 10
    after = certificate.quantities["delta_after_sampling"]
    assert after == pytest.approx(rate * delta, rel=1e-12, abs=0)
    unsampled = exact(mu, after / rate) if after < rate else 0.0
    assert log(1 - rate + rate * exp(unsampled)) <= certificate.epsilon + 1e-9
    assert certificate.sound


def test_round_robin_groups_break_corollary_1() -> None:
    setting = one_number(sampling="partition")
    certificate = dp_cutmixsl.corollary_1(setting, order=5.8, delta=1e-5)
    assert certificate.epsilon < 3.1 < 4.377 < exact(1.0)
    assert not certificate.sound
    assert "round-robin" in certificate.objection
    assert dp_cutmixsl.corollary_1(replace(setting, group=10), order=5.8, delta=1e-5).sound


def test_a_large_delta_is_called_out() -> None:
    assert "proves little" in dp_cutmixsl.corollary_1(one_number(), order=2, delta=0.5).statement
    assert "proves little" not in dp_cutmixsl.corollary_1(one_number(), order=2, delta=1e-5).statement


# All certificates, and bad input


@given(setting=settings_of_releases, order=ORDER, delta=DELTA)
def test_certificates_are_whole(setting: GroupRelease, order: float, delta: float) -> None:
    for certificate in (
        dp_cutmixsl.theorem_1(setting, order=order, delta=delta),
        dp_cutmixsl.corollary_1(setting, order=order, delta=delta),
    ):
        assert isfinite(certificate.epsilon)
        assert certificate.delta == delta
        assert certificate.relation == "replace_one"
        assert certificate.unit == "record"
        assert certificate.source
        assert certificate.assumptions
        assert "\n" not in certificate.statement + certificate.objection
        assert json.loads(json.dumps(certificate.quantities)) == certificate.quantities


@given(
    name=st.sampled_from(
        ["sigma", "dimensions", "clip", "label_dimensions", "group", "clients", "mechanism", "labels"]
    ),
    junk=JUNK,
)
def test_a_setting_refuses_junk(name: str, junk: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        one_number(**{name: junk})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group": 11}, "group must be a whole number >= 1 and <= 10, got 11"),
        ({"group": 2.0}, "group must be a whole number"),
        ({"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 0.4}, "mixing_ratio must"),
        ({"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 1.1}, "mixing_ratio must"),
        ({"mixing_ratio": 0.5}, "mixes nothing"),
        ({"mechanism": "dp_mixup"}, "one of dp_sl, dp_mixsl, dp_cutmixsl, got 'dp_mixup'"),
        ({"noise_site": "server"}, "noise_site must be one of mixer, client"),
        ({"sampling": "poisson"}, "sampling must be one of without_replacement, partition"),
        ({"concentration": 0.0}, "concentration must"),
        ({"patches": 0}, "patches must"),
        ({"classes": -3}, "classes must"),
        ({"sigma_labels": float("nan")}, "sigma_labels must"),
    ],
)
def test_a_setting_says_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        one_number(**changes)


@pytest.mark.parametrize("order", [1, 1.0, 0.5, -2, float("nan"), inf, True, None])
def test_orders_must_exceed_one(order: Any) -> None:
    for call in (
        lambda: dp_cutmixsl.rdp(one_number(), order),
        lambda: dp_cutmixsl.theorem_1(one_number(), order=order, delta=1e-5),
        lambda: dp_cutmixsl.corollary_1(one_number(), order=order, delta=1e-5),
        lambda: reference.best_group(one_number(mechanism="dp_mixsl"), order, 1e-5),
    ):
        with pytest.raises(ValueError, match="order must be a finite number > 1"):
            call()
